"""Columns of fused products that act on no state with a trace: they have none, and gradients are the same."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.learn.oracle import bptt, relative_error

import etrax
from etrax.compiler.ir import leaves_with_paths

B, I, H, T = 2, 3, 4, 7
SHAPES = {"w": (I, 4 * H), "k": (3, 1, 2 * H)}


def leak(x):
    return jax.nn.sigmoid(x.sum(-1, keepdims=True))


def lstm(order):
    """h is read by the output only, so that its verdict is exact."""

    def step(p, s, x):
        gate = dict(zip(order, jnp.split(x @ p["w"], 4, -1), strict=True))
        c = jax.nn.sigmoid(gate["f"]) * s["c"] + jax.nn.sigmoid(gate["i"]) * jnp.tanh(gate["g"])
        return {**s, "c": c, "h": jax.nn.sigmoid(gate["o"]) * jnp.tanh(c)}, s["h"]

    return step


def gate_of_the_output(p, s, x):
    y, gate, *_ = jnp.split(x @ p["w"], 4, -1)
    c = leak(x) * s["c"] + jnp.tanh(y)
    return {**s, "c": c}, c * jax.nn.sigmoid(gate)


def two_layers(p, s, x):
    a, b, gate, _ = jnp.split(x @ p["w"], 4, -1)
    c, h = leak(x) * s["c"] + jnp.tanh(a), leak(-x) * s["h"] + b**2
    return {**s, "c": c, "h": h}, c * gate + jnp.sin(h)


def some_units(p, s, x):
    y = (x @ p["w"])[:, : 2 * H]
    c = leak(x) * s["c"] + jnp.pad(jnp.tanh(y[:, 1 : 1 + H // 2]), ((0, 0), (0, H // 2)))
    return {**s, "c": c}, c * y[:, H:]


def one_sample(p, s, x):
    """A column that acts on the second sample alone."""
    y = jnp.tanh(x @ p["w"])[:, :H]
    mask = jnp.ones((B, H)).at[0, 0].set(0.0)
    c = leak(x) * s["c"] + mask * y
    return {**s, "c": c}, c


def every_other_column(p, s, x):
    """In more runs than are picked out: the trace has all columns."""
    wide = jnp.concatenate([p["w"], p["w"] ** 2], -1)
    c = leak(x) * s["c"] + (jnp.tanh(x @ wide)[:, ::2]).reshape(B, H, 4).sum(-1)
    return {**s, "c": c}, c


def weight_first(p, s, x):
    y = jnp.tanh(p["w"].T @ x[0])
    c = leak(x)[0] * s["c"][0] + y[2 * H : 3 * H]
    return {**s, "c": jnp.stack([c, s["c"][1]])}, c


def channels(p, s, x):
    """A convolution over H places, whose second half of channels no state sees."""
    image = jnp.concatenate([x, x[:, :1]], -1)[..., None]
    y = lax.conv_general_dilated(image, p["k"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    c = leak(x)[..., None] * s["m"] + jnp.tanh(y[..., :H])
    return {**s, "m": c}, c * y[..., H:]


# model, and the columns of its trace (of the first product)
MODELS = {
    "i f g o": (lstm("ifgo"), 3 * H),
    "o f i g": (lstm("ofig"), 3 * H),
    "i o f g": (lstm("iofg"), 3 * H),
    "gate of the output": (gate_of_the_output, H),
    "two layers": (two_layers, H),
    "some units": (some_units, H // 2),
    "one sample": (one_sample, H),
    "every other column": (every_other_column, 8 * H),
    "weight first": (weight_first, H),
    "channels": (channels, H),
}


def made(name):
    rng = np.random.default_rng(0)
    step, columns = MODELS[name]
    params = {k: jnp.asarray(rng.normal(size=s)) for k, s in SHAPES.items()}
    hidden = {"c": (B, H), "h": (B, H), "m": (B, H, H)}
    hidden = {k: jnp.asarray(0.1 * rng.normal(size=s)) for k, s in hidden.items()}
    inputs = (jnp.asarray(rng.normal(size=(T, B, I))),)
    loss = lambda output, target: (output**2).sum()
    return SimpleNamespace(step=step, params=params, hidden=hidden, inputs=inputs, loss=loss), columns


@pytest.mark.parametrize("name", MODELS)
def test_columns_without_a_trace(name):
    model, columns = made(name)
    learner = etrax.compile(model.step, "d_rtrl", model.inputs[0][0], params=model.params, hidden=model.hidden)
    used = "k" if name == "channels" else "w"
    assert learner.report.verdicts[used,].kind == "exact"
    first = jax.tree.leaves(learner.init().trace)[0]
    outputs = 0 if name == "weight first" else -1  # a trace lies in the order of its weight, which `p["w"].T` turns
    assert first.shape[outputs] == columns, first.shape
    targets = jnp.zeros(T)
    want = dict(leaves_with_paths(bptt(model, model.inputs, targets)))
    for window in (1, 3):
        run = learner.value_and_grad(model.loss, window=window)
        got = run(model.params, learner.init(), model.inputs, targets)[0][1]
        assert np.any(got[used])
        assert relative_error(got[used], want[used,]) < 1e-10, window


def test_the_report_says_so():
    model, _ = made("gate of the output")
    learner = etrax.compile(model.step, "d_rtrl", model.inputs[0][0], params=model.params, hidden=model.hidden)
    assert "12 of the 16 outputs of `dot_general`" in str(learner.report)
