"""Verdicts: what a parameter's gradient is worth under a rule, derived from the facts, with the reason.

A rule's verdict is one of the functions here, or is built of them. Each takes the facts and a parameter's number.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from .._arguments import format_bytes
from .._compat import is_inexact
from ..compiler.analysis import (
    NO_FAN_OUT,
    Elements,
    Facts,
    FanOut,
    LostKind,
    LostPath,
    OpNode,
    Relation,
    StateNode,
    least_window,
    lost_from_op,
    lost_from_reached,
    memoised,
    rounded_gradients,
    signalled_sites,
    trace_bytes,
    traced_elements,
    traced_relations,
)
from ..compiler.ir import Role
from ..runtime import Signal, Transport
from ._wording import fitting
from ._words import in_brief, in_words, listed, words_of

# Of how many ops, states and paths a reason speaks: of all, or of so many, if it would be too long.
_SHORTER = (None, 3, 1)
_IN_PART = "a trace that is carried in part can be worse than none: compare with `tbptt` by `etrax.testing.compare`"
_IN_PART_BRIEF = "a trace that is carried in part can be worse than `tbptt`"


class Kind(StrEnum):
    EXACT = "exact"
    APPROXIMATE = "approximate"
    TRUNCATED = "truncated"
    UNUSED = "unused"


class Verdict(NamedTuple):
    """`kind`, and `reason`: a sentence that a user can act on, of at most 300 characters. `full` has all of it.

    In windows of fewer than `least_window` steps no credit reaches the parameter, and its gradient is exactly zero;
    None says that it is so in every window. `kind` is what holds for all windows, and `kind_at(window)` for one of
    them: a parameter whose trace needs two steps to be seen is truncated, and approximate from windows of two steps on.
    `wordings` say the reason in other words, the longest first; there are none if it needs few.
    """

    kind: Kind
    reason: str
    least_window: int | None = 1
    later: Kind | None = None
    wordings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items() if name != "wordings")
        return f"Verdict({fields})"

    @property
    def full(self) -> str:
        """The reason with every path that is not carried, and its place."""
        return self.wordings[0] if self.wordings else self.reason

    def kind_at(self, window: int) -> Kind:
        """The kind that holds for windows of so many steps.

        >>> verdict = Verdict(Kind.TRUNCATED, "…", least_window=2, later=Kind.APPROXIMATE)
        >>> str(verdict.kind_at(1)), str(verdict.kind_at(2))
        ('truncated', 'approximate')
        """
        arrives = self.least_window is not None and window >= self.least_window
        return self.later if self.later is not None and arrives else self.kind


def worded(kind: Kind, *texts: str, least_window: int | None = 1, later: Kind | None = None) -> Verdict:
    """A verdict whose reason is the first of its wordings, from the longest to the shortest, that is short enough."""
    wordings = tuple(dict.fromkeys(texts))
    return Verdict(kind, fitting(wordings), least_window, later, wordings if len(wordings) > 1 else ())


def wordings_within(verdict: Verdict, before: str, after: str = "") -> list[str]:
    """The wordings of a verdict as a part of a longer sentence."""
    return [f"{before}{text}{after}" for text in verdict.wordings or (verdict.reason,)]


def trivial_verdict(facts: Facts, param: int) -> Verdict | None:
    """The verdict of a parameter that no rule can get wrong: it has no gradient, or reaches no state that matters."""
    leaf = facts.step.select(Role.PARAM)[param]
    if not is_inexact(leaf.aval):
        return Verdict(Kind.UNUSED, f"it holds {leaf.aval.dtype} numbers, which have no gradient")
    if not leaf.aval.size:
        return Verdict(Kind.UNUSED, f"it has no elements (its shape is {list(leaf.aval.shape)})")
    sites = facts.live_sites_of(param)
    if not sites:
        unused = "it reaches no output, now or later: its gradient is zero"
        return worded(Kind.UNUSED, *(unused + _where_used(facts, param, most) for most in _SHORTER))
    if not any(facts.remembers(OpNode(j)) for j in sites):
        acts = [f"{_labels(facts, sites, most)} acts on the output of its own step only" for most in _SHORTER]
        rounded = rounded_gradients(facts, param)
        if rounded:
            return worded(Kind.APPROXIMATE, *(f"{text}; {words_of(facts, rounded[0])}" for text in acts))
        return worded(Kind.EXACT, *(f"{text}, which every window differentiates exactly" for text in acts))
    return None


def _where_used(facts: Facts, param: int, most: int | None) -> str:
    sites = facts.sites_of(param)
    return f"; it is read by {_labels(facts, sites, most)}" if sites else ""


def _labels(facts: Facts, sites: list[int], most: int | None) -> str:
    return listed([facts.sites[j].label for j in sites], most)


def with_least_window(facts: Facts, param: int, verdict: Verdict, traced: Elements) -> Verdict:
    """The verdict, with the least window in which credit arrives from the elements that have a trace."""
    if verdict.kind in (Kind.EXACT, Kind.UNUSED):
        return verdict
    least = least_window(facts, facts.live_sites_of(param), traced)
    if least is None and not facts.edges.problems:
        return Verdict(Kind.UNUSED, "no element of it reaches an output, now or later: its gradient is zero")
    if least is None or least == 1:
        return verdict
    none = f"no credit reaches it in windows of fewer than {least} steps, where its gradient is zero"
    if verdict.kind is Kind.TRUNCATED:
        texts = wordings_within(verdict, "", f"; {none}, for {_shown_late(least)}")
        return worded(Kind.TRUNCATED, *texts, least_window=least)
    texts = wordings_within(verdict, f"{none}: {_shown_late(least)}. From windows of {least} steps on, ")
    return worded(Kind.TRUNCATED, *texts, least_window=least, later=verdict.kind)


def with_own_step(
    facts: Facts, param: int, verdict: Verdict, traced: Elements, transport: Callable[..., Transport[Any]]
) -> Verdict:
    """The verdict of a rule that takes the loss of each step alone: no window is longer than a step to it."""
    later, sites = with_least_window(facts, param, verdict, traced), facts.live_sites_of(param)
    if later.kind in (Kind.EXACT, Kind.UNUSED):
        return later
    signal = _signal_of(facts, transport)
    if signal is None or not signal.replaces.issuperset(sites):
        return later
    least = later.least_window
    if least is None:
        return later
    if least == 1:
        met = any(mask.any() for i, mask in traced.items() if signal.seen is None or i in signal.seen)
        if met or least_window(facts, sites, {}) == 1:
            return later
        why = "the loss of a step sees no state to which its trace is carried"
    else:
        why = f"{_shown_late(least)}, and the loss of a step meets its own step only"
    texts = wordings_within(verdict, f"no credit reaches it, and its gradient is zero: {why}. Otherwise, ")
    return worded(Kind.TRUNCATED, *texts, least_window=None)


@memoised
def _signal_of(facts: Facts, transport: Callable[..., Transport[Any]]) -> Signal[Any] | None:
    return transport(facts, None, None).signal


def _shown_late(least: int) -> str:
    return f"an output shows it only {least - 1} step{'s' * (least > 2)} later"


def with_traced_window(facts: Facts, param: int, verdict: Verdict, fan_out: FanOut = NO_FAN_OUT) -> Verdict:
    """The verdict on the traces of D-RTRL, with the least window in which they give credit."""
    if verdict.kind in (Kind.EXACT, Kind.UNUSED):
        return verdict
    return with_least_window(facts, param, verdict, traced_elements(facts, relations_of(facts, param, fan_out)))


def relations_of(facts: Facts, param: int, fan_out: FanOut = NO_FAN_OUT) -> list[Relation]:
    """The relations of a parameter that have a trace."""
    return [r for r in traced_relations(facts, fan_out) if param in facts.sites[r.site].params]


def carried_groups(facts: Facts, param: int, fan_out: FanOut = NO_FAN_OUT) -> list[int]:
    """Groups to which a trace of this parameter is carried position by position."""
    return list(dict.fromkeys(r.group for r in relations_of(facts, param, fan_out)))


def lost_paths(facts: Facts, param: int, fan_out: FanOut = NO_FAN_OUT) -> list[LostPath]:
    """Every path from a parameter to a state that per-position blocks of the cut step do not carry."""
    sites = facts.live_sites_of(param)
    lost = [path for j in sites for path in lost_from_op(facts, j, fan_out)]
    lost += rounded_gradients(facts, param)
    for group in carried_groups(facts, param, fan_out):
        lost += lost_from_reached(facts, group, tuple(sites))
    return list(dict.fromkeys(lost))


def by_position_verdict(facts: Facts, param: int, fan_out: FanOut = NO_FAN_OUT) -> Verdict:
    """Per-position blocks with the mixing weight ops cut: D-RTRL, with copies of outputs as far as `fan_out` allows."""
    trivial = trivial_verdict(facts, param)
    if trivial is not None:
        return trivial
    groups, lost = carried_groups(facts, param, fan_out), lost_paths(facts, param, fan_out)
    names = [facts.state_name(i) for g in groups for i in facts.groups[g].leaves]
    sites = facts.live_sites_of(param)
    used, states = ([of(most) for most in _SHORTER] for of in (partial(_labels, facts, sites), partial(listed, names)))
    if not lost:
        reached = _reached(facts, param, fan_out)
        return worded(
            Kind.EXACT,
            *(
                f"each element of {u} acts on {reached} {s}, whose recurrence is carried whole"
                for u, s in zip(used, states, strict=True)
            ),
        )
    paths = [in_words(facts, lost), *(in_brief(facts, lost, most) for most in _SHORTER if most is not None)]
    if not groups:
        why = "its gradient is exact inside a window only"
        texts = [f"no trace is carried from {u}, {why}: {text}" for u, text in zip(used, paths, strict=True)]
        return worded(Kind.TRUNCATED, *texts, f"no trace is carried from {used[-1]}: {paths[-1]}")
    in_part = any(path.kind is LostKind.TAIL for path in lost)
    warnings = [f"; {text}" if in_part else "" for text in (_IN_PART, _IN_PART_BRIEF, _IN_PART_BRIEF)]
    texts = [
        f"a trace is carried from {u} to {s}; not carried: {text}{warning}"
        for u, s, text, warning in zip(used, states, paths, warnings, strict=True)
    ]
    return worded(Kind.APPROXIMATE, *texts, f"not carried: {paths[-1]}{warnings[-1]}", f"not carried: {paths[-1]}")


def _reached(facts: Facts, param: int, fan_out: FanOut) -> str:
    """How a parameter's ops reach positions: one by one, or as pairs and their cost."""
    traced = relations_of(facts, param, fan_out)
    pairs = sum(r.copies.pairs for r in traced if r.copies is not None)
    if not pairs:
        return "one position of"
    size = format_bytes(sum(trace_bytes(facts, r) for r in traced if r.copies is not None))
    return f"several positions, and has a trace for each of them ({pairs} pairs, {size}), of"


