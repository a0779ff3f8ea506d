"""The rows of a report: hidden groups, weight ops and parameters, in plain words and numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .._compat import Var
from ..compiler.analysis import Facts, Node, OpNode, OutputNode, StateNode, can_fan_out, traced_relations
from ..compiler.ir import Path, Role, format_path
from ..rules import Verdict, words_of


@dataclass(frozen=True)
class GroupLine:
    """A hidden group in words; it acts on the outputs and on other groups so numbered without a weight op between."""

    states: tuple[str, ...]
    positions: tuple[int, ...]
    num_state: int
    structure: str
    across: tuple[str, ...]
    outputs: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class OpLine:
    """A weight op: its parameters, the groups that it reads, and the groups, outputs and weight ops that it reaches.

    It reads a group's states as they were before the step, or as the step has just made them.
    All are numbers of rows of the report. A path within one step that runs through another weight op counts as
    reaching that one.
    """

    family: str
    primitive: str
    source: str
    parameters: tuple[int, ...]
    reads: tuple[int, ...]
    groups: tuple[int, ...]
    outputs: tuple[int, ...]
    ops: tuple[int, ...]


@dataclass(frozen=True)
class ParameterLine:
    """A parameter in words: what it meets, what it reaches."""

    path: Path
    shape: tuple[int, ...]
    ops: tuple[str, ...]
    reaches: tuple[str, ...]
    verdict: Verdict


@dataclass(frozen=True)
class Reads:
    """Per group, the weight ops and the outputs that its new states reach with no weight op between.

    The analysis speaks of states before a step. In h' = tanh(W x + U h), o = V h' the old state reaches V through U
    only; people say that V reads the state.
    """

    ops: tuple[frozenset[int], ...]
    outputs: tuple[frozenset[int], ...]


def find_reads(facts: Facts) -> Reads:
    """Follow each group's new states through the rest of the step."""
    cut: dict[int, list[int]] = {}
    for j in sorted(facts.cut):
        cut.setdefault(facts.sites[j].at[0], []).append(j)
    reached = [_follow(facts, [facts.step.jaxpr.outvars[i] for i in g.leaves], cut) for g in facts.groups]
    return Reads(tuple(ops for ops, _ in reached), tuple(outputs for _, outputs in reached))


def _follow(facts: Facts, start: list[Var], cut: dict[int, list[int]]) -> tuple[frozenset[int], frozenset[int]]:
    """Weight ops (`cut` says which stand at an equation) and outputs that these variables reach, not through an op."""
    jaxpr, ops = facts.step.jaxpr, set()
    reached = {v for v in start if isinstance(v, Var)} - set(jaxpr.invars)
    for n, eqn in enumerate(jaxpr.eqns):
        if any(isinstance(v, Var) and v in reached for v in eqn.invars):
            ops.update(cut.get(n, ()))
            if n not in cut:
                reached.update(eqn.outvars)
    outs = facts.step.outvars(Role.OUTPUT)
    return frozenset(ops), frozenset(k for k, v in enumerate(outs) if isinstance(v, Var) and v in reached)


def group_line(facts: Facts, reads: Reads, index: int) -> GroupLine:
    """The row of a hidden group."""
    g = facts.groups[index]
    lost = tuple(dict.fromkeys(words_of(facts, path) for path in facts.lost_from_group[index]))
    names = tuple(facts.state_name(i) for i in g.leaves)
    reached = [t for i in g.leaves for t in facts.edges.out(StateNode(i))]
    others = _groups_of(facts, reached) - {index}
    outputs = {*_numbers(reached, OutputNode), *reads.outputs[index]}
    return GroupLine(
        names, g.varshape, g.num_state, str(facts.tags[index]), lost, tuple(sorted(outputs)), tuple(sorted(others))
    )


def op_line(facts: Facts, reads: Reads, index: int) -> OpLine:
    """The row of a weight op."""
    site = facts.sites[index]
    reached = list(facts.edges.out(OpNode(index)))
    before = _groups_of(facts, map(StateNode, facts.edges.states_into(index)))
    return OpLine(
        site.rule.name,
        site.call.primitive,
        str(site.source) if site.source else "",
        tuple(sorted(site.params)),
        tuple(sorted(before | {g for g, ops in enumerate(reads.ops) if index in ops})),
        tuple(sorted(_groups_of(facts, reached))),
        _numbers(reached, OutputNode),
        _numbers(reached, OpNode),
    )


def parameter_line(facts: Facts, param: int, verdict: Verdict) -> ParameterLine:
    """The row of a parameter."""
    leaf, sites = facts.step.select(Role.PARAM)[param], facts.sites_of(param)
    ops = tuple(dict.fromkeys(facts.sites[j].rule.name for j in sites))
    fanned = [r for r in facts.relations if can_fan_out(facts, r) and facts.matters(r.group)]
    reached = [f"group {r.group}" for r in (*traced_relations(facts), *fanned) if r.site in sites]
    if any(OpNode(j) in facts.live and not facts.remembers(OpNode(j)) for j in sites):
        reached.append("output")
    return ParameterLine(leaf.path, leaf.aval.shape, ops, tuple(dict.fromkeys(reached)), verdict)


def output_names(facts: Facts) -> tuple[str, ...]:
    """The leaves of the step's output."""
    return tuple(format_path(leaf.path, "output") for leaf in facts.step.select(Role.OUTPUT))


def _numbers(nodes: Iterable[Node], kind: type[Node]) -> tuple[int, ...]:
    return tuple(sorted({node.index for node in nodes if isinstance(node, kind)}))


def _groups_of(facts: Facts, nodes: Iterable[Node]) -> set[int]:
    leaves = _numbers(nodes, StateNode)
    return {facts.group_of_leaf[i] for i in leaves if i in facts.group_of_leaf}
