"""Every model of the zoo: verdicts, reasons, op families, tags; and the facts against dense Jacobians."""

import re
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest

from etrax._compat import is_inexact
from etrax.analysis import Kind, analyse
from etrax.analysis._verdicts import complete, diagonal, windowed
from etrax.ir import Role
from tests.zoo import REPORTED, UNUSED, ZOO
from tests.zoo import __file__ as zoo_file

from .oracle import as_matrix, blocks, step_of

FILES = {path.name for path in Path(zoo_file).parent.glob("*.py")}
REPORTS = {Kind.EXACT: "exact", Kind.UNUSED: UNUSED, Kind.APPROXIMATE: REPORTED, Kind.TRUNCATED: REPORTED}
STEPS = 3


@cache
def facts_of(name):
    for module in ZOO[name].needs:
        pytest.importorskip(module)
    return analyse(step_of(ZOO[name]()))


@pytest.mark.parametrize("name", ZOO)
def test_verdicts(name):
    facts, model = facts_of(name), ZOO[name]()
    for i, leaf in enumerate(facts.step.select(Role.PARAM)):
        verdict, want = diagonal(facts, i), model.expect[leaf.path]
        found = REPORTS[verdict.kind]
        assert found == want or (leaf.path in model.either and found != UNUSED), (leaf.path, verdict)
        sites = facts.sites_of(i)
        assert want == UNUSED or sites, f"{leaf.path} is used and has no site"
        assert all(facts.sites[j].source or facts.sites[j].call.primitive == "output" for j in sites)
        if found == REPORTED:
            lines = re.findall(r"(\w+\.py):(\d+) \(", verdict.reason)
            assert lines and {file for file, _ in lines} <= FILES, verdict.reason
            assert re.search(r"reaches several|act on other|acts on|feeds back|passes through", verdict.reason), verdict.reason
        assert windowed(facts, i).kind == (verdict.kind if verdict.kind is Kind.UNUSED or not sites else windowed(facts, i).kind)
        assert complete(facts, i).kind in (Kind.EXACT, Kind.UNUSED)


TAGS = {
    "transitions/mean_field": ["dense"], "transitions/mean_field_learnt": ["dense"], "transitions/fixed_matrix": ["dense"],
    "transitions/normalised_state": ["dense"], "transitions/winner_takes_all": ["dense"],
    "transitions/ring_diffusion": ["sparse"], "transitions/delay_line": ["sparse"],
    "transitions/dense": ["diagonal"], "transitions/convolution": ["diagonal"], "cells/vanilla": ["diagonal"],
    "cells/gru": ["diagonal"], "cells/lstm": ["block"], "weights/matmul": ["diagonal"], "batch/leading": ["diagonal"],
    "batch/batch_last": ["diagonal"], "ops/segment_sum_recurrent": ["diagonal"], "size/no_hidden": [],
}  # fmt: skip


@pytest.mark.parametrize("name", TAGS)
def test_tags(name):
    assert [str(tag) for tag in facts_of(name).tags] == TAGS[name]


FAMILIES = {
    "weights/matmul": {"w": ["matmul"]}, "weights/two_ops": {"w": ["matmul"] * 2}, "weights/tied": {"w": ["matmul"] * 2},
    "ops/bcoo": {"w": ["sparse product"]}, "ops/segment_sum": {"w": ["elementwise"]}, "ops/csr": {"w": ["sparse product"]},
    "ops/csr_events": {"w": ["sparse product"]}, "transitions/convolution": {"w": ["matmul"], "k": ["convolution"]},
    "batch/leading": {"w": ["matmul"], "b": ["elementwise"], "a": ["elementwise"], "out": ["matmul"]},
    "size/one_number": {"w": ["elementwise"], "a": ["elementwise"]},
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name):
    facts = facts_of(name)
    for i, leaf in enumerate(facts.step.select(Role.PARAM)):
        assert [facts.sites[j].rule.name for j in facts.sites_of(i)] == FAMILIES[name][leaf.path[0]]


def trajectory(model, facts):
    """Input leaves of a few steps."""
    inputs = model.make_inputs(STEPS, 3)
    hidden, run = model.hidden, jax.jit(lambda h, x: model.step(model.params, h, *x)[0])
    for t in range(STEPS):
        x = jax.tree.map(lambda a, t=t: a[t], inputs)
        yield jax.tree.leaves((model.params, hidden, x))
        hidden = run(hidden, x)


def coarse(rows, size, columns):
    """A Jacobian over real coordinates as a pattern over elements."""
    hit = np.asarray(rows) != 0
    hit = hit.reshape(size, -1, hit.shape[1]).any(1) if size else np.zeros((0, hit.shape[1]), bool)
    return hit.reshape(size, columns, -1).any(2) if columns else np.zeros((size, 0), bool)


def check_edges(facts, found):
    """No entry of the cut step's Jacobian lies outside the edges."""
    states = {("h", i): leaf.aval.size for i, leaf in enumerate(facts.states) if is_inexact(leaf.aval)}
    ops = {("y", j): int(np.prod(s.y_shape, dtype=int)) for j, s in enumerate(facts.sites)}
    outputs = {("o", k): leaf.aval.size for k, leaf in enumerate(facts.step.select(Role.OUTPUT)) if is_inexact(leaf.aval)}
    targets = {**states, **{("y", j): ops["y", j] for j in sorted(facts.cut)}, **outputs}
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


@pytest.mark.parametrize("name", ZOO)
def test_facts_against_dense_jacobians(name):
    """Edges hold every entry; and what is called exact is carried whole by the blocks of the cut step."""
    facts, model = facts_of(name), ZOO[name]()
    states = [i for i, leaf in enumerate(facts.states) if is_inexact(leaf.aval)]
    width = {i: 1 + np.issubdtype(facts.states[i].aval.dtype, np.complexfloating) for i in states}
    live = [i for i in states if ("h", i) in facts.live]
    mask, at = place_mask(facts), jax.jit(lambda leaves: blocks(facts, leaves))
    trained = [i for i, leaf in enumerate(facts.step.select(Role.PARAM)) if is_inexact(leaf.aval)]
    exact = [k for k, i in enumerate(trained) if diagonal(facts, i).kind is Kind.EXACT]
    influence = None
    for leaves in trajectory(model, facts):
        found = jax.tree.map(np.asarray, at(leaves))
        check_edges(facts, found)
        if not states or not exact:
            return
        direct = [np.concatenate([rows[k] for k in exact], 1) for rows in found.params]
        if influence is None:
            influence = direct
            continue
        whole, carried = [], []
        for r, a in enumerate(states):
            blocks_of = [masked(found.cut[r][c], mask.get((a, b)), (width[a], width[b])) for c, b in enumerate(states)]
            whole.append(sum(found.whole[r][c] @ influence[c] for c in range(len(states))) + direct[r])
            carried.append(sum(blocks_of[c] @ influence[c] for c in range(len(states))) + direct[r])
            if a in live:
                np.testing.assert_allclose(carried[r], whole[r], rtol=1e-9, atol=1e-12)
        influence = whole