def no_trace_verdict(facts: Facts, param: int) -> Verdict:
    """No trace at all: truncated BPTT."""
    trivial = trivial_verdict(facts, param)
    if trivial is not None:
        return trivial
    plain = Verdict(Kind.TRUNCATED, "this rule carries no trace: the gradient is exact inside a window only")
    return with_least_window(facts, param, plain, {})


def whole_influence_verdict(facts: Facts, param: int) -> Verdict:
    """The whole Jacobian of the step: exact RTRL."""
    trivial = trivial_verdict(facts, param)
    if trivial is not None:
        return trivial
    lost = [*facts.nonlinear, *rounded_gradients(facts, param)]
    if lost:
        return Verdict(Kind.APPROXIMATE, f"the whole influence matrix is carried; {words_of(facts, lost[0])}")
    return Verdict(Kind.EXACT, "the whole influence of the parameter on every state is carried")


def other_recurrence_verdict(facts: Facts, param: int, how: str, fan_out: FanOut = NO_FAN_OUT) -> Verdict:
    """D-RTRL's verdict where there is a trace, but one whose recurrence is replaced by something not proven equal."""
    plain = by_position_verdict(facts, param, fan_out)
    if trivial_verdict(facts, param) is not None or not carried_groups(facts, param, fan_out):
        return plain
    return replaced(plain, how)


