"""A learner as a file: the same bits as the learner itself, without the model's code."""

import json
import subprocess
import sys
import tracemalloc
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import export as jax_export

import etrax
from etrax.artifact._file import PARTS, sealed, write_archive

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


def test_resets(learner, tmp_path, file):
    """Flags are one argument more; the states to start again from, a random key among them, are in the program."""
    learner.export(tmp_path / "r", OPTIMIZER, loss, window=3, target=TARGET, reset=False)
    artifact, (xs, ys), flags = etrax.load(tmp_path / "r"), stream(3), np.array([False, True, False])
    begin = learner.params, OPTIMIZER.init(learner.params), learner.init()
    for reset in (flags, None):
        *one, losses = learner.train(OPTIMIZER, loss, window=3)(*begin, xs, ys, None, flags & (reset is not None))
        *two, found, _ = artifact(*begin, xs, ys, reset)
        same_bits(one, two)
        assert losses[0] == found
    with pytest.raises(etrax.ArgumentError, match="exported without `reset=`"):
        etrax.load(file)(*begin, xs[0], ys[0], True)
    with pytest.raises(etrax.ArgumentError, match="`reset` has float32"):
        artifact(*begin, xs, ys, flags.astype(np.float32))


def test_resets_by_lane(tmp_path):
    made = etrax.compile(
        lambda w, h, x: (0.9 * h + x @ w,) * 2, "pp_prop", jnp.ones((B, I)), params=jnp.ones((I, H)),
        hidden=jnp.zeros((B, H)),
    )  # fmt: skip
    square = lambda o, y: (o**2).mean()
    made.export(tmp_path / "r", OPTIMIZER, square, reset=np.zeros(B, bool))
    begin = made.params, OPTIMIZER.init(made.params), made.init(lanes=True)
    xs, flags = jnp.ones((1, B, I)), np.array([[True, False]])
    _, _, one, _ = made.train(OPTIMIZER, square, window=1)(*begin, xs, xs[..., :1], None, flags)
    _, _, two, *_ = etrax.load(tmp_path / "r")(*begin, xs[0], jnp.zeros((B, H)), flags[0])
    same_bits(one, two)


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
        ({"manifest.json": json.dumps(manifest | {"arguments": {}})}, "`arguments` is {}"),
        ({"manifest.json": json.dumps(manifest | {"window": 2})}, "damaged"),
        ({"update.stablehlo": bytes(program)}, "damaged"), ({"update.stablehlo": b""}, "damaged"),
        ({"extra.py": "print(1)"}, "no artifact"),
    ):  # fmt: skip
        with pytest.raises(etrax.ArtifactError, match=message):
            etrax.load(changed(file, tmp_path / "bad.zip", **members))
    with pytest.raises(etrax.ArtifactError, match="there is no file"):
        etrax.load(tmp_path / "nowhere")


def resealed(file, path, program=None, **fields):
    """A hostile file: other fields or another program, under a digest that is right."""
    with zipfile.ZipFile(file) as old:
        manifest, was = json.loads(old.read("manifest.json")), old.read("update.stablehlo")
    program = was if program is None else program
    manifest = {k: v for k, v in (manifest | fields).items() if v is not ...}
    manifest["bytes"] = fields.get("bytes") or manifest["bytes"] | {"program": len(program)}
    write_archive(path, sealed(manifest, program), program)
    return path


def nested(depth):
    found = "array"
    for _ in range(depth):
        found = {"list": [found]}
    return found


