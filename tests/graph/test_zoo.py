"""Every model of the zoo: transitions give the step's values, and blocks are the diagonal of the dense Jacobian."""

import jax
import numpy as np
import pytest
from tests.zoo import ZOO

from etrax._compat import is_inexact
from etrax.analysis import analyse
from etrax.engine._site_math import trace_shape
from etrax.frontends import bind_function
from etrax.graph import build_graph, jacobians, plan_jacobians
from etrax.ir import Role


def compiled(model):
    x = jax.tree.map(lambda a: a[0], model.make_inputs(1, 0))
    bound = bind_function(model.step, x, model.params, model.hidden)
    facts = analyse(bound.step)
    return build_graph(bound, facts), facts, x


def run(graph, model, x):
    """Old and new values by hidden path, and values by variable."""
    states = graph.module_info.step
    old = dict(zip([leaf.path for leaf in states.select(Role.HIDDEN)], jax.tree.leaves(model.hidden), strict=True))
    order = [*jax.tree.leaves(model.params), *jax.tree.leaves(model.hidden)]
    outputs, new, _, temps = graph.module_info.jaxpr_call(*x, old_state_vals=order)
    return old, outputs, new, temps


@pytest.mark.parametrize("entry", ZOO.values(), ids=ZOO)
def test_transition_and_blocks(entry):
    for name in entry.needs:
        pytest.importorskip(name)
    model = entry()
    graph, facts, x = compiled(model)
    hidden, output = model.step(model.params, model.hidden, *x)
    old, outputs, new, temps = run(graph, model, x)
    for a, b in zip(jax.tree.leaves(outputs), jax.tree.leaves(output), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5 if a.dtype.itemsize < 8 else 1e-10, atol=1e-12)
    for a, b in zip(new.values(), jax.tree.leaves(hidden), strict=True):
        if is_inexact(a):
            np.testing.assert_allclose(
                np.asarray(a, complex), np.asarray(b, complex), rtol=1e-2 if a.dtype.itemsize < 4 else 1e-5
            )
    assert sorted(p for g in graph.hidden_groups for p in g.hidden_paths) == sorted(
        p for p, v in old.items() if is_inexact(v)
    )
    pieces = jacobians(plan_jacobians(facts, graph.hidden_groups), jax.tree.leaves((model.params, model.hidden, x)))
    for group, found in zip(graph.hidden_groups, pieces.h2h, strict=True):
        inputs = [temps[v] for v in group.transition_jaxpr_constvars]
        check_group(group, [old[p] for p in group.hidden_paths], inputs, new, found)
    for (_, op, g), piece in pieces.h2w.items():
        assert piece.df.shape == (*facts.sites[op].y_shape, graph.hidden_groups[g].num_state)
        assert piece.dense().shape == (*trace_shape(facts.sites[op]), graph.hidden_groups[g].num_state)


def jacobian(step, at):
    try:
        return jax.jacrev(step, holomorphic=bool(np.iscomplexobj(at)))(at)
    except NotImplementedError:  # an operation that cannot be batched: one row at a time
        out, pull = jax.vjp(step, at)
        rows = [pull(jax.numpy.asarray(row, out.dtype))[0] for row in np.eye(out.size).reshape(-1, *out.shape)]
        return np.stack(rows).reshape(*out.shape, *at.shape)


def check_group(group, hidden, inputs, new, from_step):
    for path, value in zip(group.hidden_paths, group.transition(hidden, inputs), strict=True):
        np.testing.assert_allclose(
            np.asarray(value, complex), np.asarray(new[path], complex), rtol=1e-2 if value.dtype.itemsize < 4 else 1e-5
        )
    whole = group.concat_hidden(hidden)
    assert whole.shape == (*group.varshape, group.num_state)
    for a, b in zip(group.split_hidden(whole), hidden, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    if len({np.iscomplexobj(h) for h in hidden}) > 1 or whole.dtype.itemsize < 4:
        return
    step = lambda h: group.concat_hidden(group.transition(group.split_hidden(h), inputs))
    dense = jacobian(step, whole)
    n, s = int(np.prod(group.varshape)), group.num_state
    expected = np.asarray(dense).reshape(n, s, n, s)
    expected = np.stack([expected[p, :, p, :] for p in range(n)]).reshape(*group.varshape, s, s)
    for found in (group.diagonal_jacobian(hidden, inputs), from_step):
        np.testing.assert_allclose(found, expected, rtol=1e-5 if whole.dtype.itemsize < 8 else 1e-9, atol=1e-12)
    if group.colour is None:
        rest = np.asarray(dense).reshape(n, s, n, s).copy()
        rest[np.arange(n), :, np.arange(n), :] = 0
        assert not rest.any(), "a group with one colour must not mix positions"
