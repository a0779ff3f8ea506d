"""Diagnostics: what the compiler kept, what it left out, and where in the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from .._compat import JaxprEqn, is_inexact
from ..analysis import Facts, LostKind, LostPath, lost_from_op
from ..analysis._edges import NO_REVERSE, TRAINABLE
from ..ir import Path, Role, Source, format_path, source_of_eqn
from ..rules import words_of


class DiagnosticLevel(StrEnum):
    """How much a record matters."""

    INFO = "info"
    WARNING = "warning"


class DiagnosticKind(StrEnum):
    """What a record is about."""

    RELATION_INCLUDED = "relation_included"
    RELATION_PARTIAL_PATH = "relation_partial_path"
    RELATION_EXCLUDED_MIXING_TAIL = "relation_excluded_mixing_tail"
    RELATION_EXCLUDED_WEIGHT_TO_WEIGHT = "relation_excluded_weight_to_weight"
    RELATION_EXCLUDED_NON_TEMPORAL = "relation_excluded_non_temporal"
    PARAMETER_UNUSED = "parameter_unused"
    TRANSITION_MIXES_POSITIONS = "transition_mixes_positions"
    TRANSITION_CROSSES_GROUPS = "transition_crosses_groups"
    RECURRENT_WEIGHT_CUT = "recurrent_weight_cut"
    STATE_NOT_HIDDEN = "state_not_hidden"
    HIDDEN_STATE_UNUSED = "hidden_state_unused"
    NO_HIDDEN_STATE = "no_hidden_state"
    NONLINEAR_DERIVATIVE = "nonlinear_derivative"
    COMPLEX_TO_REAL = "complex_to_real"
    UNKNOWN_PRIMITIVE = "unknown_primitive"
    LOOP_WITHOUT_DERIVATIVE = "loop_without_derivative"


_KIND_OF_LOST_PATH = {
    LostKind.TAIL: DiagnosticKind.RELATION_EXCLUDED_MIXING_TAIL,
    LostKind.THROUGH_OP: DiagnosticKind.RELATION_EXCLUDED_WEIGHT_TO_WEIGHT,
    LostKind.MIXING: DiagnosticKind.TRANSITION_MIXES_POSITIONS,
    LostKind.RECURRENT_OP: DiagnosticKind.RECURRENT_WEIGHT_CUT,
    LostKind.OTHER_GROUP: DiagnosticKind.TRANSITION_CROSSES_GROUPS,
    LostKind.OTHER_STATE: DiagnosticKind.STATE_NOT_HIDDEN,
    LostKind.HALF: DiagnosticKind.RELATION_PARTIAL_PATH,
    LostKind.NONLINEAR: DiagnosticKind.NONLINEAR_DERIVATIVE,
    LostKind.UNKNOWN: DiagnosticKind.NONLINEAR_DERIVATIVE,
    LostKind.ROUNDED: DiagnosticKind.NONLINEAR_DERIVATIVE,
}


class CompilationWarning(UserWarning):
    """A record of level `WARNING`, said when a graph is compiled."""


class CompilationRecord(NamedTuple):
    """One finding. `weight_path` and `hidden_paths` name what it is about, `context` holds group and op numbers."""

    kind: DiagnosticKind
    level: DiagnosticLevel
    message: str
    primitive: str | None = None
    weight_path: Path | None = None
    hidden_paths: tuple[Path, ...] = ()
    context: Mapping[str, Any] = MappingProxyType({})

    def __str__(self) -> str:
        return f"[{self.level.value}] {self.kind.value}: {self.message}"

    @property
    def _brief(self) -> str:
        return f"{self.level.value} {self.kind.value}"


def records(facts: Facts, weight_paths: Sequence[Path], unused_hidden: Sequence[Path]) -> tuple[CompilationRecord, ...]:
    """All findings: first each weight op in program order, then each group, then what concerns the whole model.

    `weight_paths` are the state paths of the parameter leaves, `unused_hidden` hidden states that no step touches.
    """
    found = [r for j in range(len(facts.sites)) for r in _of_site(facts, j, weight_paths)]
    found += [r for g in range(len(facts.groups)) for r in _of_group(facts, g)]
    found += _of_model(facts, weight_paths, unused_hidden)
    return tuple(found)


def loop_records(loops: Iterable[JaxprEqn]) -> tuple[CompilationRecord, ...]:
    """One for each loop that keeps a step from being trained."""
    out = []
    for eqn in loops:
        source = source_of_eqn(eqn)
        where = f"`{eqn.primitive.name}`" + (f" at {source}" if source else "")
        text = f"{where} is or holds a `while_loop`, {NO_REVERSE}. The graph shows what it connects; {TRAINABLE}"
        kind, name = DiagnosticKind.LOOP_WITHOUT_DERIVATIVE, eqn.primitive.name
        out.append(CompilationRecord(kind, DiagnosticLevel.WARNING, text, name, None, (), {"source": source}))
    return tuple(out)


def _hidden_paths(facts: Facts, groups: Sequence[int]) -> tuple[Path, ...]:
    hidden = facts.step.select(Role.HIDDEN)
    return tuple(hidden[i].path for g in groups for i in facts.groups[g].leaves)


def _of_site(facts: Facts, j: int, weight_paths: Sequence[Path]) -> Iterator[CompilationRecord]:
    site = facts.sites[j]
    kept = [r.group for r in facts.relations if r.site == j and r.representable]
    lost = [r.group for r in facts.relations if r.site == j and not r.representable]
    names = ", ".join(facts.params_of(j))
    missing = lost_from_op(facts, j)
    for p in sorted(site.params):
        path, leaf = weight_paths[p], facts.step.select(Role.PARAM)[p]
        context = {"op": j, "group_indices": tuple(kept), "leaf_path": leaf.path, "source": site.source}
        if kept:
            text = f"{names} reaches group {', '.join(map(str, kept))} through {site.label}"
            yield CompilationRecord(
                DiagnosticKind.RELATION_INCLUDED,
                DiagnosticLevel.INFO,
                text,
                site.call.primitive,
                path,
                _hidden_paths(facts, kept),
                context,
            )
        elif not lost and not missing:
            text = f"{names} reaches no hidden state within the step through {site.label}: its gradient needs no trace"
            kind = DiagnosticKind.RELATION_EXCLUDED_NON_TEMPORAL
            yield CompilationRecord(kind, DiagnosticLevel.INFO, text, site.call.primitive, path, (), context)
        for one in missing:
            kind = kind_of(one)
            if kept and one.kind in (LostKind.TAIL, LostKind.THROUGH_OP):
                kind = DiagnosticKind.RELATION_PARTIAL_PATH
            groups = lost if one.kind is LostKind.TAIL else kept
            text = f"{names} in {site.label}: {words_of(facts, one)}"
            more = context | {"group_indices": tuple(groups)} | _place(one)
            yield CompilationRecord(
                kind, DiagnosticLevel.WARNING, text, site.call.primitive, path, _hidden_paths(facts, groups), more
            )


def _of_group(facts: Facts, g: int) -> Iterator[CompilationRecord]:
    for lost in facts.lost_from_group[g]:
        primitive = lost.cause.primitive if lost.cause else None
        context = {"group_indices": (g,)} | _place(lost)
        text = f"group {g}: {words_of(facts, lost)}"
        paths = _hidden_paths(facts, [g])
        yield CompilationRecord(kind_of(lost), DiagnosticLevel.WARNING, text, primitive, None, paths, context)


def _of_model(facts: Facts, weight_paths: Sequence[Path], unused_hidden: Sequence[Path]) -> Iterator[CompilationRecord]:
    used = set().union(*(s.params for s in facts.sites))
    for p, leaf in enumerate(facts.step.select(Role.PARAM)):
        if p not in used and is_inexact(leaf.aval):
            text = f"the step does not use parameter {format_path(leaf.path, 'params')}"
            context = {"leaf_path": leaf.path}
            yield CompilationRecord(
                DiagnosticKind.PARAMETER_UNUSED, DiagnosticLevel.INFO, text, None, weight_paths[p], (), context
            )
    for path in unused_hidden:
        text = f"the step neither reads nor writes hidden state {format_path(path, 'hidden')}"
        yield CompilationRecord(DiagnosticKind.HIDDEN_STATE_UNUSED, DiagnosticLevel.INFO, text, None, None, (path,))
    for problem in facts.edges.problems:
        if "not known" in problem.text:
            text = f"{problem.cause} {problem.text}: each element of its result is taken to depend on all that it reads"
            context = {"source": problem.cause.source}
            yield CompilationRecord(
                DiagnosticKind.UNKNOWN_PRIMITIVE,
                DiagnosticLevel.WARNING,
                text,
                problem.cause.primitive,
                None,
                (),
                context,
            )
    for cast in facts.casts:
        text = (
            f"{cast} casts a complex number to a real one and drops its imaginary part; say `jnp.real` if that is meant"
        )
        context = {"source": cast.source}
        yield CompilationRecord(
            DiagnosticKind.COMPLEX_TO_REAL, DiagnosticLevel.WARNING, text, cast.primitive, None, (), context
        )
    if not facts.groups:
        text = "the step has no hidden state with derivatives: nothing is traced, every gradient is that of one step"
        yield CompilationRecord(DiagnosticKind.NO_HIDDEN_STATE, DiagnosticLevel.WARNING, text)


def kind_of(lost: LostPath) -> DiagnosticKind:
    return _KIND_OF_LOST_PATH[lost.kind]


def _place(lost: LostPath) -> dict[str, Source | None]:
    return {"source": lost.cause.source} if lost.cause else {}
