"""Where weight ops are found: inside branches, loops, calls; how they are addressed, and what is read off them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from etrax.compiler.analysis import OpNode, analyse
from etrax.compiler.ir import Role, trace_step
from etrax.compiler.opened import OpenStep
from etrax.compiler.ops import OpRule, register_weight_op
from etrax.compiler.ops._base import _RULES

W, V, A = jnp.arange(12.0).reshape(3, 4) / 10, -jnp.arange(12.0).reshape(3, 4) / 7, jnp.linspace(0.1, 0.9, 4)
H, X, XS = jnp.ones((2, 4)), jnp.linspace(-1, 1, 6).reshape(2, 3), jnp.linspace(-2, 1, 30).reshape(5, 2, 3)


def trace(step, params, x=X, hidden=H):
    fn = lambda p, h, o, x: (lambda r: (r, o, r))(step(p, h, x))
    return trace_step(fn, params, hidden, (x,))


def sites(step, params, x=X):
    """(primitive, family, lengths of loops, those that slice the weight, parameters) of every site."""
    facts = analyse(trace(step, params, x))
    names = [leaf.path[0] for leaf in facts.step.select(Role.PARAM)]
    return [
        (
            s.call.primitive,
            s.rule.name,
            tuple(n for _, n in s.loops),
            s.slices,
            "".join(names[p] for p in sorted(s.params)),
        )
        for s in facts.sites
    ]


FOUND = {
    "plain": (lambda p, h, x: 0.9 * h + x @ p["w"], X, [("dot_general", "matmul", (), (), "w")]),
    "mixed weight": (lambda p, h, x: h + x @ (p["w"] * p["a"]), X, [("dot_general", "matmul", (), (), "aw")]),
    "cond": (
        lambda p, h, x: lax.cond(x[0, 0] > 0, lambda: h + x @ p["w"], lambda: p["a"] * h),
        X,
        [("mul", "elementwise", (), (), "a"), ("dot_general", "matmul", (), (), "w")],
    ),
    "switch": (
        lambda p, h, x: lax.switch(jnp.argmax(x[0]), [lambda: h, lambda: h + x @ p["w"], lambda: h + p["a"]]),
        X,
        [("dot_general", "matmul", (), (), "w"), ("add", "elementwise", (), (), "a")],
    ),
    "a weight in one branch, data in the other": (
        lambda p, h, x: 0.9 * h + lax.cond(x[0, 0] > 0, lambda: p["a"], lambda: h[0]),
        X,
        [("cond", "elementwise", (), (), "a")],
    ),
    "a weight in one of nested branches": (
        lambda p, h, x: (
            h + lax.cond(x[0, 0] > 0, lambda: h[0], lambda: lax.cond(x[0, 1] > 0, lambda: p["a"], lambda: h[1]))
        ),
        X,
        [("cond", "elementwise", (), (), "a")],
    ),
    "a loop that puts a weight in the place of data": (
        lambda p, h, x: lax.scan(lambda c, t: (p["a"], c * t.sum()), h[0], x)[1].sum(0) + 0.9 * h,
        XS,
        [("scan", "elementwise", (), (), "a")],
    ),
    "scan": (
        lambda p, h, x: lax.scan(lambda h, t: (0.9 * h + t @ p["w"], None), h, x)[0],
        XS,
        [("dot_general", "matmul", (5,), (), "w")],
    ),
    "fori": (
        lambda p, h, x: lax.fori_loop(0, 3, lambda i, h: 0.9 * h + x @ p["w"], h),
        X,
        [("dot_general", "matmul", (3,), (), "w")],
    ),
    "scan in scan": (
        lambda p, h, x: lax.scan(lambda h, t: (lax.fori_loop(0, 3, lambda i, h: h + t @ p["w"], h), None), h, x)[0],
        XS,
        [("dot_general", "matmul", (5, 3), (), "w")],
    ),
    "scan in jit in cond": (
        lambda p, h, x: lax.cond(
            x[0, 0, 0] > 0, jax.jit(lambda: lax.scan(lambda h, t: (h + t @ p["w"], None), h, x)[0]), lambda: h
        ),
        XS,
        [("dot_general", "matmul", (5,), (), "w")],
    ),
    "product before the loop": (
        lambda p, h, x: lax.scan(lambda h, t: (0.9 * h + t, None), h, x @ p["w"])[0],
        XS,
        [("dot_general", "matmul", (), (), "w")],
    ),
    "weights scanned": (
        lambda p, h, x: lax.scan(lambda h, b: (0.9 * h + b * x[0, 0], None), h, p["w"])[0],
        X,
        [("mul", "elementwise", (3,), (3,), "w")],
    ),
    "weight leaves the branch": (
        lambda p, h, x: h * lax.cond(x[0, 0] > 0, lambda: p["a"], lambda: 2 * p["a"]),
        X,
        [("cond", "elementwise", (), (), "a")],
    ),
    "weight made in a loop": (
        lambda p, h, x: h + x @ lax.fori_loop(0, 3, lambda i, w: 0.5 * w, p["w"]),
        X,
        [("dot_general", "matmul", (), (), "w")],
    ),
    "weight leaves the loop": (
        lambda p, h, x: h + lax.scan(lambda c, t: (c * p["a"], c + t[0, 0]), A, x)[0],
        XS,
        [("add", "elementwise", (5,), (5,), "a"), ("add", "elementwise", (), (), "a")],
    ),
    "carry replaced": (
        lambda p, h, x: lax.scan(lambda c, t: (jnp.tile(p["a"], (2, 1)), None), h, x)[0] + h,
        XS,
        [("scan", "elementwise", (), (), "a")],
    ),
    "new state": (lambda p, h, x: jnp.tile(p["a"], (2, 1)), X, [("output", "elementwise", (), (), "a")] * 2),
    "stopped": (lambda p, h, x: h + x @ lax.stop_gradient(p["w"]), X, []),
    "compared": (lambda p, h, x: jnp.where(p["a"] > 0.5, h, x[0, 0]), X, []),
}


@pytest.mark.parametrize("name", FOUND)
def test_sites(name):
    step, x, expected = FOUND[name]
    assert sites(step, {"w": W, "a": A}, x) == expected


@pytest.mark.parametrize("name", [n for n in FOUND if FOUND[n][2]])
def test_opening_a_step_changes_nothing(name):
    """With zero perturbations, and with weights passed in, an opened step computes what the step does."""
    step, x, _ = FOUND[name]
    traced = trace(step, {"w": W, "a": A}, x)
    facts = analyse(traced)
    leaves = [A, W, H, x]
    deltas = OpenStep(traced, facts.sites, facts.cut).no_deltas(range(len(facts.sites)))
    for cut in (frozenset(), facts.cut):
        outs, seen = jax.jit(lambda d, cut=cut: OpenStep(traced, facts.sites, cut)(leaves, d))(deltas)
        np.testing.assert_allclose(outs[0], step({"w": W, "a": A}, H, x), rtol=1e-12)
        assert set(seen) == set(range(len(facts.sites)))
        for j, s in enumerate(facts.sites):
            assert seen[j][0].shape == s.y_shape


def test_a_perturbation_adds_to_the_op():
    step = lambda p, h, x: lax.scan(lambda h, t: (0.5 * h + t @ p["w"], None), h, x)[0]
    traced = trace(step, {"w": W}, XS)
    facts = analyse(traced)
    delta = jnp.asarray(np.random.RandomState(0).standard_normal((5, 2, 4)))
    (out, _), _ = OpenStep(traced, facts.sites, facts.cut)([W, H, XS], {0: delta})
    expected = H
    for t in range(5):
        expected = 0.5 * expected + XS[t] @ W + delta[t]
    np.testing.assert_allclose(out, expected)


def test_two_weights_of_one_registered_op():
    """Each perturbation counts where one op has several weights of a family of its own."""
    before = {name: list(rules) for name, rules in _RULES.items()}
    rule = OpRule("mine", True, lambda call: True, lambda call: call.out.shape, None, None, None, None)
    register_weight_op("clamp", rule)
    try:
        traced = trace(lambda p, h, x: h + lax.clamp(p["a"], x[0, 0] * jnp.ones(4), p["b"]), {"a": A - 2, "b": A + 2})
        facts = analyse(traced)
        assert [s.rule.name for s in facts.sites] == ["mine", "mine"]
        total = lambda deltas: OpenStep(traced, facts.sites, facts.cut)([A - 2, A + 2, H, X], deltas)[0][0].sum()
        for grad in jax.grad(total)({0: jnp.zeros(4), 1: jnp.zeros(4)}).values():
            np.testing.assert_allclose(grad, 2.0)
        assert {OpNode(0), OpNode(1)} <= {source for source, _ in facts.edges.dep}
    finally:
        _RULES.clear()
        _RULES.update(before)
