"""Many devices: what travels, flops and bytes of a device, and time, for docs/scaling.md.

    python -m benchmarks.scaling              # measure all and write the page
    python -m benchmarks.scaling --large      # train 131,072 neurons on eight virtual devices, and add that to it

Every row is measured in a process of its own, which has so many virtual devices of the CPU. Collectives are read off
the program that XLA compiled for one step (a window of one), so that each of them is said once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE, DATA = ROOT / "docs" / "scaling.md", ROOT / "benchmarks" / "results" / "scaling.json"
NEURONS, FAN_IN, BATCH, CHANNELS, OUTPUTS = 1024, 32, 8, 64, 10
LARGE = 131_072


def network(neurons: int, fan_in: int, batch: int) -> tuple[Any, Any, Any]:
    """Leaky spiking units with sparse recurrence, entries sorted by the unit that they drive, and a readout."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental.sparse import BCOO

    rng = np.random.default_rng(0)
    post, pre = np.repeat(np.arange(neurons), fan_in), rng.integers(0, neurons, neurons * fan_in)
    indices = jnp.asarray(np.stack([post, pre], 1), jnp.int32)

    @jax.custom_jvp
    def spike(v: Any) -> Any:
        return (v > 0).astype(v.dtype)

    spike.defjvp(lambda v, dv: (spike(*v), dv[0] / (1 + 10 * jnp.abs(v[0])) ** 2))

    def step(params: Any, v: Any, x: Any) -> tuple[Any, Any]:
        z = spike(v - 1.0)
        current = (BCOO((params["recurrent"], indices), shape=(neurons, neurons)) @ z.T).T
        v = 0.9 * v - jax.lax.stop_gradient(z) + current + x @ params["input"]
        return v, spike(v - 1.0) @ params["readout"]

    def draw(*shape: int, scale: float) -> Any:
        return jnp.asarray(scale * rng.standard_normal(shape), jnp.float32)

    params = {
        "input": draw(CHANNELS, neurons, scale=CHANNELS**-0.5),
        "recurrent": draw(neurons * fan_in, scale=fan_in**-0.5),
        "readout": draw(neurons, OUTPUTS, scale=neurons**-0.5),
    }
    return step, params, jnp.zeros((batch, neurons), jnp.float32)


def loss(output: Any, target: Any) -> Any:
    return ((output - target) ** 2).mean()


def collectives(text: str) -> dict[str, int]:
    """Bytes that each kind of collective gives a device, in a compiled program."""
    from etrax.mesh import messages

    found: dict[str, int] = {}
    for message in (m for line in text.splitlines() for m in messages(line)):
        found[message.kind] = found.get(message.kind, 0) + message.nbytes
    return found