HOSTILE = {
    "no window": {"window": ...}, "a window of text": {"window": "1"}, "a window that is true": {"window": True},
    "no versions": {"versions": {}}, "versions that are numbers": {"versions": {"jax": 1, "etrax": 2}},
    "no platforms": {"platforms": []}, "a platform of numbers": {"platforms": [3]}, "no rule": {"rule": None},
    "no bytes": {"bytes": {"program": 1}}, "bytes of text": {"bytes": "many"}, "arguments as a list": {"arguments": []},
    "no output": {"output": ...}, "an output too deep": {"output": nested(200)}, "an output of numbers": {"output": 3},
    "an output with more arrays": {"output": {"list": ["array"] * 5}}, "a format of text": {"format": "2"},
    "a format that is true": {"format": True}, "flops that are none": {"flops": float("nan")},
    "flops beyond all numbers": {"flops": 10**400}, "a window beyond all numbers": {"window": 10**400},
    "more fields": {"more": nested(150)}, "verdicts": {"verdicts": [1]},
    "leaves that are numbers": {"arguments": {part: [3] for part in PARTS}},
    "shapes below zero": {"arguments": {
        part: [{"path": "w", "shape": [-1], "dtype": "float32"}] for part in PARTS}},
    "fewer arguments": {"arguments": {part: [] for part in PARTS}},
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_manifests_that_lie(file, tmp_path, what):
    with pytest.raises(etrax.ArtifactError):
        etrax.load(resealed(file, tmp_path / "bad", **HOSTILE[what]))


def test_a_rule_whose_name_a_terminal_would_obey(file, tmp_path):
    artifact = etrax.load(resealed(file, tmp_path / "odd", rule="\x1b[2J\u202e\ud800"))
    assert repr(artifact).startswith(r"<Artifact: \x1b[2J\u202e\ud800, window 1")


def test_an_artifact_says_what_it_takes(file):
    shown = repr(etrax.load(file))
    assert f"; inputs float32[1, {B}, {I}]; targets float32[1, {B}" in shown and shown.startswith("<Artifact: d_rtrl()")


def test_programs_that_are_none(file, tmp_path):
    for program in (b"", b"hello", bytes(range(256)) * 8):
        with pytest.raises(etrax.ArtifactError, match="cannot read the program"):
            etrax.load(resealed(file, tmp_path / "bad", program))
    whole = zipfile.ZipFile(file).read("update.stablehlo")
    with pytest.raises(etrax.ArtifactError, match="calls back into Python"):
        etrax.load(resealed(file, tmp_path / "bad", whole + b"xla_ffi_python_cpu_callback"))


def test_every_flipped_byte_is_told(file, tmp_path):
    """One flip in each of many places, headers of the archive included: the right artifact, or one error."""
    data, path = file.read_bytes(), tmp_path / "bad"
    manifest, seen = etrax.load(file).manifest, 0
    rng = np.random.default_rng(0)
    places = {*rng.integers(0, len(data), 150).tolist(), *range(60), *range(len(data) - 180, len(data))}
    for place in sorted(places):
        changed = bytearray(data)
        changed[place] ^= int(rng.integers(1, 256))
        path.write_bytes(changed)
        try:
            assert etrax.load(path).manifest == manifest
        except etrax.ArtifactError:
            seen += 1
    assert seen > 150


def test_packed_members_are_refused_unread(file, tmp_path):
    """A gigabyte of zeros in a megabyte; and one that names no size at all."""
    path = tmp_path / "bomb"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", zipfile.ZipFile(file).read("manifest.json"))
        archive.writestr("update.stablehlo", bytes(64 << 20))
    with pytest.raises(etrax.ArtifactError, match=r"`manifest\.json` in it is packed"):
        etrax.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", zipfile.ZipFile(file).read("manifest.json"))
        archive.writestr("update.stablehlo", bytes(64 << 20), compress_type=zipfile.ZIP_BZIP2)
    tracemalloc.start()
    with pytest.raises(etrax.ArtifactError, match=r"`update\.stablehlo` in it is packed"):
        etrax.load(path)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", '{\n "format": 1,\n "versions": {}}')
        archive.writestr("update.stablehlo", b"program")
    with pytest.raises(etrax.ArtifactError, match=r"of format 1; this version of Etrax reads format 2\. Export it"):
        etrax.load(path)


def test_names_of_arrays(learner, file):
    """Parameters of other names are no parameters of this artifact, though their shapes fit; lists have no names."""
    artifact, (xs, ys) = etrax.load(file), stream(1)
    params, opt_state, state = learner.params, OPTIMIZER.init(learner.params), learner.init()
    right = artifact(params, opt_state, state, xs[0], ys[0])
    renamed = {"leak": params["leak"], "o": params["o"], "v": params["w"]}
    with pytest.raises(etrax.ArgumentError, match=r"`params` has 'v' where .* made with 'w'.*leaves\(params\)"):
        artifact(renamed, opt_state, state, xs[0], ys[0])
    with pytest.raises(etrax.ArgumentError, match=r"`opt_state` has '.*mu.v' where"):
        artifact(params, OPTIMIZER.init(renamed), state, xs[0], ys[0])
    with pytest.raises(etrax.ArgumentError, match=r"`state` has '.*' where"):
        artifact(params, opt_state, {str(i): a for i, a in enumerate(jax.tree.leaves(state))}, xs[0], ys[0])
    listed = artifact(*map(jax.tree.leaves, (renamed, opt_state, state)), xs[0], ys[0])
    same_bits(right, listed)


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


@pytest.fixture
def loss_of(learner, file):
    """The loss of one update as a function of a parameter and an input."""
    update, (xs, ys) = etrax.load(file), stream(1)
    rest = OPTIMIZER.init(learner.params), learner.init()
    return lambda w, x=xs[0]: update({**learner.params, "w": w}, *rest, x, ys[0])[3]


@pytest.mark.parametrize(
    "derivative",
    [
        lambda f, w, x: jax.grad(f)(w),
        lambda f, w, x: jax.grad(lambda x: f(w, x))(x),
        lambda f, w, x: jax.jit(jax.grad(f))(w),
        lambda f, w, x: jax.jvp(f, (w,), (w,)),
        lambda f, w, x: jax.vjp(f, w),
        lambda f, w, x: jax.hessian(f)(w),
        lambda f, w, x: jax.grad(jax.checkpoint(f))(w),
        lambda f, w, x: jax.vmap(jax.grad(f))(jnp.stack([w, w])),
        lambda f, w, x: jax.grad(lambda w: jax.lax.scan(lambda w, _: (w + f(w), None), w, None, 3)[0].sum())(w),
    ],
    ids=["grad", "input", "jit", "jvp", "vjp", "hessian", "remat", "vmap", "scan"],
)
def test_an_artifact_has_no_derivative(learner, loss_of, derivative):
    with pytest.raises(etrax.NotSupportedError, match=r"an update and no derivative of it.*stop_gradient"):
        derivative(loss_of, learner.params["w"], stream(1)[0][0])


def test_what_is_no_derivative_of_the_artifact_is_left_alone(learner, loss_of):
    w = learner.params["w"]
    value, grad = jax.value_and_grad(lambda w: (loss_of(jax.lax.stop_gradient(w)) * w).sum())(w)
    np.testing.assert_allclose(grad, np.full(w.shape, loss_of(w)), rtol=1e-6)
    np.testing.assert_allclose(value, loss_of(w) * w.sum(), rtol=1e-5)
    several = jax.vmap(lambda factor: factor * loss_of(w))(jnp.arange(3.0))
    np.testing.assert_allclose(several, np.arange(3) * loss_of(w), rtol=1e-6)


def test_an_artifact_has_its_own_shapes_under_vmap(learner, loss_of):
    w = jnp.stack([learner.params["w"], 2 * learner.params["w"]])
    with pytest.raises(etrax.NotSupportedError, match=r"jax\.vmap.*jax\.lax\.map"):
        jax.vmap(loss_of)(w)
    np.testing.assert_allclose(jax.lax.map(loss_of, w), [loss_of(w[0]), loss_of(w[1])], rtol=1e-6)


@pytest.mark.parametrize("window", [2**31, 99999999999999])
def test_windows_that_no_axis_can_have(learner, tmp_path, window):
    with pytest.raises(etrax.EtraxError, match=f"at most {2**31 - 1}"):
        learner.export(tmp_path / "long.etrax", OPTIMIZER, loss, window=window, target=TARGET)


def test_functions_over_a_learner_state_can_be_exported():
    w, h = jnp.ones((I, H)), jnp.zeros(H)
    learner = etrax.compile(lambda w, h, x: (0.9 * h + x @ w,) * 2, "d_rtrl", jnp.ones(I), params=w, hidden=h)
    run = jax.jit(lambda state, x: learner.step(w, state, x))
    state = learner.init()
    back = jax_export.deserialize(jax_export.export(run)(state, jnp.ones(I)).serialize())
    same_bits(back.call(state, jnp.ones(I)), run(state, jnp.ones(I)))
    assert type(back.call(state, jnp.ones(I))[0]) is etrax.LearnerState
