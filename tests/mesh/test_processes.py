"""Several processes on one machine: they train as one does, go on from each other's checkpoints, and end together."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.mesh.test_mesh import BY_POSITION, WORKER, check

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "two_processes.py"
DIFFERENT = """
import sys, jax, jax.numpy as jnp, numpy as np
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]), heartbeat_timeout_seconds=10)
import etrax
from jax.sharding import AxisType, Mesh
units = 4 + int(sys.argv[2])
step = lambda p, h, x: (0.9 * h + x @ p["w"],) * 2
mesh = Mesh(np.array(jax.devices()), ("batch",), axis_types=(AxisType.Auto,))
etrax.compile(step, "d_rtrl", jnp.ones((4, 3)), params={"w": jnp.ones((3, units))}, hidden=jnp.zeros((4, units)),
              mesh=mesh, shard="batch")
"""
DYING = """
import os, signal, sys, jax, jax.numpy as jnp, numpy as np, optax
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]), heartbeat_timeout_seconds=10)
import etrax
step = lambda p, h, x: (0.9 * h + x @ p["w"],) * 2
learner = etrax.compile(step, "d_rtrl", jnp.ones((4, 3)), params={"w": jnp.ones((3, 4))}, hidden=jnp.zeros((4, 4)),
                        mesh=jax.make_mesh((2,), ("batch",)), shard="batch")
trainer = etrax.train.Trainer(learner, optax.sgd(0.0), lambda o, y: ((o - y) ** 2).mean())
data = etrax.train.Dataset(np.ones((2, 4, 3), np.float32), np.ones((2, 4, 4), np.float32))
def after(epoch):
    print("epoch", flush=True)
    if sys.argv[2] == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)
trainer.fit(data, 10**6, callback=after, progress=False)
"""

pytestmark = pytest.mark.slow


def port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


def environment(**more):
    flags = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count={}".format(
        more.pop("devices", 1)
    )
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, **more}


def trained(directory, epochs, count, devices):
    """Losses of all epochs, as the first process prints them."""
    code = f"import two_processes as t; t.start({str(directory)!r}, {port()}, {count}, {devices})"
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=EXAMPLE.parent, env=environment(EPOCHS=str(epochs)),
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    shown = [line for line in result.stdout.splitlines() if "losses" in line]
    assert len(shown) == 1, "one process alone prints"
    assert shown[0].startswith(f"{count} processes, {count * devices} devices")
    return [float(x) for x in re.findall(r"\d+\.\d{6}", shown[0])]


def test_two_processes_train_as_one_and_go_on_elsewhere(tmp_path):
    alone = trained(tmp_path / "one", 4, 1, 1)
    first = trained(tmp_path / "many", 2, 2, 2)
    both = trained(tmp_path / "many", 4, 1, 2)
    assert first == pytest.approx(alone[:2], abs=1e-5)
    assert both == pytest.approx(alone, abs=1e-5)
    assert both[:2] == first
    assert alone[-1] < alone[0]


def two(code, timeout, *args):
    address = f"localhost:{port()}"
    command = [sys.executable, "-W", "ignore", "-c", code, address]
    running = [
        subprocess.Popen(
            [*command, str(n), *args], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for n in range(2)
    ]
    return [(*p.communicate(timeout=timeout), p.returncode) for p in running]


def test_different_models_are_refused():
    for _, error, code in two(DIFFERENT, 300):
        assert code == 1
        assert "the 2 processes compile different models: they differ in" in error
        assert "parameter 'w'" in error


@pytest.mark.parametrize("killed", [0, 1])
def test_if_one_dies_the_other_ends(killed):
    # It would have trained for longer than it is waited for.
    found = two(DYING, 300, str(killed))
    said, error, code = found[1 - killed]
    assert found[killed][2] == -signal.SIGKILL
    assert "epoch" in said
    assert code not in (0, None)
    words = "heartbeat|unhealthy|disconnected|crashed|shut|closed by peer|coordination service"
    assert re.search(words, error, re.IGNORECASE)


@pytest.mark.parametrize("rules", [BY_POSITION[:4], BY_POSITION[4:]])
def test_two_processes_give_what_one_device_gives(rules):
    cases = [f"rnn,batch+neuron,{rule}" for rule in rules]
    address = f"localhost:{port()}"
    running = [
        subprocess.Popen([sys.executable, "-W", "ignore", str(WORKER), *cases], text=True, stdout=subprocess.PIPE,
                         env={**os.environ, "PROCESS": f"{address},{n}"}, stderr=subprocess.PIPE)
        for n in range(2)
    ]  # fmt: skip
    ended = [(*process.communicate(timeout=550), process.returncode) for process in running]
    for out, error, code in ended:  # after both have ended: one that is left running fails the tests that follow
        assert code == 0, error
        found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        assert [f["case"] for f in found] == cases
        for f in found:
            check(f["case"], f)


def training(*args):
    worker = WORKER.with_name("training.py")
    return subprocess.run(
        [sys.executable, "-W", "ignore", str(worker), *map(str, args)], capture_output=True, text=True
    )


def test_killed_and_restored_on_another_mesh_the_run_goes_on(tmp_path):
    whole = training(1, tmp_path / "whole", 4)
    assert whole.returncode == 0, whole.stderr
    truth = json.loads(whole.stdout)
    killed = training(8, tmp_path / "killed", 4, 10)  # within the third epoch of four updates each
    assert killed.returncode == -9, killed.stderr
    for shape in ("4", "2x2", "1"):
        shutil.copytree(tmp_path / "killed", tmp_path / shape)
        on = training(shape, tmp_path / shape, 4)
        assert on.returncode == 0, on.stderr
        found = json.loads(on.stdout)
        assert len(found["losses"]) == 4
        np.testing.assert_allclose(found["losses"], truth["losses"], rtol=1e-12)
        for name, value in truth["params"].items():
            np.testing.assert_allclose(found["params"][name], value, rtol=1e-9, atol=1e-12)
