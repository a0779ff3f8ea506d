"""Different rules for different parameters.

    ε_t = (ε_t of rule 1 for its weight ops, ε_t of rule 2 for its own, …)

Traces of different weight ops never meet, so each rule carries those of its own parameters, and the gradient of the
window is shared by all. A weight op whose weight is made of parameters of two rules has no rule of its own: that is
an error. Frozen parameters have no trace and no gradient, also where they share a weight with others (an adapter
beside a frozen matrix).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from .._compat import is_inexact
from .._errors import ArgumentError, CompilationError
from ..analysis import Facts, OpNode
from ..engine import Transport, WindowData
from ..ir import Path, Role, format_path
from ._rule import Rule
from ._tbptt import tbptt
from ._verdicts import Kind, Verdict


def combined_transport(parts: Sequence[Transport], silent: frozenset[int] = frozenset()) -> Transport:
    """Transports over disjoint sites as one; the gradient of `silent` sites is zero."""

    def views(window: WindowData) -> list[WindowData]:
        signals = window.signals or [()] * len(parts)
        pieces = zip(window.records, signals, window.carry, strict=True)
        return [window._replace(records=r, signals=s, carry=c) for r, s, c in pieces]

    def begin(trace: Any) -> list[Any]:
        return [p.begin(own) for p, own in zip(parts, trace, strict=True)]

    def advance(carry: Any, *step: Any) -> list[Any]:
        return [own if p.advance is None else p.advance(own, *step) for p, own in zip(parts, carry, strict=True)]

    def init() -> list[Any]:
        return [p.init() for p in parts]

    def record(leaves: Sequence[Any], weights: Sequence[Any], ys: Mapping[int, Any]) -> list[Any]:
        return [() if p.record is None else p.record(leaves, weights, ys) for p in parts]

    def credit(trace: Any, g: Mapping[int, Any], window: WindowData) -> dict[int, Any]:
        out: dict[int, Any] = {}
        for p, own, view in zip(parts, trace, views(window), strict=True):
            out |= p.credit(own, g, view)
        return out

    def joined(trace: Any, g: Mapping[int, Any], window: WindowData) -> dict[int, tuple[Any, Any]]:
        out: dict[int, tuple[Any, Any]] = {}
        for p, own, view in zip(parts, trace, views(window), strict=True):
            out |= p.joined(own, g, view) if p.joined is not None else {}
        return out

    def move(trace: Any, window: WindowData) -> list[Any]:
        return [p.move(own, view) for p, own, view in zip(parts, trace, views(window), strict=True)]

    def credit_at_exit(trace: Any, window: WindowData) -> dict[int, Any]:
        out: dict[int, Any] = {}
        for p, own, view in zip(parts, trace, views(window), strict=True):
            out |= p.credit_at_exit(own, view) if p.credit_at_exit is not None else {}
        return out

    def signal(trace: Any, *step: Any) -> list[Any]:
        return [() if p.signal is None else p.signal(own, *step) for p, own in zip(parts, trace, strict=True)]

    guided = any(p.signal is not None for p in parts)
    looking = [k for k, p in enumerate(parts) if p.ahead is not None]
    assert len(looking) <= 1, "one estimate of what lies ahead"

    def ahead(trace: Any, states: Sequence[Any]) -> dict[int, Any]:
        look = parts[looking[0]].ahead
        assert look is not None
        return look(trace[looking[0]], states)

    return Transport(
        init,
        record,
        credit,
        move,
        sum(p.nbytes for p in parts),
        signal if guided else None,
        silent.union(*(p.replaces for p in parts)),
        ahead if looking else None,
        frozenset().union(*(p.hears for p in parts)) - silent,
        begin,
        advance,
        lambda trace: [p.learned(own) for p, own in zip(parts, trace, strict=True)],
        lambda fresh, learned: [p.renew(own, kept) for p, own, kept in zip(parts, fresh, learned, strict=True)],
        lambda trace: {j: a for p, own in zip(parts, trace, strict=True) for j, a in p.parts(own).items()},
        joined if any(p.joined is not None for p in parts) else None,
        credit_at_exit if any(p.credit_at_exit is not None for p in parts) else None,
    )


# A prefix of a parameter's path, its first key alone, or a function that says whether it applies to a path.
Chooser: TypeAlias = str | Path | Callable[[Path], bool]


def partition(rules: Mapping[Chooser, Rule], default: Rule | None = None) -> Rule:
    """Rules by the path of the parameter: the first entry that applies counts, `default` where none does.

    >>> from etrax import d_rtrl, rtrl
    >>> rule = partition({("cell", "recurrent"): rtrl(), "embedding": frozen()}, default=d_rtrl())
    >>> print(rule)
    partition(cell.recurrent: rtrl(), embedding: frozen(), default: d_rtrl())
    """
    given = [*rules.values(), tbptt() if default is None else default] if isinstance(rules, Mapping) else [None]
    if not all(isinstance(r, Rule) for r in given):
        raise ArgumentError(
            "`partition` takes a dictionary from path prefixes (or functions of a path) to rules such as "
            "`etrax.rtrl()`."
        )
    for key in rules:
        if not isinstance(key, str | tuple) and not callable(key):
            raise ArgumentError(f"`partition` chooses by a key, a tuple of keys or a function of a path, got {key!r}.")
    everyone = [*rules.values(), *([default] if default is not None else [])]
    if any(r.name == "partition" for r in everyone):
        raise ArgumentError("`partition` does not hold another partition: put all entries into one.")
    if len({r for r in everyone if r.name == "synthetic"}) > 1:
        raise ArgumentError(
            "`partition` holds at most one `synthetic`: a state has one future. Use the same rule twice."
        )

    def choose(facts: Facts, param: int) -> Rule:
        path = facts.step.select(Role.PARAM)[param].path
        for key, rule in rules.items():
            if _applies(key, path):
                return rule
        if default is None:
            raise CompilationError(
                f"no entry of `partition` applies to the parameter {format_path(path, 'params')}; give a `default`."
            )
        return default

    def transport(facts: Facts, sites: frozenset[int] | None = None, trace_dtype: Any = None) -> Transport:
        _check_used(facts, rules)
        owner = {j: _rule_of(facts, j, choose) for j in range(len(facts.sites)) if sites is None or j in sites}
        parts = []
        for rule in dict.fromkeys(everyone):
            own = frozenset(j for j, r in owner.items() if r == rule)
            if own:
                parts.append(rule.transport(facts, own, trace_dtype))
        return combined_transport(parts, frozenset(j for j, r in owner.items() if r is None))

    def verdict(facts: Facts, param: int) -> Verdict:
        return choose(facts, param).verdict(facts, param)

    def held(facts: Facts) -> frozenset[int]:
        return frozenset(i for i in range(len(facts.step.select(Role.PARAM))) if choose(facts, i).name == "frozen")

    def warns(facts: Facts, inputs: Sequence[Any] | None) -> list[str]:
        owners = [choose(facts, i) for i in range(len(facts.step.select(Role.PARAM)))]
        return [text for r in dict.fromkeys(owners) for text in r.warns(facts, inputs)]

    shown = {_name(key): rule for key, rule in rules.items()} | ({} if default is None else {"default": default})
    return Rule("partition", transport, verdict, None, shown, held, warns)


def frozen() -> Rule:
    """No gradient at all, for parameters in a `partition`: their gradient is zero.

    An optimizer may still move them (weight decay): mask it, too.
    """

    def verdict(facts: Facts, param: int) -> Verdict:
        return Verdict(Kind.UNUSED, "frozen: its gradient is zero, as asked for")

    def held(facts: Facts) -> frozenset[int]:
        return frozenset(range(len(facts.step.select(Role.PARAM))))

    return Rule("frozen", tbptt().transport, verdict, lambda facts, dtype: 0, frozen=held)


def _applies(key: Chooser, path: Path) -> bool:
    if callable(key):
        return bool(key(path))
    prefix = key if isinstance(key, tuple) else (key,)
    return path[: len(prefix)] == prefix


def _name(key: Chooser) -> str:
    if isinstance(key, str):
        return key
    return ".".join(map(str, key)) if isinstance(key, tuple) else getattr(key, "__name__", "function")


def _check_used(facts: Facts, rules: Mapping[Chooser, Rule]) -> None:
    paths = [leaf.path for leaf in facts.step.select(Role.PARAM)]
    for key in rules:
        if not any(_applies(key, path) for path in paths):
            names = ", ".join(format_path(p, "params") for p in paths)
            raise CompilationError(
                f"the entry {_name(key)!r} of `partition` applies to no parameter; there are {names}."
            )


def _rule_of(facts: Facts, site: int, choose: Callable[[Facts, int], Rule]) -> Rule | None:
    """The rule of a weight op; None if all of its parameters are frozen."""
    leaves = facts.step.select(Role.PARAM)
    asked = {p: choose(facts, p) for p in sorted(facts.sites[site].params) if is_inexact(leaves[p].aval)}
    found = list(dict.fromkeys(r for r in asked.values() if r.name != "frozen"))
    if len(found) > 1 and facts.remembers(OpNode(site)):
        listed = ", ".join(f"{format_path(leaves[p].path, 'params')} by {r}" for p, r in asked.items())
        raise CompilationError(
            f"the weight of {facts.sites[site].label} is made of parameters with different rules ({listed}), and one "
            "trace cannot follow two rules. Give them the same rule, or freeze all but one."
        )
    return found[0] if found else None
