"""Resets of a learner with states inside: those of sequences that `reset_state` stands between."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import etrax

T, B, I, H = 6, 2, 3, 4
RNG = np.random.RandomState(0)
XS, YS = (jnp.asarray(RNG.standard_normal((T, B, n))) for n in (I, H))
STEPS, LANES = np.arange(T) == 2, np.zeros((T, B), bool)
LANES[2, 0] = LANES[3, 1] = True


class Leaky(brainstate.nn.Module):
    """Its trace of the bias is equal for all lanes; what it has seen goes on when its state starts again."""

    def __init__(self):
        super().__init__()
        rng = np.random.RandomState(1)
        self.w = brainstate.ParamState(jnp.asarray(rng.standard_normal((I, H)) * 0.5))
        self.b = brainstate.ParamState(jnp.asarray(rng.standard_normal(H) * 0.5))
        self.h = brainstate.HiddenState(jnp.full((B, H), 0.3))
        self.seen = brainstate.LongTermState(jnp.zeros((B, H)))

    def update(self, x):
        self.h.value = 0.8 * self.h.value + x @ self.w.value + self.b.value
        self.seen.value = self.seen.value + 1.0
        return jnp.tanh(self.h.value)


def loss_of(online):
    return lambda x, y: ((online(x) - y) ** 2).mean()


def same(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), got, want)


@pytest.mark.parametrize("chunk", [None, 3])
def test_equals_sequences_with_a_reset_between(chunk):
    online = etrax.Stateful(Leaky(), "d_rtrl", XS[0])
    options = {"reduction": "sum"}
    flags = STEPS if chunk is None else np.arange(T) == 3
    at = int(np.argmax(flags))
    grads = online.etrace_grad(XS, YS, step_fn=_steps(online, chunk), chunk_size=chunk, reset=flags, **options)
    apart = etrax.Stateful(Leaky(), "d_rtrl", XS[0])
    one = apart.etrace_grad(XS[:at], YS[:at], step_fn=_steps(apart, chunk), chunk_size=chunk, **options)
    apart.reset_state()
    two = apart.etrace_grad(XS[at:], YS[at:], step_fn=_steps(apart, chunk), chunk_size=chunk, **options)
    same(grads, jax.tree.map(jnp.add, one, two))
    same(online.module.h.value, apart.module.h.value)
    assert online.module.seen.value[0, 0] == T  # what outlives a sequence goes on


def _steps(online, chunk):
    if chunk is None:
        return loss_of(online)
    return lambda x, y: ((online(etrax.MultiStepData(x)) - y) ** 2).mean((1, 2))


def test_lanes_are_those_of_the_pure_learner():
    online = etrax.Stateful(Leaky(), "d_rtrl", XS[0])
    grad = brainstate.transform.jit(
        lambda flags: online.etrace_grad(XS, YS, step_fn=loss_of(online), reset=flags, return_value=True)
    )
    grads, losses = grad(jnp.asarray(LANES))
    learner = etrax.compile(Leaky(), "d_rtrl", XS[0])
    run = learner.value_and_grad(lambda o, y: ((o - y) ** 2).mean(), window=1)
    (value, want), state = run(learner.params, learner.init(), XS, YS, None, jnp.asarray(LANES))
    same({k[-1]: v for k, v in grads.items()}, want)
    np.testing.assert_allclose(losses.mean(), value, rtol=1e-12)
    same(online.trace.value, state.trace)
    grads = online.etrace_grad(XS, YS, step_fn=loss_of(online))  # goes on without resets
    assert all(np.isfinite(g).all() for g in grads.values())


def test_nnx():
    cell = nnx.GRUCell(I, H, rngs=nnx.Rngs(0), dtype=jnp.float64, param_dtype=jnp.float64)
    online = etrax.Stateful(cell, "d_rtrl", XS[0], hidden=jnp.zeros((B, H)))
    step = lambda online, x, y: ((online(x) - y) ** 2).mean()
    grads = online.etrace_grad(XS, YS, step_fn=step, reset=LANES)
    learner = etrax.compile(cell, "d_rtrl", XS[0], hidden=jnp.zeros((B, H)))
    run = learner.value_and_grad(lambda o, y: ((o - y) ** 2).mean(), window=1)
    (_, want), _ = run(learner.params, learner.init(), XS, YS, None, LANES)
    same(jax.tree.leaves(grads), jax.tree.leaves(want))


def test_evolving_starts_again():
    online = etrax.Stateful(Leaky(), "pp_prop", jnp.abs(XS[0]))
    outs = online.etrace_evolve(jnp.abs(XS), return_outputs=True, reset=STEPS)
    apart = etrax.Stateful(Leaky(), "pp_prop", jnp.abs(XS[0]))
    want = apart.etrace_evolve(jnp.abs(XS[2:]), return_outputs=True)
    same((outs[2:], online.trace.value), (want, apart.trace.value))
