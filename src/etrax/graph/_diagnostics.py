"""Diagnostics: what the compiler kept, what it left out, and where in the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from .._compat import JaxprEqn, is_inexact
from ..compiler.analysis import Facts, LostKind, LostPath, lost_from_op
from ..compiler.dataflow import NO_REVERSE, TRAINABLE, UNKNOWN
from ..compiler.ir import Path, PyTree, Role, Source, format_path, source_of_eqn
from ..compiler.primitives import Cause
from ..rules import words_of


class DiagnosticLevel(StrEnum):
    """How much a record matters.

    >>> from etrax import DiagnosticLevel
    >>> DiagnosticLevel("warning") is DiagnosticLevel.WARNING
    True
    """

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class DiagnosticKind(StrEnum):
    """What a record is about.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> {str(record.kind) for record in learner.graph.diagnostics} <= {str(kind) for kind in etrax.DiagnosticKind}
    True
    """

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

    # Findings that no record of this compiler has: code for braintrace, which shares this enumeration, asks for them.
    RELATION_EXCLUDED_NO_PARAMSTATE = "relation_excluded_no_paramstate"
    RELATION_EXCLUDED_SHAPE_MISMATCH = "relation_excluded_shape_mismatch"
    RELATION_EXCLUDED_SLICED_WEIGHT = "relation_excluded_sliced_weight"
    TRAINABLE_INVAR_NOT_PARAMSTATE = "trainable_invar_not_paramstate"
    COND_IF_CONVERTED = "cond_if_converted"
    COND_CONVERSION_SKIPPED = "cond_conversion_skipped"
    SCAN_UNROLLED = "scan_unrolled"
    SCAN_UNROLL_SKIPPED = "scan_unroll_skipped"
    SCAN_DESCENT_APPLIED = "scan_descent_applied"
    SCAN_DESCENT_SKIPPED = "scan_descent_skipped"
    SCAN_DESCENT_NO_RELATIONS = "scan_descent_no_relations"
    WEIGHT_IN_WHILE = "weight_in_while"
    WEIGHT_IN_CONTROL_FLOW = "weight_in_control_flow"
    CONTROL_FLOW_OPAQUE_FWD = "control_flow_opaque_fwd"
    CONTROL_FLOW_RECURRENT_MIXING = "control_flow_recurrent_mixing"
    OUTPUT_BYPASSES_HIDDEN = "output_bypasses_hidden"
    OUTPUT_BYPASS_DROPPED = "output_bypass_dropped"
    PRIMITIVE_INSIDE_NESTED_JIT = "primitive_inside_nested_jit"
    PRIMITIVE_INSIDE_CONTROL_FLOW = "primitive_inside_control_flow"
    MULTI_OUTPUT_PRIMITIVE_DETECTED = "multi_output_primitive_detected"
    PYTREE_WEIGHT_LEAF_AMBIGUOUS = "pytree_weight_leaf_ambiguous"
    SNAP_PATTERN_CONSERVATIVE = "snap_pattern_conservative"
    SNAP_PATTERN_DEGENERATE = "snap_pattern_degenerate"
    TRANSITION_TAIL_BOUNDED = "transition_tail_bounded"
    HIDDEN_GROUP_MERGED = "hidden_group_merged"
    STATE_MISMATCH = "state_mismatch"


_KIND_OF_LOST_PATH = {
    LostKind.TAIL: DiagnosticKind.RELATION_EXCLUDED_MIXING_TAIL,
    LostKind.THROUGH_OP: DiagnosticKind.RELATION_EXCLUDED_WEIGHT_TO_WEIGHT,
    LostKind.MIXING: DiagnosticKind.TRANSITION_MIXES_POSITIONS,
    LostKind.RECURRENT_OP: DiagnosticKind.RECURRENT_WEIGHT_CUT,
    LostKind.OTHER_GROUP: DiagnosticKind.TRANSITION_CROSSES_GROUPS,
    LostKind.OTHER_STATE: DiagnosticKind.STATE_NOT_HIDDEN,
    LostKind.HALF: DiagnosticKind.RELATION_PARTIAL_PATH,
    LostKind.RESCALED: DiagnosticKind.RELATION_PARTIAL_PATH,
    LostKind.NONLINEAR: DiagnosticKind.NONLINEAR_DERIVATIVE,
    LostKind.UNKNOWN: DiagnosticKind.NONLINEAR_DERIVATIVE,
    LostKind.ROUNDED: DiagnosticKind.NONLINEAR_DERIVATIVE,
}


class CompilationWarning(UserWarning):
    """A record of level `WARNING`, said when a graph is compiled."""


class CompilationRecord(NamedTuple):
    """One finding. `weight_path` and `hidden_paths` name what it is about, `context` holds group and op numbers.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> all(record.message for record in learner.graph.diagnostics)
    True
    """

    kind: DiagnosticKind
    level: DiagnosticLevel
    message: str
    primitive: str | None = None
    weight_path: Path | None = None
    hidden_paths: tuple[Path, ...] = ()
    context: Mapping[str, PyTree] = MappingProxyType({})

    def __str__(self) -> str:
        return f"[{self.level.value}] {self.kind.value}: {self.message}"

    @property
    def _brief(self) -> str:
        return f"{self.level.value} {self.kind.value}"


def records(facts: Facts, weight_paths: Sequence[Path], unused_hidden: Sequence[Path]) -> tuple[CompilationRecord, ...]:
    """All records: first each weight op in program order, then each group, then what concerns the model.

    `weight_paths` are the state paths of the parameter leaves, `unused_hidden` hidden states that no step touches.
    """
    of_sites = [r for j in range(len(facts.sites)) for r in _of_site(facts, j, weight_paths)]
    of_groups = [r for g in range(len(facts.groups)) for r in _of_group(facts, g)]
    return (*of_sites, *of_groups, *_of_model(facts, weight_paths, unused_hidden))


def _info(kind: DiagnosticKind, text: str, weight_path: Path | None = None, **more: PyTree) -> CompilationRecord:
    return CompilationRecord(kind, DiagnosticLevel.INFO, text, weight_path=weight_path, **more)


def _warning(kind: DiagnosticKind, text: str, **more: PyTree) -> CompilationRecord:
    return CompilationRecord(kind, DiagnosticLevel.WARNING, text, **more)


def _at_cause(kind: DiagnosticKind, text: str, cause: Cause) -> CompilationRecord:
    return _warning(kind, text, primitive=cause.primitive, context={"source": cause.source})


def loop_records(loops: Iterable[JaxprEqn]) -> tuple[CompilationRecord, ...]:
    """One for each loop that keeps a step from being trained."""
    out = []
    for eqn in loops:
        cause = Cause(eqn.primitive.name, source_of_eqn(eqn))
        text = f"{cause} is or holds a `while_loop`, {NO_REVERSE}. The graph shows what it connects; {TRAINABLE}"
        out.append(_at_cause(DiagnosticKind.LOOP_WITHOUT_DERIVATIVE, text, cause))
    return tuple(out)


def _hidden_paths(facts: Facts, groups: Sequence[int]) -> tuple[Path, ...]:
    hidden = facts.step.select(Role.HIDDEN)
    return tuple(hidden[i].path for g in groups for i in facts.groups[g].leaves)


def _of_site(facts: Facts, j: int, weight_paths: Sequence[Path]) -> Iterator[CompilationRecord]:
    site, primitive = facts.sites[j], facts.sites[j].call.primitive
    relations = facts.relations_of.get(j, ())
    traced = [r.group for r in relations if r.representable]
    untraced = [r.group for r in relations if not r.representable]
    names = ", ".join(facts.params_of(j))
    lost_paths = lost_from_op(facts, j)
    params = facts.step.select(Role.PARAM)
    for p in sorted(site.params):
        path, leaf = weight_paths[p], params[p]
        context = {"op": j, "group_indices": tuple(traced), "leaf_path": leaf.path, "source": site.source}
        about = {"primitive": primitive, "weight_path": path, "hidden_paths": _hidden_paths(facts, traced)}
        if traced:
            text = f"{names} reaches group {', '.join(map(str, traced))} through {site.label}"
            yield _info(DiagnosticKind.RELATION_INCLUDED, text, **about, context=context)
        elif not untraced and not lost_paths:
            text = f"{names} reaches no hidden state within the step through {site.label}: its gradient needs no trace"
            yield _info(DiagnosticKind.RELATION_EXCLUDED_NON_TEMPORAL, text, **about, context=context)
        for lost in lost_paths:
            kind = _KIND_OF_LOST_PATH[lost.kind]
            # Where a trace carries other paths of the op, what is lost is a part of its influence.
            if traced and lost.kind in (LostKind.TAIL, LostKind.THROUGH_OP):
                kind = DiagnosticKind.RELATION_PARTIAL_PATH
            groups = untraced if lost.kind is LostKind.TAIL else traced
            about |= {"hidden_paths": _hidden_paths(facts, groups)}
            more = context | {"group_indices": tuple(groups)} | _source(lost)
            yield _warning(kind, f"{names} in {site.label}: {words_of(facts, lost)}", **about, context=more)


def _of_group(facts: Facts, g: int) -> Iterator[CompilationRecord]:
    paths = _hidden_paths(facts, [g])
    for lost in facts.lost_from_group[g]:
        primitive, context = lost.cause.primitive if lost.cause else None, {"group_indices": (g,)} | _source(lost)
        text = f"group {g}: {words_of(facts, lost)}"
        yield _warning(_KIND_OF_LOST_PATH[lost.kind], text, primitive=primitive, hidden_paths=paths, context=context)


def _of_model(facts: Facts, weight_paths: Sequence[Path], unused_hidden: Sequence[Path]) -> Iterator[CompilationRecord]:
    # Whole numbers have no gradient that could be missed.
    used = set().union(*(s.params for s in facts.sites))
    for p, leaf in enumerate(facts.step.select(Role.PARAM)):
        if p not in used and is_inexact(leaf.aval):
            text = f"the step does not use parameter {format_path(leaf.path, 'params')}"
            yield _info(DiagnosticKind.PARAMETER_UNUSED, text, weight_paths[p], context={"leaf_path": leaf.path})
    for path in unused_hidden:
        text = f"the step neither reads nor writes hidden state {format_path(path, 'hidden')}"
        yield _info(DiagnosticKind.HIDDEN_STATE_UNUSED, text, hidden_paths=(path,))
    for problem in facts.edges.problems:
        if problem.text == UNKNOWN:
            text = f"{problem.cause} {problem.text}: each element of its result is taken to depend on all that it reads"
            yield _at_cause(DiagnosticKind.UNKNOWN_PRIMITIVE, text, problem.cause)
    for cast in facts.casts:
        text = f"{cast} casts a complex number to a real one and drops its imaginary part"
        yield _at_cause(DiagnosticKind.COMPLEX_TO_REAL, f"{text}; say `jnp.real` if that is meant", cast)
    if not facts.groups:
        text = "the step has no hidden state with derivatives: nothing is traced, every gradient is that of one step"
        yield _warning(DiagnosticKind.NO_HIDDEN_STATE, text)


def _source(lost: LostPath) -> dict[str, Source | None]:
    return {"source": lost.cause.source} if lost.cause else {}
