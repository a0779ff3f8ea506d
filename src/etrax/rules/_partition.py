"""Different rules for different parameters.

    ε_t = (ε_t of rule 1 for its weight ops, ε_t of rule 2 for its own, …)

Traces of different weight ops never meet, so each rule carries those of its own parameters, and the gradient of the
window is shared by all. A weight op whose weight is made of parameters of two rules has no rule of its own: that is
an error. Frozen parameters have no trace and no gradient, also where they share a weight with others (an adapter
beside a frozen matrix).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from jax import Array
from jax.typing import DTypeLike

from .._compat import is_inexact
from .._errors import ArgumentError, CompilationError
from ..compiler.analysis import Facts, OpNode
from ..compiler.ir import Path, Role, format_path, lies_under
from ..runtime import (
    EachStep,
    FusedCredit,
    Future,
    Persistent,
    SeenThrough,
    Signal,
    Transport,
    WindowData,
    add_to,
    embed_trace,
)
from ._rule import Rule, name_of
from ._series import in_series, in_series_within
from ._tbptt import no_transport, tbptt
from ._verdicts import Kind, Verdict

T = TypeVar("T")


def combined_transport(
    parts: Sequence[Transport[Any]], without_gradient: frozenset[int] = frozenset()
) -> Transport[list[Any]]:
    """Transports over different relations as one, whose trace lists theirs."""

    def init() -> list[Any]:
        return [p.init() for p in parts]

    placed = [_at_place(p, k, init) for k, p in enumerate(parts)]

    def move(trace: list[Any], window: WindowData) -> list[Any]:
        for p in placed:
            trace = p.move(trace, window)
        return trace

    def renew(fresh: list[Any], learned: list[Any]) -> list[Any]:
        for p, from_before in zip(placed, learned, strict=True):
            fresh = p.persistent.renew(fresh, from_before)
        return fresh

    return Transport(
        init,
        lambda trace, g, window: _summed(p.credit(trace, g, window) for p in placed),
        move,
        EachStep(
            lambda *step: [p.each_step.record(*step) for p in placed],
            lambda trace: [p.each_step.begin(trace) for p in placed],
            lambda carry, *step: [p.each_step.advance(c, *step) for p, c in zip(placed, carry, strict=True)],
            lambda carry, flags: [p.each_step.restart(c, flags) for p, c in zip(placed, carry, strict=True)],
        ),
        _signals([p.signal for p in placed]),
        _future([p.future for p in placed], without_gradient),
        Persistent(lambda trace: [p.persistent.learned(trace) for p in placed], renew),
        FusedCredit(
            lambda trace, g, window: _union(p.fused.in_product(trace, g, window) for p in placed),
            lambda trace, window: _summed(p.fused.at_exit(trace, window) for p in placed),
            lambda: _seen_through([p.fused.through_states() for p in placed]),
            lambda trace, window: _union(p.fused.rows_at_exit(trace, window) for p in placed),
        ),
        lambda trace: _listed(p.parts(trace) for p in placed),
        without_gradient,
        all(p.moves_in_pieces for p in parts),
        lambda: frozenset().union(*(p.samples_first() for p in parts)),
    )


def _at_place(transport: Transport[Any], k: int, init: Callable[[], list[Any]]) -> Transport[list[Any]]:
    """A transport over the list of all traces, of which the k-th is its own."""

    def view(window: WindowData) -> WindowData:
        signals = window.signals[k] if window.signals else ()
        return window._replace(records=window.records[k], signals=signals, carry=window.carry[k])

    def put(traces: list[Any], new: Any) -> list[Any]:
        return [*traces[:k], new, *traces[k + 1 :]]

    return embed_trace(transport, init, lambda traces: traces[k], put, view)


def _seen_through(parts: Sequence[SeenThrough]) -> SeenThrough:
    sites, states = (frozenset().union(*numbers) for numbers in zip(*parts, strict=True))
    return SeenThrough(sites, states)


def _signals(signals: Sequence[Signal[list[Any]] | None]) -> Signal[list[Any]] | None:
    """The signals of all; () for those that follow the gradient of the loss."""
    present = [s for s in signals if s is not None]
    if not present:
        return None
    return Signal(
        lambda trace, *step: [() if s is None else s.of_step(trace, *step) for s in signals],
        frozenset().union(*(s.replaces for s in present)),
    )


def _future(futures: Sequence[Future[list[Any]] | None], without_gradient: frozenset[int]) -> Future[list[Any]] | None:
    present = [f for f in futures if f is not None]
    assert len(present) <= 1, "one estimate of the future"
    return Future(present[0].estimate, present[0].sites - without_gradient) if present else None


def _summed(by_transport: Iterable[dict[int, Array]]) -> dict[int, Array]:
    """Collect arrays by site: one that acts on two groups may have traces in two transports."""
    out: dict[int, Array] = {}
    for of_one in by_transport:
        for j, value in of_one.items():
            add_to(out, j, value)
    return out


def _listed(by_transport: Iterable[dict[int, list[Array]]]) -> dict[int, list[Array]]:
    out: dict[int, list[Array]] = {}
    for of_one in by_transport:
        for j, arrays in of_one.items():
            out.setdefault(j, []).extend(arrays)
    return out


def _union(by_transport: Iterable[dict[int, T]]) -> dict[int, T]:
    return {j: value for of_one in by_transport for j, value in of_one.items()}


# A prefix of a parameter's path as a tuple or as reports write it, or a function that says whether it applies to one.
Chooser: TypeAlias = str | Path | Callable[[Path], bool]


def partition(rules: Mapping[Chooser, Rule | str], default: Rule | str | None = None) -> Rule:
    """A rule for each parameter by its path: the first entry that matches, or `default`.

    A path is a tuple of keys, or a name as the report writes it (`"cell.recurrent"`), and stands for all parameters
    below it.

    >>> from etrax import d_rtrl, rtrl
    >>> rule = partition({("cell", "recurrent"): rtrl(), "embedding": frozen()}, default=d_rtrl())
    >>> print(rule)
    partition({("cell", "recurrent"): rtrl(), "embedding": frozen()}, default=d_rtrl())
    """
    from ._by_name import as_rule  # which knows this one, too

    listed = [*rules.values(), tbptt() if default is None else default] if isinstance(rules, Mapping) else [None]
    if not all(isinstance(r, Rule | str) for r in listed):
        raise ArgumentError(
            "`partition` takes a dictionary from path prefixes (or functions of a path) to rules such as "
            "`etrax.rtrl()`, or their names."
        )
    for key in rules:
        if not isinstance(key, str | tuple) and not callable(key):
            raise ArgumentError(f"`partition` chooses by a key, a tuple of keys or a function of a path, got {key!r}.")
    entries: dict[Chooser | None, Rule] = {key: as_rule(rule) for key, rule in rules.items()}
    if default is not None:
        entries[None] = as_rule(default)
    if any(r.members for r in entries.values()):
        raise ArgumentError("`partition` does not hold another partition: put all entries into one.")
    if any(r.candidates is not None for r in entries.values()):
        raise ArgumentError("`partition` does not hold `directional`, which projects the gradient of all parameters.")
    if any(r.name == "auto" for r in entries.values()):
        raise ArgumentError("`partition` does not hold `auto`, which chooses a partition of all parameters itself.")
    if len({r for r in entries.values() if r.estimates_future}) > 1:
        raise ArgumentError(
            "`partition` holds at most one `synthetic`: a state has one future. Use the same rule twice."
        )

    choose = partial(_choose, entries)

    def transport(
        facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None
    ) -> Transport[list[Any]]:
        _check_used(facts, rules)
        owner = {j: _rule_of(facts, j, choose) for j in range(len(facts.sites)) if sites is None or j in sites}
        parts = []
        for rule in dict.fromkeys(entries.values()):
            owned = frozenset(j for j, r in owner.items() if r == rule)
            if owned:
                parts.append(rule.transport(facts, owned, trace_dtype))
        return combined_transport(parts, frozenset(j for j, r in owner.items() if r is None))

    def verdict(facts: Facts, param: int) -> Verdict:
        return choose(facts, param).verdict(facts, param)

    def held(facts: Facts) -> frozenset[int]:
        params = range(len(facts.step.select(Role.PARAM)))
        return frozenset(i for i in params if i in choose(facts, i).frozen(facts))

    def warns(facts: Facts, inputs: Sequence[Array] | None) -> list[str]:
        owners = [choose(facts, i) for i in range(len(facts.step.select(Role.PARAM)))]
        return [text for r in dict.fromkeys(owners) for text in r.warns(facts, inputs)]

    def facts_for(facts: Facts) -> Facts:
        """One trace of maps in series follows one rule, which is that of all of them that learn."""
        params = frozenset(range(len(facts.step.select(Role.PARAM))))
        idle = held(facts)
        followed = [r for r in dict.fromkeys(entries.values()) if r.facts_for is in_series]
        members = [frozenset(i for i in params - idle if choose(facts, i) == r) | idle for r in followed]
        return in_series_within(facts, tuple(members))

    return Rule("partition", transport, verdict, entries, held, warns, facts_for=facts_for)


def frozen() -> Rule:
    """A zero gradient, for parameters in a `partition` that are not to learn.

    An optimizer may still change them (by weight decay): mask them there, too.

    >>> import etrax, jax.numpy as jnp
    >>> rule = etrax.partition({"w": etrax.frozen()}, default=etrax.d_rtrl())
    >>> step = lambda p, h, x: (p["leak"] * h + x @ p["w"],) * 2
    >>> params = {"w": jnp.ones((3, 4)), "leak": jnp.ones(4)}
    >>> learner = etrax.compile(step, rule, jnp.ones(3), params=params, hidden=jnp.zeros(4))
    >>> str(learner.report.verdicts["w",].kind)
    'unused'
    """

    def verdict(facts: Facts, param: int) -> Verdict:
        return Verdict(Kind.UNUSED, "frozen: its gradient is zero, as asked for")

    def held(facts: Facts) -> frozenset[int]:
        return frozenset(range(len(facts.step.select(Role.PARAM))))

    return Rule("frozen", no_transport, verdict, frozen=held)


def _choose(entries: Mapping[Chooser | None, Rule], facts: Facts, param: int) -> Rule:
    """The rule of a parameter: that of the first entry that applies."""
    path = facts.step.select(Role.PARAM)[param].path
    for key, rule in entries.items():
        if key is None or _applies(key, path):
            return rule
    _check_used(facts, [key for key in entries if key is not None])
    raise CompilationError(
        f"no entry of `partition` applies to the parameter {format_path(path, 'params')}; give a `default`, "
        "`etrax.partition({...}, default=etrax.d_rtrl())`."
    )


def _applies(key: Chooser, path: Path) -> bool:
    return bool(key(path)) if callable(key) else lies_under(path, key)


def _check_used(facts: Facts, rules: Iterable[Chooser]) -> None:
    paths = [leaf.path for leaf in facts.step.select(Role.PARAM)]
    for key in rules:
        if not any(_applies(key, path) for path in paths):
            names = ", ".join(format_path(p, "params") for p in paths)
            raise CompilationError(
                f"the entry {name_of(key)!r} of `partition` applies to no parameter; there are {names}."
            )


def linked_params(facts: Facts) -> list[frozenset[int]]:
    """Parameters that share a weight op with a memory, which one trace follows: they have one rule."""
    clusters = [{i} for i in range(len(facts.step.select(Role.PARAM)))]
    for j, site in enumerate(facts.sites):
        if not facts.remembers(OpNode(j)):
            continue
        met = [c for c in clusters if c & set(site.params)]
        clusters = [c for c in clusters if c not in met] + ([set().union(*met)] if met else [])
    return sorted(map(frozenset, clusters), key=min)


def _rule_of(facts: Facts, site: int, choose: Callable[[Facts, int], Rule]) -> Rule | None:
    """The rule of a weight op; None if all of its parameters are frozen."""
    leaves = facts.step.select(Role.PARAM)
    asked = {p: choose(facts, p) for p in sorted(facts.sites[site].params) if is_inexact(leaves[p].aval)}
    rules = list(dict.fromkeys(r for p, r in asked.items() if p not in r.frozen(facts)))
    if len(rules) > 1 and facts.remembers(OpNode(site)):
        listed = ", ".join(f"{format_path(leaves[p].path, 'params')} by {r}" for p, r in asked.items())
        raise CompilationError(
            f"the weight of {facts.sites[site].label} is made of parameters with different rules ({listed}), and one "
            "trace cannot follow two rules. Give them the same rule, or freeze all but one."
        )
    return rules[0] if rules else None
