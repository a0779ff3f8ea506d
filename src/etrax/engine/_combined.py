"""Several transports side by side, each for its own weight ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ._transport import Transport, WindowData


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
