"""Facts against dense Jacobians along a few steps of a model."""

import jax
import numpy as np
from tests.compiler.primitives.oracle import as_matrix

from etrax._compat import is_inexact
from etrax.compiler.analysis import OpNode, OutputNode, StateNode
from etrax.compiler.ir import Role
from etrax.rules import Kind
from etrax.rules._verdicts import by_position_verdict

from .oracle import blocks

STEPS = 3


def trajectory(model):
    """Input leaves of a few steps."""
    inputs = model.make_inputs(STEPS, 3)
    hidden, run = model.hidden, jax.jit(lambda h, x: model.step(model.params, h, *x)[0])
    for t in range(STEPS):
        x = jax.tree.map(lambda a, t=t: a[t], inputs)
        yield jax.tree.leaves((model.params, hidden, x))
        hidden = run(hidden, x)


def coarse(rows, size, columns):
    """A Jacobian over real coordinates as a pattern over elements."""
    if not size or not columns:
        return np.zeros((size, columns), bool)
    hit = np.asarray(rows) != 0
    return hit.reshape(size, -1, columns, hit.shape[1] // columns).any((1, 3))


def check_edges(facts, found):
    """No entry of the cut step's Jacobian lies outside the edges."""
    states = {StateNode(i): leaf.aval.size for i, leaf in enumerate(facts.states) if is_inexact(leaf.aval)}
    ops = {OpNode(j): int(np.prod(s.y_shape, dtype=int)) for j, s in enumerate(facts.sites)}
    outputs = {
        OutputNode(k): leaf.aval.size for k, leaf in enumerate(facts.step.select(Role.OUTPUT)) if is_inexact(leaf.aval)
    }
    targets = {**states, **{OpNode(j): ops[OpNode(j)] for j in sorted(facts.cut)}, **outputs}
    for (target, size), of_state, of_delta in zip(targets.items(), found.cut, found.deltas, strict=True):
        for (source, n), rows in zip((*states.items(), *ops.items()), (*of_state, *of_delta), strict=True):
            truth = coarse(rows, size, n)
            allowed = as_matrix(facts.edges.dep.get((source, target)), n, size).T
            assert not (truth & ~allowed).any(), f"{source} reaches {target} where no edge does"


def place_mask(facts):
    """Which states share a position of one group: (row leaf, column leaf) → matrix."""
    out = {}
    for g in facts.groups:
        for a in g.leaves:
            for b in g.leaves:
                out[a, b] = g.place_of(a).reshape(-1)[:, None] == g.place_of(b).reshape(-1)[None, :]
    return out


def masked(rows, mask, parts):
    """Keep the entries of one Jacobian over real coordinates that a mask over elements allows."""
    return np.where(np.kron(mask, np.ones(parts, bool)), rows, 0) if mask is not None else np.zeros_like(rows)


def check_facts(facts, model):
    """Edges hold every entry; and what is called exact is carried whole by the blocks of the cut step."""
    states = [i for i, leaf in enumerate(facts.states) if is_inexact(leaf.aval)]
    width = {i: 1 + np.issubdtype(facts.states[i].aval.dtype, np.complexfloating) for i in states}
    mask, at = place_mask(facts), jax.jit(lambda leaves: blocks(facts, leaves))
    trained = [i for i, leaf in enumerate(facts.step.select(Role.PARAM)) if is_inexact(leaf.aval)]
    exact = [k for k, i in enumerate(trained) if by_position_verdict(facts, i).kind is Kind.EXACT]
    influence = None
    for leaves in trajectory(model):
        found = jax.tree.map(np.asarray, at(leaves))
        check_edges(facts, found)
        if not states or not exact:
            continue
        direct = [np.concatenate([rows[k] for k in exact], 1) for rows in found.params]
        if influence is None:
            influence = direct
            continue
        whole = []
        for r, a in enumerate(states):
            kept = [masked(found.cut[r][c], mask.get((a, b)), (width[a], width[b])) for c, b in enumerate(states)]
            whole.append(sum(found.whole[r][c] @ influence[c] for c in range(len(states))) + direct[r])
            carried = sum(kept[c] @ influence[c] for c in range(len(states))) + direct[r]
            if StateNode(a) in facts.live:
                np.testing.assert_allclose(carried, whole[r], rtol=1e-9, atol=1e-12)
        influence = whole
