"""Traces made small by what is known of D and F: their size, and that their gradients are those of BPTT.

Near misses (a leak that differs at one neuron, a gain for each neuron, a gate by neuron) must not be taken for more
than they are: their traces are larger, and exact as well.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.learn.cases import spike_jvp
from tests.learn.oracle import bptt, relative_error

import etrax

B, I, H, T = 2, 3, 4, 10
ONE_DIFFERS = np.array([0.9, 0.9, 0.8, 0.9])


def one_leak(p, h, x):
    h = 0.9 * h + x @ p["w"]
    return h, h


def learnable_leak(p, h, x):
    h = jax.nn.sigmoid(p["a"]) * h + x @ p["w"] + p["b"]
    return h, h


def leak_of_each(p, h, x):
    h = jax.nn.sigmoid(p["leaks"]) * h + x @ p["w"]
    return h, h


def leak_differs_at_one(p, h, x):
    h = ONE_DIFFERS * h + x @ p["w"]
    return h, h


def gate_of_sample(p, h, x):
    gate = jax.nn.sigmoid(x.sum(-1, keepdims=True))
    h = gate * h + (1 - gate) * (x @ p["w"])
    return h, jnp.sin(h)


def gate_of_neuron(p, h, x):
    gate = jax.nn.sigmoid(x[:, :1] * jnp.arange(1.0, H + 1))
    h = gate * h + x @ p["w"]
    return h, h


def gain_of_each(p, h, x):
    h = 0.9 * h + p["gain"] * (x @ p["w"])
    return h, h


def gains_of_two(p, s, x):
    """Two states are driven, by different gains: no one vector can be taken out."""
    y = x @ p["w"]
    return (0.9 * s[0] + p["gain"] * y, 0.8 * s[1] + 0.1 * s[0] + p["b"] * y), s[0] * s[1]


def gain_and_gate(p, h, x):
    """A leak of the sample changes in time, the gains do not."""
    h = jax.nn.sigmoid(x.sum(-1, keepdims=True)) * h + jnp.exp(p["gain"]) * (x @ p["w"])
    return h, jnp.sin(h)


def gain_by_sample(p, h, x):
    h = 0.9 * h + jnp.sin(x[:, :1]) * p["b"] * (x @ p["w"])
    return h, h


def gain_of_data(p, h, x):
    h = 0.9 * h + jnp.tanh(x @ p["w"])
    return h, h


def detached_reset(p, v, x):
    v = 0.9 * v + x @ p["w"] - lax.stop_gradient(spike_jvp(v - 0.3))
    return v, spike_jvp(v - 0.3)


def oscillator(p, s, x):
    a, b = s
    drive = x @ p["w"]
    return (0.9 * a - 0.3 * b + drive, 0.3 * a + 0.9 * b), a * b


def oscillators(p, s, x):
    a, b = s
    turn = jnp.cos(p["angle"]), jnp.sin(p["angle"])
    return (turn[0] * a - turn[1] * b + x @ p["w"], turn[1] * a + turn[0] * b), a * b


def oscillators_of_two(p, s, x):
    """A complex number written as two real ones: what drives b is what drives a, turned by a right angle."""
    a, b = s
    turn = jnp.cos(p["angle"]), jnp.sin(p["angle"])
    return (turn[0] * a - turn[1] * b + x @ p["w"], turn[1] * a + turn[0] * b + x @ p["u"]), a * b


def other_data(p, s, x):
    a, b = s
    turn = jnp.cos(p["angle"]), jnp.sin(p["angle"])
    return (turn[0] * a - turn[1] * b + x @ p["w"], turn[1] * a + turn[0] * b + jnp.sin(x) @ p["u"]), a * b


def no_rotation(p, s, x):
    a, b = s
    turn = jnp.cos(p["angle"]), jnp.sin(p["angle"])
    return (turn[0] * a + turn[1] * b + x @ p["w"], turn[1] * a + 0.9 * turn[0] * b + x @ p["u"]), a * b


def other_gains(p, s, x):
    a, b = s
    turn = jnp.cos(p["angle"]), jnp.sin(p["angle"])
    return (turn[0] * a - turn[1] * b + x @ p["w"], turn[1] * a + turn[0] * b + 0.5 * (x @ p["u"])), a * b


def heads(p, h, x):
    h = 0.9 * h + jnp.einsum("bi,ihd->bhd", x, p["w3"])
    return h, h


def leak_of_head(p, h, x):
    leak = jax.nn.sigmoid(p["two"])[:, None]
    h = leak * h + jnp.einsum("bi,ihd->bhd", x, p["w3"])
    return h, h


def lru(p, h, x):
    lam = jnp.exp(-jnp.exp(p["leaks"]) + 1j * p["angle"])
    h = lam * h + p["gain"] * (x @ p["w"] + 1j * (x @ p["u"]))
    return h, h.real @ p["c"] - h.imag @ p["c"]


def no_memory(p, h, x):
    return jnp.tanh(x @ p["w"]), jnp.sin(h)


def two_groups(p, s, x):
    """One op drives a group with one leak and a group with a gate of its own."""
    y = x @ p["w"]
    a = 0.9 * s["a"] + y
    b = jax.nn.sigmoid(s["b"]) * s["b"] + y
    return {"a": a, "b": b}, a * b


def recurrent_op_in_a_loop(p, h, x):
    """F has an axis for the loop, which D has not: nothing is said of such traces, and they are whole."""
    h, _ = lax.scan(lambda y, g: (0.9 * y + (y[:, :I] * g) @ p["w"], None), h + x[:, :1], jnp.arange(1.0, 3.0))
    return h, h


def steep_at_zero(p, s, x):
    """One leak for all at the first state; what the second reads of it has an infinite slope at zero."""
    a = 0.9 * s["a"] + p["gain"] * (x @ p["w"])
    return {"a": a, "b": 0.5 * s["b"] + jnp.sqrt(jnp.abs(s["a"]))}, s["b"]


def test_a_fixed_block_does_not_depend_on_what_stands_for_the_states():
    xs = jnp.asarray(np.random.default_rng(1).normal(size=(T, B, I)))
    params, hidden = {n: PARAMS[n] for n in ("w", "gain")}, {"a": 0.5 + vector(H), "b": vector(H)}
    learner = etrax.compile(steep_at_zero, "d_rtrl", xs[0], params=params, hidden=hidden)
    assert all(v.kind == "exact" for v in learner.report.verdicts.values())
    (_, got), _ = learner.value_and_grad(loss, window=3)(params, learner.init(), xs, jnp.ones((T, B, H)))
    model = SimpleNamespace(step=steep_at_zero, params=params, hidden=hidden, loss=loss)
    want = bptt(model, (xs,), jnp.ones((T, B, H)))
    assert all(relative_error(got[n], want[n]) < 1e-12 for n in params)


def vector(*shape):
    return jnp.zeros((B, *shape))


NUMBERS = np.random.default_rng(0)
PARAMS = {
    "w": (I, H), "u": (I, H), "c": (H, 2), "b": (H,), "a": (), "leaks": (H,), "gain": (H,), "angle": (H,),
    "w3": (I, 2, H), "two": (2,),
}  # fmt: skip
PARAMS = {name: jnp.asarray(NUMBERS.normal(size=shape)) for name, shape in PARAMS.items()}
PAIR = (vector(H), vector(H))
# Model, parameters, states, and how many numbers its trace has.
MODELS = {
    "one_leak": (one_leak, "w", vector(H), B * I),
    "learnable_leak": (learnable_leak, "w a b", vector(H), B * I + B * H + 1),
    "leak_of_each": (leak_of_each, "w leaks", vector(H), B * I * H + B * H),
    "leak_differs_at_one": (leak_differs_at_one, "w", vector(H), B * I * H),
    "gate_of_sample": (gate_of_sample, "w", vector(H), B * I),
    "gate_of_neuron": (gate_of_neuron, "w", vector(H), B * I * H),
    "gain_of_each": (gain_of_each, "w gain", vector(H), B * I + B * H),
    "gains_of_two": (gains_of_two, "w gain b", PAIR, 2 * B * I * H + 3 * B * H),
    "gain_and_gate": (gain_and_gate, "w gain", vector(H), B * I + B * H),
    "gain_by_sample": (gain_by_sample, "w b", vector(H), B * I * H + B * H),
    "gain_of_data": (gain_of_data, "w", vector(H), B * I * H),
    "detached_reset": (detached_reset, "w", vector(H), B * I),
    "oscillator": (oscillator, "w", PAIR, 2 * B * I),
    "oscillators": (oscillators, "w angle", PAIR, 2 * B * I * H + 4 * B * H),
    "heads": (heads, "w3", vector(2, H), B * I),
    "leak_of_head": (leak_of_head, "w3 two", vector(2, H), B * I * 2 + B * 2 * H),
    "lru": (lru, "w u c leaks angle gain", vector(H).astype(complex), 2 * B * I * H + 4 * B * H),
    "oscillators_of_two": (oscillators_of_two, "w u angle", PAIR, 2 * B * I * H + 4 * B * H),
    "other_data": (other_data, "w u angle", PAIR, 4 * B * I * H + 4 * B * H),
    "no_rotation": (no_rotation, "w u angle", PAIR, 4 * B * I * H + 8 * B * H),
    "other_gains": (other_gains, "w u angle", PAIR, 4 * B * I * H + 4 * B * H),
    "no_memory": (no_memory, "w", vector(H), B * I + B * H),
    "two_groups": (two_groups, "w", {"a": vector(H), "b": vector(H)}, B * I + B * I * H),
}


def compiled(name):
    step, names, hidden, size = MODELS[name]
    params = {n: PARAMS[n] for n in names.split()}
    rng = np.random.default_rng(1)
    xs = jnp.asarray(rng.normal(size=(T, B, I)))
    output = jax.eval_shape(step, params, hidden, xs[0])[1]
    targets = jnp.asarray(rng.normal(size=(T, *output.shape)))
    learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=hidden)
    return learner, params, hidden, xs, targets, size


def loss(output, target):
    return ((output - target) ** 2).mean() + (jnp.sin(output) * target).mean()


@pytest.mark.fast_seconds(20)
@pytest.mark.parametrize("name", MODELS)
def test_numbers_in_the_trace(name):
    learner, *_, size = compiled(name)
    assert sum(a.size for a in jax.tree.leaves(jax.eval_shape(learner.init).trace)) == size


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_that_of_bptt(name):
    learner, params, hidden, xs, targets, _ = compiled(name)
    assert all(v.kind == "exact" for v in learner.report.verdicts.values())
    model = SimpleNamespace(step=MODELS[name][0], params=params, hidden=hidden, loss=loss)
    want = bptt(model, (xs,), targets)
    for window in (1, 3, 7):
        run = jax.jit(learner.value_and_grad(loss, window=window))
        (_, got), _ = run(params, learner.init(params, hidden), xs, targets)
        for path, g in got.items():
            assert relative_error(g, want[path]) < 1e-12, (window, path)


def test_an_op_in_a_loop_with_fixed_blocks_around_it():
    xs = jnp.asarray(np.random.default_rng(1).normal(size=(T, B, I)))
    params, hidden = {"w": 0.1 * PARAMS["w"]}, vector(H)
    learner = etrax.compile(recurrent_op_in_a_loop, "d_rtrl", xs[0], params=params, hidden=hidden)
    (_, got), _ = learner.value_and_grad(loss, window=T)(params, learner.init(), xs, jnp.ones((T, B, H)))
    model = SimpleNamespace(step=recurrent_op_in_a_loop, params=params, hidden=hidden, loss=loss)
    assert relative_error(got["w"], bptt(model, (xs,), jnp.ones((T, B, H)))["w"]) < 1e-12
