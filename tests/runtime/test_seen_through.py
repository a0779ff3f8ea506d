"""Gradients at the exit of a window of one step: which ops have theirs there, and that it is the same gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz.evaluate import Evaluator
from jax import lax

import etrax

B, I, H, T = 2, 3, 4, 6
RNG = np.random.RandomState(0)


def normal(*shape):
    return jnp.asarray(0.6 * RNG.standard_normal(shape))


def gated(read):
    """A minimal gated unit; `read(params, old, drive, new)` is its output."""

    def step(p, h, x):
        z, c = jax.nn.sigmoid(x @ p["gate"] + p["b"]), x @ p["w"]
        new = (1 - z) * h + z * c
        return new, read(p, h, c, new)

    return step


def chain(p, s, x):
    g = 0.8 * s["g"] + x @ p["w"]
    v = 0.9 * s["v"] + 0.5 * g
    return {"g": g, "v": v}, v @ p["out"]


def pair(p, s, x):
    re = p["a"] * s["re"] - 0.3 * s["im"] + x @ p["w"]
    im = 0.3 * s["re"] + p["a"] * s["im"] + x @ p["gate"]
    return {"re": re, "im": im}, jnp.tanh(re + im**2) @ p["out"]


def recurrent(p, h, x):
    h = jnp.tanh(x @ p["w"] + h @ p["r"]) + 0.5 * h
    return h, h @ p["out"]


def stacked(p, s, x):
    low = 0.8 * s["low"] + x @ p["w"]
    top = p["a"] * s["top"] + jnp.tanh(low) @ p["r"]
    return {"low": low, "top": top}, top @ p["out"]


@jax.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.01, 0.01),))


def clipping(p, h, x):
    h = 0.9 * h + clipped(x @ p["w"])
    return h, h @ p["out"]


PARAMS = {
    "w": normal(I, H), "gate": normal(I, H), "b": normal(H), "a": 0.5 + 0.1 * normal(H), "r": normal(H, H),
    "out": normal(H, 2),
}  # fmt: skip
ONE = jnp.zeros((B, H))
# Step, states, and the parameters whose gradient is taken at the exit.
MODELS = {
    "reads the new state": (gated(lambda p, h, c, new: new @ p["out"]), ONE, {"w", "gate", "b"}),
    "reads the old state": (gated(lambda p, h, c, new: (new + h) @ p["out"]), ONE, set()),
    "reads an op": (gated(lambda p, h, c, new: (new + c) @ p["out"]), ONE, {"gate", "b"}),
    "reads the old state as a constant": (
        gated(lambda p, h, c, new: (new + lax.stop_gradient(h)) @ p["out"]), ONE, {"w", "gate", "b"},
    ),
    "a state made of another new one": (chain, {"g": ONE, "v": ONE}, set()),
    "two states side by side": (pair, {"re": ONE, "im": ONE}, {"w", "gate", "a"}),
    "a recurrent weight": (recurrent, ONE, set()),
    "under another layer": (stacked, {"low": ONE, "top": ONE}, {"r", "a"}),
    "a derivative that is not linear": (clipping, ONE, set()),
}  # fmt: skip


def loss(output, target):
    return jnp.sum((output - target) ** 2)


def learner_of(name, **options):
    step, hidden, _ = MODELS[name]
    rule = etrax.d_rtrl(hops=0)  # a hop has traces of a wider step, and takes all credit at the entry
    return etrax.compile(step, rule, normal(B, I), params=PARAMS, hidden=hidden, **options)


@pytest.mark.parametrize("name", MODELS)
def test_which_ops(name):
    program = learner_of(name).program
    sites = program.transport.fused.through_states().sites
    names = {n for j in sites for n in program.facts.params_of(j)}
    assert {n.removeprefix("params.").strip("'[]") for n in names} == MODELS[name][2]


@pytest.mark.parametrize("name", MODELS)
def test_gradient_is_that_of_bptt_where_it_is_exact(name):
    learner, (step, hidden, _) = learner_of(name), MODELS[name]
    inputs, targets = normal(T, B, I), normal(T, B, 2)

    def total(params):
        h, losses = hidden, 0.0
        for x, y in zip(inputs, targets, strict=True):
            h, output = step(params, h, x)
            losses += loss(output, y)
        return losses

    wanted = Evaluator()(jax.grad(total), PARAMS)
    gradient = learner.value_and_grad(loss, window=1, reduction="sum")
    (_, grads), _ = Evaluator()(gradient, PARAMS, learner.init(), inputs, targets)
    exact = [n for (n,), verdict in learner.report.verdicts.items() if verdict.kind == "exact"]
    assert set(exact) >= {*MODELS[name][2], "out"}
    for n in exact:
        np.testing.assert_allclose(grads[n], wanted[n], rtol=0, atol=1e-12 * np.abs(wanted[n]).max(), err_msg=n)


def test_resets_and_masks_within_it():
    """Lane by lane as separate sequences."""
    learner, (step, hidden, _) = learner_of("reads the new state"), MODELS["reads the new state"]
    inputs, targets = normal(T, B, I), normal(T, B, 2)
    reset = jnp.zeros((T, B), bool).at[2, 0].set(True).at[4, 1].set(True)
    mask = jnp.ones((T, B)).at[3, 1].set(0.0)

    def total(params):
        h, losses = hidden, 0.0
        for x, y, again, counts in zip(inputs, targets, reset, mask, strict=True):
            h, output = step(params, jnp.where(again[:, None], 0.0, h), x)
            losses += jnp.sum(counts[:, None] * (output - y) ** 2)
        return losses

    wanted = Evaluator()(jax.grad(total), PARAMS)
    f = learner.value_and_grad(loss, window=1, reduction="sum")
    (_, grads), _ = f(
        PARAMS, learner.init(), inputs, targets, mask, reset
    )  # compiled: lanes make a learner of their own
    for n in ("w", "gate", "b", "out"):
        np.testing.assert_allclose(grads[n], wanted[n], rtol=0, atol=1e-12 * np.abs(wanted[n]).max(), err_msg=n)


def test_a_coarse_trace_is_not_read_for_its_own_step():
    """What a trace rounds off would be missing from the gradient of the step itself."""
    program = learner_of("reads the new state", trace_dtype=jnp.bfloat16).program
    assert not program.transport.fused.through_states().sites


def test_longer_windows_take_credit_at_their_entry():
    learner = learner_of("reads the new state")
    inputs, targets = normal(T, B, I), normal(T, B, 2)
    grads = [
        Evaluator()(learner.value_and_grad(loss, window=k), PARAMS, learner.init(), inputs, targets)[0][1]
        for k in (1, 2, T)
    ]  # fmt: skip
    for n in ("w", "gate", "b", "out"):
        for other in grads[1:]:
            np.testing.assert_allclose(other[n], grads[0][n], rtol=1e-11, err_msg=n)
