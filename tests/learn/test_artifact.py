"""A learner as a file: the same bits as the learner itself, without the model's code."""

import json
import subprocess
import sys
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import export as jax_export

import etrax

B, I, H = 2, 3, 4


def step(p, h, x):
    """A leaky layer with noise, and a readout; its state has a counter and a random key in it."""
    key, now = jax.random.split(h["key"])
    v = jax.nn.sigmoid(p["leak"]) * h["v"] + x @ p["w"] + 0.01 * jax.random.normal(now, h["v"].shape, h["v"].dtype)
    return {"v": v, "n": h["n"] + 1, "key": key}, {"out": v @ p["o"], "rates": (jnp.tanh(v),)}


def loss(output, target):
    return jnp.mean((output["out"] - target) ** 2)


@pytest.fixture(scope="module")
def learner():
    rng = np.random.RandomState(0)
    params = {"w": rng.standard_normal((I, H)), "leak": np.ones(H), "o": rng.standard_normal((H, 1))}
    params = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), params)
    hidden = {"v": jnp.zeros((B, H), jnp.float32), "n": jnp.zeros((), jnp.int32), "key": jax.random.key(3)}
    return etrax.compile(step, "d_rtrl", jnp.ones((B, I), jnp.float32), params=params, hidden=hidden)


OPTIMIZER = optax.adam(1e-2)
TARGET = jnp.zeros((B, 1), jnp.float32)


@pytest.fixture(scope="module")
def file(learner, tmp_path_factory):
    path = tmp_path_factory.mktemp("artifacts") / "one.etrax"
    learner.export(path, OPTIMIZER, loss, target=TARGET)
    return path


def stream(steps):
    keys = jax.random.split(jax.random.key(1))
    return tuple(jax.random.normal(key, (steps, B, n), jnp.float32) for key, n in zip(keys, (I, 1), strict=True))


def numbers(tree):
    return [np.asarray(jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a)
            for a in jax.tree.leaves(tree)]  # fmt: skip


def same_bits(one, two):
    one, two = numbers(one), numbers(two)
    assert len(one) == len(two) > 0
    for a, b in zip(one, two, strict=True):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


def run(learner, artifact, steps, made=lambda update: update):
    """Both from the same beginning, one step at a time, each as `made` of it; what they end with."""
    xs, ys = map(np.asarray, stream(steps))
    native, artifact = made(learner.train(OPTIMIZER, loss, window=1)), made(artifact)
    one = two = (learner.params, OPTIMIZER.init(learner.params), learner.init())
    for x, y in zip(xs, ys, strict=True):
        *one, losses = native(*one, x[None], y[None])
        *two, found, output = artifact(*two, x, y)
        assert losses[0] == found
    return one, two, output


def test_same_bits_as_the_learner(learner, file):
    one, two, output = run(learner, etrax.load(file), 200)
    same_bits(one, two)
    assert type(two[2]) is etrax.LearnerState and int(two[2].step) == 200
    assert output["out"].shape == (B, 1) and output["rates"][0].shape == (B, H)


@pytest.mark.slow
def test_same_bits_for_many_steps(learner, file):
    """Inside `jit`, which leaves out the checks of arguments: they take longer than such small steps."""
    artifact = etrax.load(file)
    one, two, _ = run(learner, artifact, 100_000, made=lambda update: jax.jit(lambda *given: update(*given)))
    same_bits(one, two)


def test_longer_windows(learner, tmp_path):
    learner.export(tmp_path / "k", OPTIMIZER, loss, window=5, target=TARGET)
    artifact, (xs, ys) = etrax.load(tmp_path / "k"), stream(5)
    begin = learner.params, OPTIMIZER.init(learner.params), learner.init()
    *one, losses = learner.train(OPTIMIZER, loss, window=5)(*begin, xs, ys)
    *two, found, output = artifact(*begin, xs, ys)
    same_bits(one, two)
    assert losses[0] == found and output["out"].shape == (5, B, 1)
    with pytest.raises(etrax.ArgumentError, match=r"made with float32\[5, 2, 3\]"):
        artifact(*begin, xs[:4], ys[:4])


def test_manifest(learner, file):
    manifest = etrax.load(file).manifest
    assert manifest["verdicts"] == {"leak": "exact", "o": "exact", "w": "exact"}
    assert manifest["versions"] == {"etrax": etrax.__version__, "jax": jax.__version__}
    assert manifest["bytes"]["trace"] == learner.memory(window=1).trace
    assert manifest["bytes"]["params"] == 4 * (I * H + H + H) and manifest["flops"] > 0
    assert manifest["window"] == 1 and manifest["rule"] == "d_rtrl()" and manifest["platforms"] == ["cpu"]
    assert {"path": "w", "shape": [I, H], "dtype": "float32"} in manifest["arguments"]["params"]


