"""Options of `d_rtrl` that nobody meant, and the memory that its traces are said to take."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax

ANYTHING = st.one_of(
    st.integers(-3, 3), st.integers(), st.just(10**400), st.just(-(10**400)), st.floats(), st.booleans(), st.text(),
    st.none(), st.lists(st.integers()), st.binary(), st.sampled_from([0.0, np.int64(0), np.float32(2), np.arange(2)]),
)  # fmt: skip


@hypothesis.settings(max_examples=200, deadline=None, derandomize=True, database=None)
@hypothesis.given(name=st.sampled_from(["fan_out", "hops"]), value=ANYTHING)
def test_options_are_taken_or_explained(name, value):
    try:
        rule = etrax.d_rtrl(**{name: value})
    except etrax.EtraxError as error:
        assert f"`{name}` is" in str(error) and "expected" in str(error) and len(str(error)) < 300
    else:
        assert isinstance(rule, etrax.Rule) and rule.name == "d_rtrl"
        if name == "hops":
            assert value is None or value in (0, 1)


@pytest.mark.parametrize("value", [-1, 2, True, 0.5, "1", 10**400, [1]])
def test_hops_that_there_are_not(value):
    with pytest.raises(etrax.EtraxError, match=r"`hops` is .*expected 0, 1, or None"):
        etrax.d_rtrl(hops=value)


@pytest.mark.parametrize("value", [-1, True, "a lot", "0 MB", "-2 GB", float("nan"), float("inf"), 10**400, [1]])
def test_pairs_that_there_are_not(value):
    with pytest.raises(etrax.EtraxError, match=r"`fan_out` is .*expected a number of bytes"):
        etrax.d_rtrl(fan_out=value)


def test_no_pairs_in_any_number():
    for none in (0.0, np.int64(0)):
        assert etrax.d_rtrl(fan_out=none, hops=np.int32(1)) == etrax.d_rtrl(fan_out=0, hops=1)


B, I, H = 8, 24, 32


def hop(p, s, x):
    v = jax.nn.sigmoid(s["v"]) * s["v"] + x @ p["w"]
    r = 0.9 * s["r"] + jnp.tanh(v) @ p["out"]
    return {"v": v, "r": r}, r


def narrow(p, v, x):
    v = 0.9 * v + x @ p["w"]
    return v, jnp.tanh(v) @ p["out"]


def fan_out(p, s, x):
    """A gate for each of several states at four positions: one output reaches them all."""
    gate = jax.nn.sigmoid(x @ p["gate"])[..., None]
    s = gate * s + (x @ p["w"]).reshape(B, 8, 4)
    return s, s.reshape(B, H) @ p["out"]


def momentary(p, s, x):
    f, o = jnp.split(x @ p["two"], 2, -1)
    c = jax.nn.sigmoid(f) * s["c"] + f
    return {"c": c, "h": o * jnp.tanh(c)}, s["h"] @ p["out"]


SHAPES = {"w": (I, H), "out": (H, 4), "gate": (I, 8), "two": (I, 2 * H)}
STATES = {
    hop: {"v": (B, H), "r": (B, 4)}, narrow: (B, H), fan_out: (B, 8, 4), momentary: {"c": (B, H), "h": (B, H)}
}  # fmt: skip


@pytest.mark.parametrize("step", STATES, ids=lambda f: f.__name__)
def test_memory_is_what_is_allocated(step):
    params = {name: jnp.ones(shape) for name, shape in SHAPES.items()}
    hidden = jax.tree.map(jnp.zeros, STATES[step], is_leaf=lambda a: isinstance(a, tuple))
    learner = etrax.compile(step, "d_rtrl", jnp.ones((B, I)), params=params, hidden=hidden)
    state, x = learner.init(), jnp.ones((12, B, I))
    found = learner.memory(window=4, steps=12)
    held = sum(a.nbytes for a in jax.tree.leaves(state.trace))
    assert found.trace == held == learner.report.memory["d_rtrl"]
    run = jax.jit(learner.value_and_grad(lambda o, t: (o**2).mean(), window=4))
    planned = run.lower(params, state, x).compile().memory_analysis()
    peak = planned.argument_size_in_bytes + planned.output_size_in_bytes + planned.temp_size_in_bytes
    assert found.peak == pytest.approx(peak, rel=0.1)


def test_a_large_trace_has_longer_windows():
    """Moving it once a window takes the time of many steps."""

    def window(step, params, size):
        params = jax.tree.map(
            lambda shape: jnp.ones(shape, jnp.float32), params, is_leaf=lambda a: isinstance(a, tuple)
        )
        x, h = jnp.ones((1, size), jnp.float32), jnp.zeros((1, size), jnp.float32)
        learner = etrax.compile(step, "d_rtrl", x, params=params, hidden=h)
        return learner.value_and_grad(lambda o, t: (o**2).mean(), window="auto").window

    def gated(p, v, x):
        v = jax.nn.sigmoid(v) * v + x @ p["w"]
        return v, v

    assert window(narrow, {"w": (512, 512), "out": (512, 1)}, 512) == 64
    assert 64 < window(gated, {"w": (1024, 1024)}, 1024) <= 1024


def mean_of_a_layer(p, s, x):
    v = 0.9 * s["v"] + x @ p["w"]
    return {"v": v, "m": 0.9 * s["m"] + v.mean(-1)}, s["m"]


def narrow_on_the_way(p, s, x):
    v = 0.9 * s["v"] + (x @ p["w"]).astype(jnp.bfloat16).astype(x.dtype)
    return {"v": v}, v


def test_reasons_name_what_is_not_carried_and_its_line():
    def reason(step, hidden):
        params = {"w": jnp.ones((I, H))}
        learner = etrax.compile(step, "d_rtrl", jnp.ones((B, I)), params=params, hidden=hidden)
        return learner.report.verdicts["w",].reason

    v = jnp.zeros((B, H))
    line = mean_of_a_layer.__code__.co_firstlineno + 2
    found = reason(mean_of_a_layer, {"v": v, "m": jnp.zeros(B)})
    assert f"state 'v' acts on state 'm' of another group (`add` at test_d_rtrl.py:{line}" in found
    line = narrow_on_the_way.__code__.co_firstlineno + 1
    found = reason(narrow_on_the_way, {"v": v})
    assert f"the derivative at `convert_element_type` at test_d_rtrl.py:{line}" in found and "bfloat16" in found
