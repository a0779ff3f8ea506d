"""Put the graph together from a step and the facts found in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .._compat import Jaxpr, Literal, Var
from .._errors import CompilationError
from ..analysis import Facts, Group, colours
from ..engine import layout_of
from ..ir import Bound, Path, Role, format_path
from ._columns import Columns
from ._diagnostics import loop_records, records
from ._graph import ETraceGraph
from ._group import HiddenGroup
from ._module_info import HiddenLeaf, ModuleInfo, module_info_of
from ._perturb import perturb
from ._relation import HiddenParamOpRelation
from ._slices import inner_equation, slice_between
from ._stand_in import loops


def build_graph(model: Bound, facts: Facts, include_hidden_perturb: bool = True) -> ETraceGraph:
    """The graph of a bound model, whose step `facts` describe."""
    info = module_info_of(model)
    groups, by_path = build_groups(info.jaxpr, info.hidden_leaves, facts)
    relations = build_relations(info, facts, groups)
    info = info.add_jaxpr_outs(_read_by(groups, relations, info))
    weights = _weight_paths(info)
    unused = [p for p, s in info.bound.known.items() if hasattr(s, "varshape") and p not in info.hidden_path_to_invar]
    found = records(facts, weights, unused)
    if facts.step is not info.step:  # facts of a step that can only be looked at
        found += loop_records(loops(info.step))
    return ETraceGraph(info, groups, by_path, relations, perturb(info) if include_hidden_perturb else None, found)


def build_groups(
    jaxpr: Jaxpr, hidden: Sequence[HiddenLeaf], facts: Facts
) -> tuple[tuple[HiddenGroup, ...], dict[Path, HiddenGroup]]:
    """The hidden groups, and the group of each hidden state; `jaxpr` has the equations that `facts` are of."""
    number = {leaf.path: k for k, leaf in enumerate(hidden)}
    groups = []
    for g in facts.groups:
        rank = [number[facts.states[i].path] for i in g.leaves]
        g = _reordered(g, sorted(range(len(rank)), key=rank.__getitem__))
        members = [hidden[k] for k in sorted(rank)]
        paths, states, invars, outvars = (list(field) for field in zip(*members, strict=True))
        jaxpr_of_group, rest = slice_between(jaxpr, invars, outvars, facts)
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
    """The same group with its leaves in another order."""
    leaves, place, slot = (tuple(part[k] for k in order) for part in (group.leaves, group.place, group.slot))
    return replace(group, leaves=leaves, place=place, slot=slot)


def build_relations(
    info: ModuleInfo, facts: Facts, groups: tuple[HiddenGroup, ...]
) -> tuple[HiddenParamOpRelation, ...]:
    """One relation per weight op and parameter leaf in it, in program order, with the groups that a trace can serve."""
    paths = _weight_paths(info)
    params = facts.step.select(Role.PARAM)
    out = []
    for j, site in enumerate(facts.sites):
        found = [r for r in facts.relations if r.site == j and r.place is not None]
        if not found:
            continue
        reached = tuple(groups[r.group] for r in found)
        x, y, nested = _variables(info, facts, j)
        parts = [] if nested else [slice_between(info.jaxpr, [y], g.hidden_outvars, facts) for g in reached]
        for p in sorted(site.params):
            out.append(
                HiddenParamOpRelation(
                    path=paths[p],
                    leaf_path=params[p].path,
                    primitive=site.call.primitive,
                    x_var=x,
                    y_var=y,
                    hidden_groups=reached,
                    y_to_hidden_group_jaxprs=tuple(part.jaxpr for part in parts),
                    y_to_hidden_constvars=tuple(part.constvars for part in parts),
                    connected_hidden_paths=[q for g in reached for q in g.hidden_paths],
                    positions=tuple(r.place for r in found if r.place is not None),
                    op=j,
                    family=site.rule.name,
                    source=site.source,
                    nested=nested,
                )
            )
    return tuple(out)


def _weight_paths(info: ModuleInfo) -> list[Path]:
    """For each parameter leaf of the step, the path of the state that holds it."""
    held = {i: e.path for e in info.bound.states if e.role is Role.PARAM for i in e.leaves}
    return [held[i] for i in range(len(held))]


def _variables(info: ModuleInfo, facts: Facts, j: int) -> tuple[Var | None, Var, bool]:
    """The data operand (None if there is none) and the output of a weight op; whether it is inside a loop or branch."""
    site, count = facts.sites[j], len(facts.step.jaxpr.eqns)
    if site.at[0] >= count:
        hidden = [leaf.path for leaf in facts.step.outs]
        return None, info.hidden_path_to_outvar[hidden[site.at[0] - count]], False
    eqn = inner_equation(info.jaxpr, site.at)
    varying = () if not site.rule.mixes else site.rule.varying(site.call)
    return (eqn.invars[varying[0]] if varying else None), eqn.outvars[0], len(site.at) > 1


def _read_by(groups: Sequence[HiddenGroup], relations: Sequence[HiddenParamOpRelation], info: ModuleInfo) -> list[Var]:
    """Every variable whose value a rule may want: old hidden values, and what transitions and relations read."""
    defined = {*info.jaxpr.constvars, *info.jaxpr.invars, *(v for e in info.jaxpr.eqns for v in e.outvars)}
    wanted = [v for g in groups for v in (*g.hidden_invars, *g.transition_jaxpr_constvars)]
    for r in relations:
        wanted += [r.x_var, r.y_var, *(v for part in r.y_to_hidden_constvars for v in part)]
    return [v for v in dict.fromkeys(v for v in wanted if v is not None and not isinstance(v, Literal)) if v in defined]
