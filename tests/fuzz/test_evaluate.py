"""The numpy evaluator gives what XLA gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz.claims import with_xla
from fuzz.evaluate import Evaluator
from fuzz.grammar import draw_model
from fuzz.oracle import bptt
from fuzz.spec import build
from jax import lax

A = np.random.RandomState(0).standard_normal((3, 4))
V = np.random.RandomState(1).standard_normal(4)

PROGRAMS = {
    "elementwise": lambda a: jnp.tanh(a) * jax.nn.sigmoid(a) + jnp.where(a > 0, jnp.exp(a), jnp.abs(a)) ** 3,
    "integers": lambda a: (a > 0).astype(int).sum(0) // 2 - 7 // (1 + (a > 0).astype(int)),
    "turned": lambda a: lax.reshape(a, (2, a.size // 2), (1, 0)),
    "shapes": lambda a: jnp.pad(a.T.reshape(2, 6)[:, ::-1], ((1, 0), (0, 2)))[:, ::2],
    "interior pad": lambda a: lax.pad(a, 0.5, ((1, -1, 1), (-1, 2, 0))),
    "products": lambda a: jnp.einsum("ij,kj,i->jk", a, a, a[:, 0]),
    "reductions": lambda a: (a.max(0), a.min(1), a.prod(), jnp.argmax(a, 1), (a > 0).any(0), a.mean()),
    "cumulative": lambda a: (jnp.cumsum(a, 0), jnp.cumprod(a, 1), lax.cumsum(a, 1, reverse=True)),
    "gather": lambda a: (a[jnp.array([2, 0]), jnp.array([1, 3])], a[:, jnp.array([[3, 1]])], jnp.take(a, 9, 0)),
    "scatter": lambda a: (a.at[jnp.array([0, 0]), 1].add(2.0), a.at[1, jnp.array([2, 3])].set(0.5)),
    "dynamic slices": lambda a: lax.dynamic_update_slice(a, lax.dynamic_slice(a, (5, 1), (1, 2)), (0, 9)),
    "scan": lambda a: lax.scan(lambda c, r: (0.5 * c + r, c.sum()), a[0], a, reverse=True),
    "empty scan": lambda a: lax.scan(lambda c, r: (c + r, r), a[0], a[:0]),
    "while": lambda a: lax.while_loop(lambda c: jnp.abs(c).max() > 0.1, lambda c: 0.5 * c, a),
    "cond": lambda a: lax.cond(a[0, 0] > 0, jnp.sin, jnp.cos, a),
    "switch": lambda a: lax.switch(5, [jnp.sin, jnp.cos], a),
    "narrow": lambda a: (a.astype(jnp.bfloat16) * 3).astype(float),
    "complex": lambda a: ((a + 1j) * jnp.conj(a - 2j)).real + jnp.abs(a * 1j),
    "random": lambda a: a + jax.random.normal(jax.random.key(3), a.shape),
    "sorted": lambda a: jnp.sort(a, 0),
    "convolution": lambda a: jnp.convolve(a[0], a[1]),
    "gradient": jax.grad(lambda a: (jnp.tanh(a @ V) ** 2).sum()),
    "vmap": jax.vmap(lambda r: lax.dynamic_slice(r, ((r[0] > 0).astype(int),), (2,))),
    "jacobian": jax.jacrev(lambda a: jax.nn.softmax(a, 0)[:, 0]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    got, want = Evaluator()(PROGRAMS[name], A), jax.jit(PROGRAMS[name])(A)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-14)


def test_one_trace_for_one_shape():
    traced = []

    def f(a):
        traced.append(a)
        return a.sum()

    run = Evaluator()
    assert run(f, A) == pytest.approx(A.sum()) and run(f, 2 * A) == pytest.approx(2 * A.sum()) and len(traced) == 1


def test_primitives_are_collected():
    run = Evaluator()
    run(PROGRAMS["scan"], A)
    assert {"scan", "mul", "add", "reduce_sum"} <= run.primitives


@pytest.mark.parametrize("seed", [3000, 3004])
def test_bptt_of_models(seed):
    built = build(draw_model(seed))
    f, args = bptt(built), (built.params, built.hidden, built.xs)
    got, want = Evaluator()(f, *args), with_xla(f, *args)
    for g, w in zip(jax.tree.leaves(got[:2]), jax.tree.leaves(want[:2]), strict=True):
        np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=1e-9, atol=1e-12)
