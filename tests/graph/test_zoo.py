"""Every model of the zoo: transitions give the step's values, and blocks are the diagonal of the dense Jacobian.

All numbers of a model come from one jitted function, compiled without optimisation: compiling is most of the cost here.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.zoo import ZOO

from etrax._compat import is_inexact
from etrax.compiler.analysis import analyse
from etrax.compiler.ir import Role
from etrax.frontends import bind_function
from etrax.graph import build_graph, jacobians, plan_jacobians
from etrax.runtime._site_math import trace_shape

UNOPTIMISED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def compiled(model):
    x = jax.tree.map(lambda a: a[0], model.make_inputs(1, 0))
    bound = bind_function(model.step, x, model.params, model.hidden)
    facts = analyse(bound.step)
    return build_graph(replace(bound, step=facts.step), facts), facts, x


def jacobian(step, at):
    try:
        return jax.jacrev(step, holomorphic=bool(jnp.iscomplexobj(at)))(at)
    except NotImplementedError:  # an operation that cannot be batched: one row at a time
        out, pull = jax.vjp(step, at)
        rows = [pull(jnp.asarray(row, out.dtype))[0] for row in np.eye(out.size).reshape(-1, *out.shape)]
        return jnp.stack(rows).reshape(*out.shape, *at.shape)


def of_group(group, hidden, temps):
    """What a group gives at the values of a run; Jacobians unless states are narrow, or complex beside real ones."""
    inputs = [temps[v] for v in group.transition_jaxpr_constvars]
    whole = group.concat_hidden(hidden)
    found = {"new": group.transition(hidden, inputs), "whole": whole, "parts": group.split_hidden(whole)}
    if len({jnp.iscomplexobj(h) for h in hidden}) == 1 and whole.dtype.itemsize >= 4:
        step = lambda h: group.concat_hidden(group.transition(group.split_hidden(h), inputs))
        found |= {"dense": jacobian(step, whole), "blocks": group.diagonal_jacobian(hidden, inputs)}
    return found


def everything(model, graph, facts):
    """From parameters, hidden state and inputs to all that the test compares."""
    probes = plan_jacobians(facts, graph.hidden_groups)
    names = [leaf.path for leaf in graph.module_info.step.select(Role.HIDDEN)]

    def run(params, hidden, x):
        flat = jax.tree.leaves((params, hidden))
        old = dict(zip(names, jax.tree.leaves(hidden), strict=True))
        outputs, new, _, temps = graph.module_info.jaxpr_call(*x, old_state_vals=flat)
        groups = [of_group(g, [old[p] for p in g.hidden_paths], temps) for g in graph.hidden_groups]
        pieces = jacobians(probes, jax.tree.leaves((params, hidden, x)))
        by_step = model.step(params, hidden, *x)
        return by_step, (list(new.values()), outputs), groups, pieces.h2h, pieces.h2w

    return run


# Every third model in the fast suite: what the graph shows is read off the facts that other tests hold for all.
ROWS = [
    pytest.param(entry, id=name, marks=() if n % 3 == 0 and "thirty" not in name else pytest.mark.slow)
    for n, (name, entry) in enumerate(ZOO.items())
]


@pytest.mark.parametrize("entry", ROWS)
def test_transition_and_blocks(entry):
    for name in entry.needs:
        pytest.importorskip(name)
    model = entry()
    graph, facts, x = compiled(model)
    args = (model.params, model.hidden, x)
    found = jax.jit(everything(model, graph, facts)).lower(*args).compile(UNOPTIMISED)(*args)
    (hidden, output), (new, outputs), groups, h2h, h2w = found
    for a, b in zip(jax.tree.leaves(outputs), jax.tree.leaves(output), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5 if a.dtype.itemsize < 8 else 1e-10, atol=1e-12)
    for a, b in zip(new, jax.tree.leaves(hidden), strict=True):
        if is_inexact(a):
            check_close(a, b)
    old = dict(zip(graph.module_info.hidden_path_to_invar, jax.tree.leaves(model.hidden), strict=True))
    new = dict(zip(old, new, strict=True))
    in_groups = sorted(p for g in graph.hidden_groups for p in g.hidden_paths)
    assert in_groups == sorted(p for p, v in old.items() if is_inexact(v))
    for group, numbers, blocks in zip(graph.hidden_groups, groups, h2h, strict=True):
        check_group(group, [old[p] for p in group.hidden_paths], [new[p] for p in group.hidden_paths], numbers, blocks)
    for (_, op, g), piece in h2w.items():
        assert piece.df.shape == (*facts.sites[op].y_shape, graph.hidden_groups[g].num_state)
        dense = jax.eval_shape(piece.dense)
        assert dense.shape == (*trace_shape(facts.sites[op]), graph.hidden_groups[g].num_state)


def check_close(a, b):
    rtol = 1e-2 if a.dtype.itemsize < 4 else 1e-5
    np.testing.assert_allclose(np.asarray(a, complex), np.asarray(b, complex), rtol=rtol)


def check_group(group, old, new, numbers, from_step):
    for value, expected in zip(numbers["new"], new, strict=True):
        check_close(value, expected)
    assert numbers["whole"].shape == (*group.varshape, group.num_state)
    for a, b in zip(numbers["parts"], old, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    if "dense" not in numbers:
        return
    n, s = int(np.prod(group.varshape)), group.num_state
    dense = np.asarray(numbers["dense"]).reshape(n, s, n, s).copy()
    expected = np.stack([dense[p, :, p, :] for p in range(n)]).reshape(*group.varshape, s, s)
    for found in (numbers["blocks"], from_step):
        rtol = 1e-5 if numbers["whole"].dtype.itemsize < 8 else 1e-9
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-12)
    if group.colour is None:
        dense[np.arange(n), :, np.arange(n), :] = 0
        assert not dense.any(), "a group with one colour must not mix positions"
