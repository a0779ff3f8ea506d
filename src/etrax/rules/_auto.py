"""The compiler's own choice: for each parameter the most exact rule whose traces fit together into a budget.

Candidates go from no trace to the whole influence matrix, by way of what lower layers do to those above them. The
choice starts from the best single rule that fits, takes for every parameter the cheapest rule of the same worth, and
spends what is left of the budget on parameters that are not exact yet, the cheapest first. No parameter is less exact
than under that single rule.

Memory is counted in bytes of traces, which are known before anything runs. Time is counted in arithmetic operations of
one step, which the lowered program tells; it is a prediction that does not depend on how busy the machine is.

Rules that are not exact are ranked by how much they carry, or by the cosines that a meter measures on a sample of data.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from .._arguments import check_arrays, check_whole, format_bytes, parse_bytes, short
from .._errors import ArgumentError
from ..compiler.analysis import Facts, memoised
from ..compiler.ir import LossFunction, PyTree, Role, format_path
from ..compiler.opened import weights
from ..runtime import Transport, WindowRun, run_window
from ._d_rtrl import d_rtrl
from ._partition import linked_params, partition
from ._pp_prop import pp_prop
from ._rtrl import rtrl
from ._rule import Rule
from ._series import in_series
from ._tbptt import tbptt
from ._verdicts import Kind, Verdict

DEFAULT_MEMORY = 1e9  # bytes

# The rules to choose from whatever the budget, and how much each of them carries. Of two that are worth the same, the
# one with the smaller trace is taken, or else the one that stands first here.
_CARRIES = {
    tbptt(): 0, pp_prop(): 1, d_rtrl(): 3, d_rtrl(fan_out=0, hops=0): 2, d_rtrl(fan_out=None, hops=1): 4, rtrl(): 5,
}  # fmt: skip
_WORTH = {Kind.TRUNCATED: 0, Kind.APPROXIMATE: 1, Kind.EXACT: 100, Kind.UNUSED: 100}


@dataclass(frozen=True, eq=False)
class Sample:
    """Data on which rules are measured: a sequence, its loss, and the window that gradients are taken with."""

    loss_fn: LossFunction
    inputs: PyTree
    targets: PyTree
    window: int


# By rule, the cosine of its gradient of a sample with the true one, by number of the parameter.
Cosines: TypeAlias = Callable[[Rule, Sample], Mapping[int, float]]


class Offer(NamedTuple):
    """What a rule gives a cluster of parameters: the worth of the least exact one, and the bytes of its traces."""

    rule: Rule
    worth: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class Choice:
    """The rule of every cluster of parameters that share weight ops, and what each could have."""

    clusters: Sequence[frozenset[int]]
    candidates: Sequence[Rule]
    offers: Sequence[Sequence[Offer]]
    taken: Sequence[Offer]
    rule: Rule


def auto(
    memory: float | str | None = None, time: float | None = None, *,
    sample: tuple[LossFunction, PyTree, PyTree] | None = None, window: int = 1,
) -> Rule:  # fmt: skip
    """For each parameter, the most exact rule such that all traces fit into `memory` (bytes, or a text such as "2 GB").

    - `memory`: the budget for all traces; by default 1 GB.
    - `time`: the most arithmetic operations for a step with a window of one, as a multiple of those of truncated BPTT.
    - `sample`: `(loss_fn, inputs, targets)`, a short sequence of your data. Rules that are not exact are then ranked by
      the cosine of their gradient with the true one at the model's parameters, measured by a meter (`learner.meter`)
      while the model is compiled.
    - `window`: the window for which they are measured.

    The choice is made when a model is compiled, from the shapes that it is compiled for: `print(learner.rule)` shows
    it, and the report lists the alternatives.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda p, h, x: (jnp.tanh(x @ p["w"] + h @ p["u"]),) * 2
    >>> params = {"w": jnp.ones((3, 4)), "u": jnp.ones((4, 4))}
    >>> learner = etrax.compile(step, "auto", jnp.ones(3), params=params, hidden=jnp.zeros(4))
    >>> print(learner.rule)
    rtrl()
    >>> print(learner.with_rule(etrax.auto(memory=300)).rule)
    partition({"u": d_rtrl(), "w": rtrl()})
    """
    asked = parse_bytes("memory", memory)
    budget = DEFAULT_MEMORY if asked is None else asked
    if time is not None and (isinstance(time, bool) or not isinstance(time, int | float) or not time >= 1):
        raise ArgumentError(
            f"`auto`: `time` is {short(time)}; expected a number of at least 1, the work of a step as a multiple of "
            "that of `tbptt`."
        )
    options: dict[str, object] = {} if memory is None else {"memory": memory}
    options |= {} if time is None else {"time": time}
    data = _checked(sample, window)
    options |= {} if data is None else {"sample": data}

    def resolve(facts: Facts, trace_dtype: DTypeLike | None, cosines: Cosines | None = None) -> Rule:
        bounds = budget, math.inf if time is None else float(time), trace_dtype
        candidates = tuple(_candidates(facts, budget, trace_dtype))
        measured = None if data is None or cosines is None else _measured(facts, candidates, data, cosines)
        choice = _choose(facts, *bounds) if measured is None else _chosen(facts, *bounds, measured)
        work = [] if time is None else _work_notes(facts, choice, trace_dtype)
        return replace(choice.rule, notes=lambda f: [*choice.rule.notes(f), *_notes(f, choice, budget), *work])

    def transport(facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None) -> Transport[Any]:
        return resolve(facts, trace_dtype).transport(facts, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        return resolve(facts, None).verdict(facts, param)

    return Rule("auto", transport, verdict, options, resolve=resolve, facts_for=in_series)


def _checked(sample: object, window: int) -> Sample | None:
    if sample is None:
        return None
    if not isinstance(sample, tuple) or len(sample) != 3 or not callable(sample[0]):
        raise ArgumentError(f"`auto`: `sample` is {short(sample)}; expected a tuple (loss_fn, inputs, targets).")
    for what, tree in (("sample", sample[1]), ("sample", sample[2])):
        check_arrays(what, tree)
    return Sample(*sample, check_whole("window", window, "steps"))


def _all_exact(facts: Facts, rule: Rule) -> bool:
    params = range(len(facts.step.select(Role.PARAM)))
    return all(_WORTH[rule.verdict(facts, i).kind] == _WORTH[Kind.EXACT] for i in params)


@memoised
def _candidates(facts: Facts, budget: float, trace_dtype: DTypeLike | None) -> dict[Rule, int]:
    """The rules to choose from, and how much each carries.

    Where `d_rtrl()` leaves out something, `d_rtrl(depth=...)` is one of them, with a depth that fits into the budget.
    In a model with one group of states nothing lies below another layer, so that its analysis is spared.
    """
    depth = int(min(budget, sys.maxsize))
    if len(facts.groups) < 2 or _all_exact(facts, d_rtrl()):
        return _CARRIES
    while depth > 0:
        deep = d_rtrl(depth=depth)
        # What is carried in depth replaces a plain trace, so that the size of both tells how much is too much.
        excess = deep.size(facts, trace_dtype) - budget
        if excess <= 0:
            return {**_CARRIES, deep: _CARRIES[d_rtrl()]}
        depth -= math.ceil(excess)
    return _CARRIES


def _measured(
    facts: Facts, candidates: Sequence[Rule], sample: Sample, cosines: Cosines
) -> dict[Rule, Mapping[int, float]]:
    """Cosines of every candidate that is not exact for all parameters."""
    return {rule: cosines(rule, sample) for rule in candidates if not _all_exact(facts, rule)}


@memoised
def _choose(facts: Facts, budget: float, time: float, trace_dtype: DTypeLike | None) -> Choice:
    return _chosen(facts, budget, time, trace_dtype, {})


def _chosen(
    facts: Facts, budget: float, time: float, trace_dtype: DTypeLike | None,
    measured: Mapping[Rule, Mapping[int, float]],
) -> Choice:  # fmt: skip
    """The choice without `d_rtrl(depth=...)`, unless that one makes it better or smaller."""
    clusters = linked_params(facts)

    # The traces of a rule may share what they hold, so that the size of a choice is that of the whole of it.
    def fits(taken: Sequence[Offer]) -> bool:
        rule = _as_rule(facts, clusters, taken)
        if rule.size(facts, trace_dtype) > budget:
            return False
        return time == math.inf or work_of(facts, rule, trace_dtype) <= time * work_of(facts, tbptt(), trace_dtype)

    def choice(candidates: Mapping[Rule, int]) -> Choice:
        sizes = {rule: _bytes_by_site(facts, rule, trace_dtype) for rule in candidates}
        offers = [_offers(facts, cluster, candidates, sizes, measured) for cluster in clusters]
        # Of rules that are worth the same, the one with the fewest options stands first.
        ranked = sorted(range(len(candidates)), key=lambda n: (_score(clusters, [o[n] for o in offers], facts), -n))
        singles = ([offer[n] for offer in offers] for n in reversed(ranked))
        # Truncated BPTT always fits: it carries no trace, and its work is the unit of time.
        taken = _improved(offers, next(filter(fits, singles)), fits)
        return Choice(clusters, tuple(candidates), offers, taken, _as_rule(facts, clusters, taken))

    candidates = _candidates(facts, budget, trace_dtype)
    choices = [choice(_CARRIES), *([choice(candidates)] if len(candidates) > len(_CARRIES) else [])]
    worths = [(*_score(clusters, c.taken, facts)[:2], -c.rule.size(facts, trace_dtype)) for c in choices]
    return choices[worths.index(max(worths))]


def _improved(
    offers: Sequence[Sequence[Offer]], taken: list[Offer], fits: Callable[[Sequence[Offer]], bool]
) -> list[Offer]:
    """Cheaper rules of the same worth, then more exact ones, as long as everything fits."""
    steps = [(n, o) for n, old in enumerate(taken) for o in offers[n] if o.worth == old.worth and o.nbytes < old.nbytes]
    steps.sort(key=lambda step: step[1].nbytes)
    upgrades = [(n, o) for n, old in enumerate(taken) for o in offers[n] if o.worth > old.worth]
    # The most exact first where it is cheap: bytes for each cluster, exact ones before those that are only better.
    upgrades.sort(key=lambda step: (-(step[1].worth == _WORTH[Kind.EXACT]), step[1].nbytes))
    for n, offer in (*steps, *upgrades):
        now = taken[n]
        if (offer.worth, -offer.nbytes) <= (now.worth, -now.nbytes):
            continue
        tried = [*taken[:n], offer, *taken[n + 1 :]]
        if fits(tried):
            taken = tried
    return taken


def _bytes_by_site(facts: Facts, rule: Rule, trace_dtype: DTypeLike | None) -> dict[int, int]:
    transport = rule.transport(facts, None, trace_dtype)
    parts = jax.eval_shape(lambda: transport.parts(transport.init()))
    return {j: sum(math.prod(a.shape) * a.dtype.itemsize for a in arrays) for j, arrays in parts.items()}


def _offers(
    facts: Facts, cluster: frozenset[int], candidates: Mapping[Rule, int], sizes: Mapping[Rule, Mapping[int, int]],
    measured: Mapping[Rule, Mapping[int, float]],
) -> list[Offer]:  # fmt: skip
    """What each candidate gives; those that leave out the same, in the same words, are worth the same.

    What was measured counts instead of words and of how much is carried.
    """
    sites, offers = {j for i in cluster for j in facts.sites_of(i)}, []
    reasons: dict[tuple[str, ...], int] = {}
    for rule, carries in candidates.items():
        verdicts = [rule.verdict(facts, i) for i in sorted(cluster)]
        worth = min(_WORTH[verdict.kind] for verdict in verdicts)
        if measured and worth < _WORTH[Kind.EXACT]:
            worth = _measured_worth(cluster, measured[rule])
        elif worth == _WORTH[Kind.APPROXIMATE]:
            worth += reasons.setdefault(tuple(verdict.full for verdict in verdicts), carries)
        offers.append(Offer(rule, worth, sum(sizes[rule].get(j, 0) for j in sites)))
    return offers


def _measured_worth(cluster: frozenset[int], cosines: Mapping[int, float]) -> int:
    """From 0 (uphill, or never run) to 90 (the true direction), in steps of about 0.02 of the least cosine.

    A gradient of zero has no angle; it does no harm, and counts as a cosine of zero.
    """
    angles = [cosines.get(i, -1.0) for i in cluster]
    least = min(0.0 if math.isnan(c) else c for c in angles)
    return round(45 * (1 + least))


def _score(clusters: Sequence[frozenset[int]], offers: Sequence[Offer], facts: Facts) -> tuple[int, int, int]:
    """How good a rule is for all: numbers that are exact, then the sum of worths, then few bytes."""
    leaves = facts.step.select(Role.PARAM)
    sizes = [sum(leaves[i].aval.size for i in cluster) for cluster in clusters]
    exact = sum(n for n, o in zip(sizes, offers, strict=True) if o.worth == _WORTH[Kind.EXACT])
    return exact, sum(n * o.worth for n, o in zip(sizes, offers, strict=True)), -sum(o.nbytes for o in offers)


def _as_rule(facts: Facts, clusters: Sequence[frozenset[int]], taken: Sequence[Offer]) -> Rule:
    """One rule if all have the same, else a partition; parameters without any trace follow the others."""
    carried = {o.rule for o in taken if o.nbytes} or {taken[0].rule if taken else tbptt()}
    if len(carried) == 1 and all(o.nbytes or o.worth == _WORTH[Kind.EXACT] for o in taken):
        return next(iter(carried))
    rules = {o.rule for o in taken}
    if len(rules) == 1:
        return next(iter(rules))
    leaves = facts.step.select(Role.PARAM)
    pairs = [(leaves[i].path, o.rule) for cluster, o in zip(clusters, taken, strict=True) for i in sorted(cluster)]
    pairs.sort(key=lambda pair: format_path(pair[0], "params"))
    return partition({path: rule for path, rule in pairs})


@memoised
def work_of(facts: Facts, rule: Rule, trace_dtype: DTypeLike | None = None) -> float:
    """Arithmetic operations of one step with a loss at its end, by the program that is lowered for it."""
    transport = rule.transport(facts, None, trace_dtype)
    leaves = facts.step.ins

    def window(values: list[jax.Array], trace: Any) -> Any:
        params = values[: len(facts.step.select(Role.PARAM))]
        states = facts.step.states_of(values)
        inputs = [a[None] for a in values[len(params) + len(facts.states) :]]

        def loss_of(outputs: list[jax.Array], _: Any) -> tuple[jax.Array, tuple[()]]:
            moving = [jnp.real(o).sum() for o in outputs if jnp.issubdtype(o.dtype, jnp.inexact)]
            return sum(moving, jnp.zeros(())), ()

        used = weights(facts.step, facts.sites, params)
        result = run_window(facts, transport, WindowRun(params, used, states, trace, inputs, (), loss_of))
        return result.grads, result.states, result.trace

    shapes = [jax.ShapeDtypeStruct(leaf.aval.shape, leaf.aval.dtype) for leaf in leaves]
    counts = jax.jit(window).lower(shapes, jax.eval_shape(transport.init)).cost_analysis()
    return float((counts or {}).get("flops", 0.0))


def _work_notes(facts: Facts, choice: Choice, trace_dtype: DTypeLike | None) -> list[str]:
    """What a step takes under the choice, and under every rule alone, where work is bounded."""
    unit, chosen = work_of(facts, tbptt(), trace_dtype), choice.rule
    shares = {rule: work_of(facts, rule, trace_dtype) / unit for rule in dict.fromkeys((chosen, *choice.candidates))}
    alone = ", ".join(f"{rule} {share:.1f}" for rule, share in shares.items() if rule not in (chosen, tbptt()))
    return [f"a step takes {shares[chosen]:.1f} times the operations of {tbptt()}; alone, {alone}"]


def _notes(facts: Facts, choice: Choice, budget: float) -> list[str]:
    """What was chosen, what would become exact and for how much more memory."""
    used = choice.rule.size(facts)
    notes = [f"`auto` chose {choice.rule} for {format_bytes(used)} of traces, within {format_bytes(budget)}"]
    leaves = facts.step.select(Role.PARAM)
    for cluster, offers, now in zip(choice.clusters, choice.offers, choice.taken, strict=True):
        if now.worth == _WORTH[Kind.EXACT]:
            continue
        exact = [o for o in offers if o.worth == _WORTH[Kind.EXACT]]
        names = ", ".join(format_path(leaves[i].path, "params") for i in sorted(cluster))
        if exact:
            best = min(exact, key=lambda o: o.nbytes)
            more = format_bytes(best.nbytes - now.nbytes)
            notes.append(f"{names} would be exact under {best.rule}, for {more} more")
        else:
            notes.append(f"{names} would be exact under none of the rules that `auto` chooses from")
    return notes