def measure(devices: int, word: str, neurons: int, batch: int, rule: str, steps: int) -> dict[str, Any]:
    """One row, in a process that has so many devices."""
    import jax
    import numpy as np
    from jax.sharding import AxisType, Mesh

    import etrax

    shape, names = {"batch": ((devices,), ("batch",)), "neuron": ((devices,), ("neuron",))}.get(
        word, ((2, devices // 2), ("batch", "neuron"))
    )
    mesh = Mesh(np.array(jax.devices()).reshape(shape), names, axis_types=(AxisType.Auto,) * len(names))
    step, params, hidden = network(neurons, FAN_IN, batch)
    rng = np.random.default_rng(1)
    xs = rng.random((steps, batch, CHANNELS), np.float32)
    ys = rng.standard_normal((steps, batch, OUTPUTS)).astype(np.float32)
    start = time.perf_counter()
    learner = etrax.compile(step, rule, xs[0], params=params, hidden=hidden, mesh=mesh, shard=word)
    params = jax.device_put(params, learner.shardings.params)
    state = learner.init()
    run = jax.jit(learner.value_and_grad(loss, window=1)).lower(params, state, xs[:1], ys[:1]).compile()
    whole = jax.jit(learner.value_and_grad(loss, window=min(steps, 8))).lower(params, state, xs, ys).compile()
    ready = time.perf_counter() - start
    memory, cost = whole.memory_analysis(), run.cost_analysis()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(whole(params, state, xs, ys))
        times.append((time.perf_counter() - start) / steps)
    trace = sum(a.addressable_shards[0].data.nbytes for a in jax.tree.leaves(state.trace))
    return {
        "devices": devices, "cut": word, "neurons": neurons, "batch": batch, "rule": rule,
        "synapses": neurons * FAN_IN, "travels": collectives(run.as_text()), "flops": float(cost.get("flops", 0)),
        "trace": trace, "peak": memory.argument_size_in_bytes + memory.temp_size_in_bytes,
        "milliseconds": 1e3 * min(times), "compile": ready,
    }  # fmt: skip


def train_large(neurons: int, devices: int, steps: int) -> dict[str, Any]:
    """Online training of a large sparse network: losses before and after."""
    import jax
    import numpy as np
    import optax
    from jax.sharding import AxisType, Mesh

    import etrax

    mesh = Mesh(np.array(jax.devices()[:devices]), ("neuron",), axis_types=(AxisType.Auto,))
    step, params, hidden = network(neurons, FAN_IN, 1)
    rng = np.random.default_rng(2)
    xs = np.repeat(rng.random((1, 1, CHANNELS), np.float32), steps, 0)
    ys = np.repeat(rng.standard_normal((1, 1, OUTPUTS)).astype(np.float32), steps, 0)
    start = time.perf_counter()
    learner = etrax.compile(step, "pp_prop", xs[0], params=params, hidden=hidden, mesh=mesh, shard="neuron")
    params = jax.device_put(params, learner.shardings.params)
    optimizer = optax.adam(1e-3)
    train = learner.train(optimizer, loss, window=1)
    ready = time.perf_counter() - start
    start = time.perf_counter()
    _, _, state, losses = train(params, optimizer.init(params), learner.init(), xs, ys)
    losses = np.asarray(losses)
    trace = sum(a.addressable_shards[0].data.nbytes for a in jax.tree.leaves(state.trace))
    return {
        "neurons": neurons, "synapses": neurons * FAN_IN, "devices": devices, "steps": steps, "compile": ready,
        "first": float(losses[: steps // 8].mean()), "last": float(losses[-steps // 8 :].mean()), "trace": trace,
        "seconds": time.perf_counter() - start,
    }  # fmt: skip


def in_process(devices: int, call: str, *args: Any) -> dict[str, Any]:
    flags = f"--xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.scaling", "--worker", call, json.dumps(args)]
    result = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, check=False)
    if result.returncode:
        raise RuntimeError(result.stderr[-4000:])
    return json.loads(result.stdout.splitlines()[-1])


def all_rows(neurons: int = NEURONS, batch: int = BATCH) -> dict[str, list[dict[str, Any]]]:
    counts = (1, 2, 4, 8)
    rows = {
        "strong, neurons": [(n, "neuron", neurons, batch, "pp_prop", 8) for n in counts],
        "weak, neurons": [(n, "neuron", neurons // 4 * n, batch, "pp_prop", 8) for n in counts],
        "strong, batch": [(n, "batch", neurons, batch, "pp_prop", 8) for n in counts],
        "both": [(8, "batch+neuron", neurons, batch, rule, 8) for rule in ("pp_prop", "d_rtrl")],
    }
    found: dict[str, list[dict[str, Any]]] = {}
    for name, some in rows.items():
        found[name] = []
        for row in some:
            found[name].append(in_process(row[0], "measure", *row))
            print(name, found[name][-1], file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", nargs=2, metavar=("CALL", "ARGS"))
    parser.add_argument("--large", action="store_true", help="train the large network as well")
    parser.add_argument("--page", action="store_true", help="write the page from what was measured before")
    given = parser.parse_args()
    if given.worker:
        call, args = given.worker
        print(json.dumps({"measure": measure, "train_large": train_large}[call](*json.loads(args))))
        return
    data = json.loads(DATA.read_text()) if DATA.exists() else {}
    if given.large:
        data["large"] = in_process(8, "train_large", LARGE, 8, 64)
    elif not given.page:
        data["rows"] = all_rows()
    DATA.write_text(json.dumps(data, indent=1) + "\n")
    from .scaling_page import page

    PAGE.write_text(page(data), encoding="utf-8")


if __name__ == "__main__":
    main()
