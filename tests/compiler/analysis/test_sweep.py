"""Reverse mode equation by equation finds what one transpose of the whole step finds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.compiler.primitives.oracle import as_matrix

from etrax._compat import is_inexact
from etrax.compiler.analysis import OpNode, OutputNode, StateNode, analyse
from etrax.compiler.analysis._edges import reach_edges
from etrax.compiler.dataflow import reach_through
from etrax.compiler.ir import Role
from etrax.compiler.opened import OpenStep
from etrax.compiler.primitives import TABLE
from etrax.frontends import bind_function

from . import models_flow, models_weights  # noqa: F401  (they fill the table)
from .oracle import step_of
from .small import MODELS


def whole(step, sites, cut, observed):
    """Edges and problems read off the transpose of the whole step."""
    opened = OpenStep(step, tuple(sites), cut)
    states, observed = step.states, sorted(observed)
    diff = [i for i, leaf in enumerate(states) if is_inexact(leaf.aval)]
    outputs = [k for k, leaf in enumerate(step.select(Role.OUTPUT)) if is_inexact(leaf.aval)]

    def run(moving, leaves):
        old, deltas = dict(zip(diff, moving, strict=False)), dict(enumerate(moving[len(diff) :]))
        outs, seen = opened(leaves, deltas, states=old)
        return [outs[i] for i in diff] + [outs[len(states) + k] for k in outputs] + [seen[j].y for j in observed]

    origins = [*map(StateNode, diff), *map(OpNode, range(len(sites)))]
    targets = [*map(StateNode, diff), *map(OutputNode, outputs), *map(OpNode, observed)]
    moving = [*(states[i].aval for i in diff), *(s.y_struct for s in sites)]
    rows, problems = reach_through(run, moving, [leaf.aval for leaf in step.ins], targets)
    found = {(o, t): d for o, row in zip(origins, rows, strict=True) for t, d in row.items()}
    return {pair: dep for pair, dep in found.items() if any((m >= 0).any() for m in dep.maps)}, problems


def check_same(step):
    facts = analyse(step)
    every = frozenset(range(len(facts.sites)))
    for cut, observed in ((facts.cut, facts.cut), (frozenset(), frozenset()), (facts.cut, every)):
        expected, problems = whole(step, facts.sites, cut, observed)
        edges = reach_edges(step, facts.sites, cut, observed)
        assert set(edges.dep) == set(expected)
        for (_, target), dep in expected.items():
            found = edges.dep[_, target]
            size, n = dep.part.size, int(np.prod(dep.shape, dtype=int))
            np.testing.assert_array_equal(as_matrix(found, n, size), as_matrix(dep, n, size))
            assert (found.cause is None) == (dep.cause is None)
            assert found.cause is None or str(found.cause) == str(dep.cause)
        shown = lambda problems: {(str(p.cause), p.text, p.sources, p.precision) for p in problems}
        assert shown(edges.problems) == shown(problems)


@pytest.mark.parametrize("name", MODELS)
def test_small_models(name):
    check_same(step_of(MODELS[name][0]))


W, H, X = jnp.ones((3, 4)), jnp.linspace(0.1, 1.0, 4), jnp.ones(3)


@jax.custom_vjp
def affine_rule(h):
    return 2 * h


affine_rule.defvjp(lambda h: (2 * h, None), lambda _, ct: (ct + 0.1,))


def zero_and_loop(p, h, x):
    """A loop whose values come through a primitive without derivative is never transposed."""
    n = lax.while_loop(lambda c: c.sum() < 5, lambda c: c + 1, jnp.floor(h))
    new = 0.9 * h + n + x @ p
    return new, new


def rule_behind_zero(p, h, x):
    """A rule that is not linear, where no gradient comes from a state."""
    new = 0.9 * h + affine_rule(jnp.round(h)) + x @ p
    return new, new


def rule_before_mixing(p, h, x):
    new = jnp.roll(affine_rule(0.9 * h + x @ p), 1)
    return new, jnp.cumsum(new)


def loop_with_a_counter(p, h, x):
    """What a loop counts has no derivative, though other results of the same loop have."""

    def inner(carry, _):
        h, t = carry
        return (jnp.tanh(h + x @ p), t + 1.0), t * 2

    (new, t), ts = lax.scan(inner, (h, jnp.zeros(())), None, length=2)
    return new, new + affine_rule(t) + ts.sum()


STEPS = [zero_and_loop, rule_behind_zero, rule_before_mixing, loop_with_a_counter]


@pytest.mark.parametrize("step", STEPS)
def test_derivatives_that_are_zero(step):
    check_same(bind_function(step, (X,), W, H).step)


def test_lines_are_those_of_each_equation():
    """Two equations of one kind share a pull-back, and each keeps its own line."""

    def step(p, h, x):
        a = jnp.cumsum(h["a"]) + x @ p
        b = jnp.cumsum(h["b"]) + x @ p
        return {"a": a, "b": b}, a + b

    facts = analyse(bind_function(step, (X,), W, {"a": H, "b": H}).step)
    lines = [facts.edges.dep[StateNode(i), StateNode(i)].cause.source.line for i in range(2)]
    assert lines[1] == lines[0] + 1


FLAT = sorted(name for name, record in TABLE.items() if not record.differentiable and hasattr(lax, name))


@pytest.mark.parametrize("name", [name for name in FLAT if name != "bitcast_convert_type"])
def test_primitives_without_derivative(name):
    """Their pull-back in JAX does not read the cotangent."""
    fn = {"stop_gradient": lax.stop_gradient, "round": lax.round}.get(name) or getattr(lax, name)
    closed = jax.make_jaxpr(lambda h, ct: jax.vjp(fn, h)[1](ct))(H, H)
    jaxpr = getattr(closed, "jaxpr", closed)
    assert not any(v is jaxpr.invars[1] for eqn in jaxpr.eqns for v in eqn.invars)
    assert any(eqn.primitive.name == name for eqn in jax.make_jaxpr(fn)(H).eqns)


def counted(monkeypatch, module, name):
    """The calls of a function of a module from now on."""
    calls, function = [], getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args: calls.append(1) or function(*args))
    return calls


def tower(layer, depth):
    """A stack of leaky layers, each with a function that has a derivative of its own."""

    def step(p, hidden, x):
        new = []
        for w, h in zip(p, hidden, strict=True):
            new.append(0.9 * h + layer(x @ w + h))
            x = new[-1]
        return new, x

    params, hidden = [jnp.ones((4, 4))] * depth, [jnp.zeros(4)] * depth
    return bind_function(step, (jnp.ones(4),), params, hidden).step


@pytest.mark.parametrize("depth", [2, 7])
@pytest.mark.parametrize(
    "layer", [jax.nn.relu, jax.nn.relu6, jnp.logaddexp, pytest.param("primitive", id="a primitive of one's own")]
)
def test_a_deep_model_asks_for_few_pull_backs(monkeypatch, layer, depth):
    """As many as it has kinds of equations, however often each stands in it."""
    from etrax.compiler.analysis import _sweep

    layer = stepped() if layer == "primitive" else layer
    function = (lambda x: layer(x, 0.5 * x)) if layer is jnp.logaddexp else layer
    step = tower(function, depth)
    check_same(step)

    def kinds(step):
        _sweep._KEPT.clear()
        with monkeypatch.context() as patch:
            calls = counted(patch, _sweep, "_transposed")
            analyse(step)
            return len(calls)

    # An inner layer has two kinds more: its data come from a state, which is read twice.
    assert kinds(step) <= kinds(tower(function, 1)) + 2


def stepped():
    """A primitive that Etrax does not know, with a derivative, as libraries of spiking neurons have one."""
    from jax.extend.core import Primitive
    from jax.interpreters import ad

    p = Primitive("test_sweep_spike")
    p.def_abstract_eval(lambda x: x)
    p.def_impl(lambda x: (x > 0).astype(x.dtype))
    ad.primitive_jvps[p] = lambda primals, tangents: (p.bind(*primals), tangents[0] / (1 + jnp.abs(primals[0])))
    return p.bind


def test_rules_of_one_line_with_other_numbers_stay_apart():
    """What a rule of the user's closes over is part of it: the second of two here passes nothing on."""

    def scaled(factor):
        f = jax.custom_jvp(lambda h: 1.0 * h)
        f.defjvp(
            lambda primals, tangents: (f(*primals), tangents[0] * factor if factor else jnp.zeros_like(tangents[0]))
        )
        return f

    passes, stops = scaled(2.0), scaled(0.0)

    def step(p, hidden, x):
        a, b = hidden
        return (passes(a) + x @ p, stops(b) + x @ p), a + b

    bound = bind_function(step, (X,), W, (H, H)).step
    check_same(bound)
    edges = analyse(bound).edges.dep
    assert (StateNode(0), StateNode(0)) in edges and (StateNode(1), StateNode(1)) not in edges