def replaced(plain: Verdict, *how: str) -> Verdict:
    """An approximate verdict that says what is done in another way than by `plain`, and what that one leaves out."""
    if plain.kind is Kind.EXACT:
        return worded(Kind.APPROXIMATE, *how)
    return worded(Kind.APPROXIMATE, *(t for text in how for t in wordings_within(plain, f"{text}; moreover, ")))


def other_signal_verdict(facts: Facts, param: int, how: str, fan_out: FanOut = NO_FAN_OUT) -> Verdict:
    """The verdict under a learning signal other than the gradient of the loss: never exact for what reaches a state."""
    trivial = trivial_verdict(facts, param)
    if trivial is not None:
        return trivial
    sites = facts.live_sites_of(param)
    if not signalled_sites(facts, fan_out) & set(sites) and all(facts.remembers(OpNode(j)) for j in sites):
        texts = [f"{how}, and {_no_signal(facts, sites)}", f"{how}, and {_NO_SIGNAL}"]
        return worded(Kind.TRUNCATED, *texts, least_window=None)
    plain = by_position_verdict(facts, param, fan_out)
    if not carried_groups(facts, param, fan_out):
        texts = wordings_within(plain, f"{how}, and it is the effect of one step only that it acts on: ")
        return worded(Kind.TRUNCATED, *texts)
    return replaced(plain, how)


_NO_SIGNAL = (
    "none reaches it: its gradient is zero in every window. Let a weight op or an output of the step read the new "
    "state, or use `etrax.d_rtrl()`"
)


def _no_signal(facts: Facts, sites: list[int]) -> str:
    """Why a parameter gets no learning signal, and what helps."""
    states = {t.index for s, t, _ in facts.edges.between(OpNode, StateNode) if s.index in sites}
    reached = ", ".join(facts.state_name(i) for i in sorted(states)) or "hidden states"
    return (
        f"none reaches it, so that its gradient is zero in every window: {_labels(facts, sites, None)} acts on "
        f"{reached}, and what the step shows of the new states to weight ops and outputs is not made of that without "
        "a weight op in between. Let a weight op or an output of the step read the new state, or use "
        "`etrax.d_rtrl()`, whose gradient passes weight ops"
    )
