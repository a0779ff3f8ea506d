"""Which steps are steep: those with a slope that may be infinite at finite states, and no others."""

import jax
import jax.numpy as jnp
import pytest
from jax.scipy.special import xlogy

import etrax
from etrax.compiler.analysis import is_steep

FLAT = {
    **{name: getattr(jax.nn, name) for name in ("relu", "silu", "gelu", "softplus", "elu", "log_sigmoid", "mish")},
    "sigmoid, written out": lambda h: 1 / (1 + jnp.exp(-h)),
    "layer norm": lambda h: (h - h.mean()) * jax.lax.rsqrt(h.var() + 1e-5),
    "norm and a small number": lambda h: h / jnp.sqrt((h**2).sum() + 1e-6),
    "surrogate, squared": lambda h: h / (1 + 2 * jnp.abs(h)) ** 2,
    "surrogate, times itself": lambda h: h / ((1 + jnp.abs(h)) * (1 + jnp.abs(h))),
    "divided by a constant": lambda h: h / 3.0,
    "polynomial": lambda h: h**3 - 2 * h,
    "no derivative": lambda h: jnp.sqrt(jax.lax.stop_gradient(h)),
    "in a branch": lambda h: jax.lax.cond(h.sum() > 0, jnp.tanh, jnp.sin, h),
}
STEEP = {
    "sqrt": jnp.sqrt, "norm": jnp.linalg.norm, "log": jnp.log, "log1p": jnp.log1p, "xlogy": lambda h: xlogy(h, h),
    "power": lambda h: h**0.3, "reciprocal": lambda h: 1 / h, "cbrt": jnp.cbrt, "arccos": jnp.arccos,
    "arctanh": jnp.arctanh, "arctan2": lambda h: jnp.arctan2(h, h), "ratio": lambda h: h / (1 + h),
    "in a branch": lambda h: jax.lax.cond(h.sum() > 0, jnp.sqrt, jnp.sin, h),
    "in a loop": lambda h: jax.lax.scan(lambda c, _: (jnp.sqrt(c), None), h, None, 2)[0],
}  # fmt: skip


def facts_of(f):
    def step(p, h, x):
        h = jnp.exp(-1 / jax.nn.softplus(p["tau"])) * h + f(h) + (x @ p["w"]) / p["tau"] + jnp.sqrt(x)
        return h, h

    params = {"tau": jnp.ones(3), "w": jnp.ones((3, 3))}
    return etrax.compile(step, "tbptt", jnp.ones(3), params=params, hidden=jnp.zeros(3)).facts


@pytest.mark.parametrize("name", FLAT)
def test_flat(name):
    assert not is_steep(facts_of(FLAT[name]))


@pytest.mark.parametrize("name", STEEP)
def test_steep(name):
    assert is_steep(facts_of(STEEP[name]))


def test_a_state_that_no_parameter_reaches_makes_no_step_steep():
    def step(w, s, x):
        h, age = s
        return (0.9 * h + x * w * jnp.sqrt(age), age + 1), h

    zero = jnp.zeros(3)
    facts = etrax.compile(step, "tbptt", jnp.ones(3), params=zero, hidden=(zero, zero)).facts
    assert facts.unreached == {1}
    assert not is_steep(facts)
