"""The same numbers under every setting of JAX that checks a program, and the same bits from the same seed."""

import hashlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import etrax

B, I, H, T = 2, 3, 4, 5
MASK = [1.0, 1.0, 0.0, 0.0, 1.0]


def gated(p, h, x):
    z = jax.nn.sigmoid(x @ p["wz"] + h @ p["u"] + p["b"])
    h = (1 - z) * h + z * jnp.tanh(x @ p["w"])
    return h, h @ p["out"]


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


spike.defjvp(lambda primals, tangents: (spike(primals[0]), tangents[0] / (1 + jnp.abs(primals[0])) ** 2))


def spiking(p, s, x):
    v = 0.9 * s["v"] + x @ p["w"] + s["z"] @ p["u"] - s["z"]
    z = spike(v - 1 - 0.1 * s["a"])
    return {"v": v, "a": 0.95 * s["a"] + z, "z": z}, z @ p["out"]


def leaky(p, h, x):
    """`d_rtrl` is exact for it."""
    h = jax.nn.sigmoid(p["b"]) * h + jnp.tanh(x @ p["w"])
    return h, h @ p["out"]


SHAPES = {"wz": (I, H), "w": (I, H), "u": (H, H), "b": (H,), "out": (H, 2)}
MODELS = {
    "gated": (gated, ("wz", "w", "u", "b", "out"), None),
    "leaky": (leaky, ("w", "b", "out"), None),
    "spiking": (spiking, ("w", "u", "out"), "vaz"),
}
RULES = {
    "tbptt": etrax.tbptt,
    "d_rtrl": etrax.d_rtrl,
    "pp_prop": etrax.pp_prop,
    "e_prop": lambda: etrax.e_prop(0.8),
    "random feedback": lambda: etrax.e_prop(feedback="random", key=0),
    "ostl": etrax.ostl,
    "snap": lambda: etrax.snap(1),
    "rtrl": etrax.rtrl,
    "uoro": lambda: etrax.uoro(0),
    "kf_rtrl": lambda: etrax.kf_rtrl(0),
    "ottt": lambda: etrax.ottt(0.9),
    "rflo": lambda: etrax.rflo(0.9),
    "three_factor": etrax.three_factor,
    "synthetic": etrax.synthetic,
}
MODES = {
    "debug_nans": lambda: jax.debug_nans(True),
    "disable_jit": jax.disable_jit,
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "tracer leaks": jax.checking_leaks,
    "x64 off": lambda: jax.enable_x64(False),
}
EXACT = [("gated", "rtrl"), ("leaky", "d_rtrl"), ("spiking", "rtrl")]
FAST = [("leaky", "d_rtrl"), ("leaky", "pp_prop")]
CELLS = [
    pytest.param(m, r, marks=[] if (m, r) in FAST else [pytest.mark.slow], id=f"{m}-{r}") for m in MODELS for r in RULES
]


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def problem(model):
    """Made of numpy numbers: arrays of the precision that is in force."""
    step, names, states = MODELS[model]
    rng = np.random.default_rng(1)
    params = {n: jnp.asarray(rng.standard_normal(SHAPES[n])) for n in names}
    hidden = {k: jnp.zeros((B, H)) for k in states} if states else jnp.zeros((B, H))
    xs, ys = jnp.asarray(rng.uniform(0, 1.5, (T, B, I))), jnp.asarray(rng.standard_normal((T, B, 2)))
    return step, params, hidden, xs, ys


def numbers(model, rule, window=2):
    """A gradient under a mask, by which one window counts for nothing, and a training run."""
    step, params, hidden, xs, ys = problem(model)
    learner = etrax.compile(step, RULES[rule](), xs[0], params=params, hidden=hidden)
    start, mask = learner.init(), jnp.asarray(MASK, xs.dtype)
    found, _ = learner.value_and_grad(loss, window)(params, start, xs, ys, mask)
    optimizer = optax.sgd(0.1, momentum=0.9)
    trained, _, _, losses = learner.train(optimizer, loss, window)(params, optimizer.init(params), start, xs, ys, mask)
    return jax.tree.map(np.asarray, (found, trained, losses))


