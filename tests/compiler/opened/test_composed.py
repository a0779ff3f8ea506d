"""Chains with parameters are one weight op each: outputs and dense Jacobians stay as they were; near misses stay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etrax.compiler.ir import trace_step
from etrax.compiler.opened import find_chains, find_sites, with_chains

DRAW = np.random.RandomState(0)
B, I, R, O, V = 3, 4, 2, 5, 7


def normal(*shape):
    return jnp.asarray(DRAW.standard_normal(shape))


def step_of(function, params, x):
    """A step that gives a function of parameters and an input, beside a state of its own."""
    return trace_step(lambda p, h, _, x: (0.5 * h, None, function(p, x)), params, jnp.zeros(2), (x,))


def split(p, x):
    low, rest = jnp.split(x @ p["a"], [1], axis=-1)
    return low @ p["b"], rest


def residual(p, x):
    return jnp.concatenate([x @ p["a"] - 0.5 * x, x[..., ::-1]], -1) @ p["b"]


def heads(p, x):
    return jnp.einsum("bnr,nro->nbo", jnp.einsum("bi,nir->bnr", x, p["a"]) / jnp.exp(p["s"]), p["b"])


def padded(p, x):
    return jnp.pad((x @ p["a"] + p["s"]).sum(1, keepdims=True), ((0, 0), (1, 0)), constant_values=2.0) @ p["b"]


def deviation(p, x):
    return (x * (jax.lax.rsqrt((x**2).mean(-1, keepdims=True)) * p["s"])) @ p["b"]


def token_norm(p, t):
    x = p["e"][t]
    return jax.nn.softmax(x * jax.lax.rsqrt((x**2).sum(-1, keepdims=True) + 0.1) @ p["b"])


LINES = (B, I)
# Of each chain: the function, shapes of the parameters, the input, and the shapes of the weights that are left.
CHAINS = {
    "two products": (lambda p, x: x @ p["a"] @ p["b"], {"a": (I, R), "b": (R, O)}, LINES, [(I, O)]),
    "of one sample": (lambda p, x: p["b"] @ (p["a"] @ x), {"a": (R, I), "b": (O, R)}, (I,), [(I, O)]),
    "three products": (
        lambda p, x: x @ p["a"] @ p["s"] @ p["b"], {"a": (I, R), "s": (R, 3), "b": (3, O)}, LINES, [(I, O)],
    ),
    "a scale": (lambda p, x: (x * p["s"]) @ p["b"], {"s": (I,), "b": (I, O)}, LINES, [(I, O)]),
    "a scale that is multiplied first": (deviation, {"s": (I,), "b": (I, O)}, LINES, [(I, O)]),
    "a bias": (lambda p, x: (x + p["s"]) @ p["b"], {"s": (I,), "b": (I, O)}, LINES, [(I, O), (1, O)]),
    "a part that is read elsewhere": (split, {"a": (I, 3), "b": (1, O)}, LINES, [(I, 3), (I, O)]),
    "data in several places": (residual, {"a": (I, I), "b": (2 * I, O)}, LINES, [(I, O)] * 3),
    "heads": (heads, {"a": (2, I, R), "s": (2, R), "b": (2, R, O)}, LINES, [(I, 2, O)]),
    "sum, bias and padding": (padded, {"a": (I, R), "s": (R,), "b": (2, O)}, LINES, [(I, O), (1, O)]),
    "a mask": (
        lambda p, x: jnp.where(jnp.arange(R) > 0, x @ p["a"], 1.0) @ p["b"],
        {"a": (I, R), "b": (R, O)}, LINES, [(I, O), (1, O)],
    ),
    "a scale for each sample": (lambda p, x: (p["s"] * x) @ p["b"], {"s": (B, 1), "b": (I, O)}, LINES, [(B, I, O)]),
    "a table": (lambda p, t: p["e"][t] @ p["b"], {"e": (V, I), "b": (I, O)}, V, [(V + 2, O)]),
    "a table, columns first": (lambda p, t: p["b"] @ p["e"][t].T, {"e": (V, I), "b": (O, I)}, V, [(V + 2, O)]),
    "a table, not linear": (token_norm, {"e": (V, I), "b": (I, O)}, V, [(V + 2, O)]),
    "a table, mapped": (
        lambda p, t: jax.vmap(lambda t: p["e"][t] @ p["b"])(t), {"e": (V, I), "b": (I, O)}, V, [(V, O)],
    ),
}  # fmt: skip


def example(shape):
    return normal(*shape) if isinstance(shape, tuple) else jnp.asarray([V - 1, 0, 3], jnp.int32)


def composed(function, shapes, x):
    params = {name: normal(*shape) for name, shape in shapes.items()}
    step = step_of(function, params, x)
    ordered, chains = find_chains(step, find_sites(step))
    return step, with_chains(ordered, chains), chains, [*jax.tree.leaves(params), jnp.ones(2), x]


@pytest.mark.parametrize("name", CHAINS)
def test_one_weight_op(name):
    function, shapes, x, weights = CHAINS[name]
    step, new, chains, leaves = composed(function, shapes, example(x))
    assert chains
    assert [site.call.w.shape for site in find_sites(new)] == weights
    assert all(site.params for site in find_sites(new))
    moving = [i for i, a in enumerate(leaves) if jnp.issubdtype(a.dtype, jnp.inexact)]

    def outputs(step):
        return lambda some: step.run([some[moving.index(i)] if i in moving else a for i, a in enumerate(leaves)])

    some = [leaves[i] for i in moving]
    for one in (lambda f: f(some), lambda f: jax.jacrev(f)(some)):
        was, now = (jax.tree.leaves(one(outputs(s))) for s in (step, new))
        for a, b in zip(was, now, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


MISSES = {
    "not linear between": (lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"], {"a": (I, R), "b": (R, O)}, LINES),
    "a product with data": (lambda p, x: (x[:, :R] * (x @ p["a"])) @ p["b"], {"a": (I, R), "b": (R, O)}, LINES),
    "divided by": (lambda p, x: (1 / (x @ p["a"])) @ p["b"], {"a": (I, R), "b": (R, O)}, LINES),
    "chosen by": (
        lambda p, x: jnp.where(x @ p["a"] > 0, 1.0, 2.0) @ p["b"] + x.sum(), {"a": (I, R), "b": (R, O)}, LINES,
    ),
    "stopped": (lambda p, x: jax.lax.stop_gradient(x @ p["a"]) @ p["b"], {"a": (I, R), "b": (R, O)}, LINES),
    "rounded": (
        lambda p, x: (x @ p["a"]).astype(jnp.bfloat16).astype(float) @ p["b"], {"a": (I, R), "b": (R, O)}, LINES,
    ),
    "rows that meet": (lambda p, t: (p["e"][t] - p["e"][t].max(0)) ** 2 @ p["b"], {"e": (V, I), "b": (I, O)}, V),
    "rows that are not alike": (
        lambda p, t: jnp.tanh(p["e"][t] * p["s"]) @ p["b"], {"e": (V, I), "s": (B, 1), "b": (I, O)}, V,
    ),
    "nothing in series": (lambda p, x: jnp.tanh(x @ p["a"]), {"a": (I, R)}, LINES),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_near_misses(name):
    function, shapes, x = MISSES[name]
    *_, chains, _ = composed(function, shapes, example(x))
    # Nothing holds a parameter of what lies before, which is the first of the names.
    assert not any(0 in chain.params for chain in chains)
