"""Put the graph together from a step and the facts found in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from .._compat import Jaxpr, Literal, Primitive, Var
from .._errors import CompilationError
from ..compiler.analysis import Facts, Group, colours
from ..compiler.ir import Bound, Path, Role, format_path
from ..runtime import layout_of
from ._columns import Columns
from ._diagnostics import loop_records, records
from ._graph import ETraceGraph
from ._group import HiddenGroup
from ._module_info import HiddenLeaf, ModuleInfo, module_info_of
from ._perturb import perturb
from ._relation import OUTPUT, HiddenParamOpRelation
from ._slices import Slice, Slicer, inner_equation
from ._stand_in import loops


def build_graph(model: Bound, facts: Facts, include_hidden_perturb: bool = True) -> ETraceGraph:
    """The graph of a bound model, whose step `facts` describe."""
    info = module_info_of(model)
    groups, by_path = build_groups(info.jaxpr, info.hidden_leaves, facts)
    relations = build_relations(info, facts, groups)
    info = info.add_jaxpr_outs(_read_by(groups, relations, info))
    unused = [p for p, s in info.bound.known.items() if hasattr(s, "varshape") and p not in info.hidden_path_to_invar]
    diagnostics = records(facts, _weight_paths(info), unused)
    if facts.step is not info.step:  # facts of a step that can only be looked at
        diagnostics += loop_records(loops(info.step))
    perturbation = perturb(info) if include_hidden_perturb else None
    return ETraceGraph(info, groups, by_path, relations, perturbation, diagnostics)


def build_groups(
    jaxpr: Jaxpr, hidden: Sequence[HiddenLeaf], facts: Facts
) -> tuple[tuple[HiddenGroup, ...], dict[Path, HiddenGroup]]:
    """The hidden groups, and the group of each hidden state; `jaxpr` has the equations that `facts` are of."""
    number = {leaf.path: k for k, leaf in enumerate(hidden)}
    slicer, groups = Slicer(jaxpr, facts), []
    for g in facts.groups:
        # Leaves of the step are in the order of the trees; the states of a group are in that of the model.
        rank = [number[facts.states[i].path] for i in g.leaves]
        g = _reordered(g, sorted(range(len(rank)), key=rank.__getitem__))
        members = [hidden[k] for k in sorted(rank)]
        paths, states, invars, outvars = (list(field) for field in zip(*members, strict=True))
        jaxpr_of_group, rest = slicer.between(invars, outvars)
        more = Columns(layout_of(facts, g), tuple(states)), colours(facts, g), str(facts.tags[g.index])
        groups.append(HiddenGroup(g.index, paths, states, invars, outvars, jaxpr_of_group, list(rest), *more))
    by_path: dict[Path, HiddenGroup] = {}
    for group in groups:
        for path in group.hidden_paths:
            if path in by_path:
                raise CompilationError(
                    f"hidden state {format_path(path)} is in groups {by_path[path].index} and {group.index}; "
                    "please report this model."
                )
            by_path[path] = group
    return tuple(groups), by_path


def _reordered(group: Group, order: Sequence[int]) -> Group:
    """A group with its leaves in another order."""
    leaves, place, slot = (tuple(part[k] for k in order) for part in (group.leaves, group.place, group.slot))
    return replace(group, leaves=leaves, place=place, slot=slot)


def build_relations(
    info: ModuleInfo, facts: Facts, groups: tuple[HiddenGroup, ...]
) -> tuple[HiddenParamOpRelation, ...]:
    """One relation per weight op and parameter leaf in it, in program order, with the groups that a trace can serve."""
    paths, params = _weight_paths(info), facts.step.select(Role.PARAM)
    numbers = [i for e in info.bound.states if e.role is Role.PARAM for i in e.leaves]
    invars = dict(zip(numbers, info.weight_invars, strict=True))
    slicer, out = Slicer(info.jaxpr, facts), []
    for j, all_relations in sorted(facts.relations_of.items()):
        relations = [r for r in all_relations if r.representable]
        if not relations:
            continue
        site, op = facts.sites[j], _op(info, slicer, j)
        reached = tuple(groups[r.group] for r in relations)
        parts = [op.slice_to(g.hidden_outvars) for g in reached]
        leaves = sorted(site.params)
        names = _names([params[p].path for p in leaves])
        for p in leaves:
            out.append(
                HiddenParamOpRelation(
                    path=paths[p],
                    leaf_path=params[p].path,
                    primitive=op.primitive,
                    x_var=op.x,
                    y_var=op.y,
                    hidden_groups=reached,
                    y_to_hidden_group_jaxprs=tuple(part.jaxpr for part in parts),
                    y_to_hidden_constvars=tuple(part.constvars for part in parts),
                    connected_hidden_paths=[q for g in reached for q in g.hidden_paths],
                    positions=tuple(r.places for r in relations),
                    op=j,
                    family=site.rule.name,
                    source=site.source,
                    nested=len(site.at) > 1,
                    eqn_params=op.params,
                    trainable_paths={name: paths[q] for name, q in zip(names, leaves, strict=True)},
                    trainable_vars={name: invars[q] for name, q in zip(names, leaves, strict=True)},
                )
            )
    return tuple(out)


def _names(paths: Sequence[Path]) -> list[str]:
    """A short name for each leaf: its last key, or all of its path if two leaves share that."""
    last = [str(path[-1]) if path else "weight" for path in paths]
    dotted = [".".join(map(str, path)) for path in paths]
    return [a if last.count(a) == 1 else b for a, b in zip(last, dotted, strict=True)]


def _weight_paths(info: ModuleInfo) -> list[Path]:
    """For each parameter leaf of the step, the path of the state that holds it."""
    paths = {i: e.path for e in info.bound.states if e.role is Role.PARAM for i in e.leaves}
    return [paths[i] for i in range(len(paths))]


class _Op(NamedTuple):
    """The equation of a weight op: its data operand (None if there is none), its result, and the way from there."""

    primitive: Primitive
    params: dict[str, object]
    x: Var | None
    y: Var
    slice_to: Callable[[Sequence[Var]], Slice]


def _op(info: ModuleInfo, slicer: Slicer, j: int) -> _Op:
    """The equation of weight op j."""
    facts = slicer.facts
    site, count = facts.sites[j], len(facts.step.jaxpr.eqns)
    # A weight that is an output of the step itself has no equation: its address is that of the output, behind them all.
    if site.at[0] >= count:
        y = info.hidden_path_to_outvar[facts.step.outs[site.at[0] - count].path]
        return _Op(OUTPUT, {}, None, y, lambda targets: slicer.between([y], targets))
    eqn = inner_equation(info.jaxpr, site.at)
    varying = () if not site.rule.mixes else site.rule.varying(site.call)
    x, y = eqn.invars[varying[0]] if varying else None, eqn.outvars[0]

    def slice_to(targets: Sequence[Var]) -> Slice:
        return slicer.from_inside(j, targets) if len(site.at) > 1 else slicer.between([y], targets)

    return _Op(eqn.primitive, dict(eqn.params), x, y, slice_to)


def _read_by(groups: Sequence[HiddenGroup], relations: Sequence[HiddenParamOpRelation], info: ModuleInfo) -> list[Var]:
    """Every variable whose value a rule may want: old hidden values, and what transitions and relations read."""
    defined = {*info.jaxpr.constvars, *info.jaxpr.invars, *(v for e in info.jaxpr.eqns for v in e.outvars)}
    wanted = [v for g in groups for v in (*g.hidden_invars, *g.transition_jaxpr_constvars)]
    for r in relations:
        wanted += [r.x_var, r.y_var, *(v for part in r.y_to_hidden_constvars for v in part)]
    return [v for v in dict.fromkeys(v for v in wanted if v is not None and not isinstance(v, Literal)) if v in defined]