def bptt(model):
    step, params, hidden, xs, ys = problem(model)

    def mean_loss(p):
        _, outputs = jax.lax.scan(lambda h, x: step(p, h, x), hidden, xs)
        return (jax.vmap(loss)(outputs, ys) * jnp.asarray(MASK)).sum() / sum(MASK)

    return jax.tree.map(np.asarray, jax.value_and_grad(mean_loss)(params))


def close(found, wanted, tolerance):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), found, wanted)


@pytest.fixture(scope="module")
def plain():
    """What each model and rule gives without any of the settings, made once."""
    made = {}

    def of(model, rule):
        if (model, rule) not in made:
            made[model, rule] = numbers(model, rule)
        return made[model, rule]

    return of


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("model", "rule"), CELLS)
def test_mode(plain, model, rule, mode):
    wanted = plain(model, rule)
    with MODES[mode]():
        found = numbers(model, rule)
    narrow = mode == "x64 off"
    assert {a.dtype for a in jax.tree.leaves(found)} == {np.dtype(np.float32 if narrow else np.float64)}
    close(found, wanted, 2e-4 if narrow else 1e-10)


@pytest.mark.parametrize(("model", "rule"), EXACT)
def test_right_without_any_mode(plain, model, rule):
    """What the modes are held against is itself held against reverse mode over the whole sequence."""
    close(plain(model, rule)[0], bptt(model), 1e-10)


@pytest.mark.parametrize("mode", ["debug_nans", "strict promotion"])
def test_mixed_precision(mode):
    """Half-precision weights beside a float32 state: the types are the model's own business, not the caller's."""

    def step(p, h, x):
        h = 0.5 * h + (x @ p["w"]).astype(jnp.float32)
        return h, h * p["gain"].astype(jnp.float32)

    def run():
        p = {"w": jnp.full((I, H), 0.5, jnp.bfloat16), "gain": jnp.ones((H,), jnp.bfloat16)}
        x, h = jnp.ones((T, B, I), jnp.bfloat16), jnp.zeros((B, H), jnp.float32)
        learner = etrax.compile(step, "d_rtrl", x[0], params=p, hidden=h)
        return learner.value_and_grad(lambda o, _: (o**2).mean(), window=2)(p, learner.init(), x, None)[0]

    wanted = run()
    with MODES[mode]():
        found = run()
    close(
        jax.tree.map(lambda a: np.asarray(a, np.float32), found),
        jax.tree.map(lambda a: np.asarray(a, np.float32), wanted),
        0,
    )


def test_a_loss_that_mixes_types_is_still_refused_under_strict_promotion():
    """The engine joins types as it must; the rules that the caller set hold for the caller's own functions."""
    step, params, hidden, xs, ys = problem("leaky")
    learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=hidden)
    mixed = lambda o, y: ((o - y.astype(jnp.float32)) ** 2).mean()
    with jax.numpy_dtype_promotion("strict"), pytest.raises(Exception, match="no available implicit dtype promotion"):
        learner.value_and_grad(mixed, 2)(params, learner.init(), xs, ys)


def test_count_of_a_stream_that_never_ends():
    """pp_prop divides by 1 − α^t, t a count of steps: past 2³¹ steps the gradient is that of any late step."""
    step, params, hidden, xs, ys = problem("gated")
    learner = etrax.compile(step, "pp_prop", xs[0], params=params, hidden=hidden)
    _, late = learner.value_and_grad(loss, 1)(params, learner.init(), xs, ys)
    at = lambda count: late._replace(trace=late.trace._replace(steps=jnp.asarray(count, jnp.int32)))
    gradient = lambda count: learner.value_and_grad(loss, 1)(params, at(count), xs, ys)[0]
    close(gradient(2**31 - 3), gradient(10_000), 1e-12)


SCRIPT = """
import jax
jax.config.update("jax_enable_x64", True)
from tests.trust.test_machine_rules import bits_of_a_run
print(bits_of_a_run())
"""


def bits_of_a_run():
    """Of a rule that draws numbers at every step."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(numbers("leaky", "uoro")):
        found.update(leaf.tobytes())
    return found.hexdigest()


def test_same_seed_same_bits():
    """In one process, compiled anew, and in another one."""
    first = bits_of_a_run()
    jax.clear_caches()
    assert bits_of_a_run() == first
    other = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert other.returncode == 0, other.stderr
    assert other.stdout.strip() == first