SCRIPT = """
import sys, numpy as np, jax, etrax
update = etrax.load(sys.argv[1])
given = np.load(sys.argv[2])
params, state = ([given[k] for k in sorted(given) if k[0] == kind] for kind in "ps")
params, opt_state, state, loss, output = update(params, (), state, given["x"], given["y"])
print(float(loss), float(abs(params[0]).sum()))
assert "test_artifact" not in sys.modules
"""


def test_runs_without_the_model(tmp_path):
    """In another process, from the file and plain arrays alone."""
    f32 = lambda *s: jnp.ones(s, jnp.float32)
    learner = etrax.compile(lambda w, h, x: (0.9 * h + x @ w,) * 2, "d_rtrl", f32(I), params=f32(I, H), hidden=f32(H))
    optimizer, mean = optax.sgd(0.1), lambda o, y: ((o - y) ** 2).mean()
    learner.export(tmp_path / "a", optimizer, mean)
    state = learner.init()
    leaves = {f"s{i}": a for i, a in enumerate(jax.tree.leaves(state))}
    np.savez(tmp_path / "given.npz", p0=learner.params, x=f32(I), y=0 * f32(H), **leaves)
    done = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path / "a", tmp_path / "given.npz"],
                          capture_output=True, text=True, check=False, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    train = learner.train(optimizer, mean, window=1)
    params, _, _, losses = train(learner.params, optimizer.init(learner.params), state, f32(1, I), 0 * f32(1, H))
    assert list(map(float, done.stdout.split())) == [float(losses[0]), float(abs(params).sum())]


def changed(file, path, **members):
    """The archive with some members replaced."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(path, "w") as new:
        for name in dict.fromkeys([*old.namelist(), *members]):
            new.writestr(name, members[name] if name in members else old.read(name))
    return path


def test_files_that_are_not_artifacts(file, tmp_path):
    data, path = file.read_bytes(), tmp_path / "bad"
    manifest = etrax.load(file).manifest
    program = bytearray(zipfile.ZipFile(file).read("update.stablehlo"))
    program[len(program) // 2] ^= 1
    for content, message in (
        (data[: len(data) // 2], "cut short"), (b"", "cut short"), (b"hello" * 100, "no artifact"),
    ):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(etrax.ArtifactError, match=message):
            etrax.load(path)
    for members, message in (
        ({"manifest.json": json.dumps(manifest | {"format": 99})}, "of format 99"),
        ({"manifest.json": "{}"}, "no artifact"), ({"manifest.json": "{"}, "cut short"),
        ({"manifest.json": json.dumps(manifest | {"arguments": {}})}, "does not say"),
        ({"update.stablehlo": bytes(program)}, "damaged"), ({"update.stablehlo": b""}, "damaged"),
        ({"extra.py": "print(1)"}, "no artifact"),
    ):  # fmt: skip
        with pytest.raises(etrax.ArtifactError, match=message):
            etrax.load(changed(file, tmp_path / "bad.zip", **members))
    with pytest.raises(etrax.ArtifactError, match="there is no file"):
        etrax.load(tmp_path / "nowhere")


def test_arguments_that_do_not_fit(learner, file, tmp_path):
    artifact, (xs, ys) = etrax.load(file), stream(1)
    begin = learner.params, OPTIMIZER.init(learner.params), learner.init()
    with pytest.raises(etrax.ArgumentError, match="`opt_state` has 0 arrays, but the artifact was made with 7"):
        artifact(begin[0], (), begin[2], xs[0], ys[0])
    with pytest.raises(etrax.ArgumentError, match=r"`params` has float32\[3\] at 'w'"):
        artifact(begin[0] | {"w": jnp.ones(3, jnp.float32)}, *begin[1:], xs[0], ys[0])
    with pytest.raises(etrax.ArgumentError, match="pass an example of the target of one step"):
        learner.export(tmp_path / "x", OPTIMIZER, loss)
    with pytest.raises(etrax.ArtifactError, match="cannot be written"):
        learner.export(tmp_path / "missing" / "x", OPTIMIZER, loss, target=TARGET)
    with pytest.raises(etrax.EtraxError, match="`optimizer` is"):
        learner.export(tmp_path / "x", 0.1, loss, target=TARGET)
    assert not list(tmp_path.iterdir())


def test_functions_over_a_learner_state_can_be_exported():
    w, h = jnp.ones((I, H)), jnp.zeros(H)
    learner = etrax.compile(lambda w, h, x: (0.9 * h + x @ w,) * 2, "d_rtrl", jnp.ones(I), params=w, hidden=h)
    run = jax.jit(lambda state, x: learner.step(w, state, x))
    state = learner.init()
    back = jax_export.deserialize(jax_export.export(run)(state, jnp.ones(I)).serialize())
    same_bits(back.call(state, jnp.ones(I)), run(state, jnp.ones(I)))
    assert type(back.call(state, jnp.ones(I))[0]) is etrax.LearnerState
