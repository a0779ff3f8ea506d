"""Constants added to a gradient: a program that is linear gives zero for zero.

A derivative rule of the model may return `ct + 0.1`. It is then affine, and no Jacobian stands for it. This pass
follows what is zero when all sources are zero; a value that comes from a source and is not is a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..._compat import (
    CUSTOM,
    INLINED,
    Jaxpr,
    JaxprEqn,
    cond_branches,
    inner_jaxpr,
    is_concrete,
    is_extended,
    is_inexact,
    scan_parts,
    while_parts,
)
from ..ir import Site, interpret
from ..primitives import Note, over_all_devices, record_of


class Mark(NamedTuple):
    """Whether a value is zero where all sources are, and the sources that it comes from."""

    zero: bool
    sources: frozenset[Hashable] = frozenset()


DATA = Mark(False)


def joined(marks: Sequence[Mark]) -> Mark:
    """The mark of a sum."""
    return Mark(all(m.zero for m in marks), frozenset().union(*(m.sources for m in marks)))


def find_offsets(jaxpr: Jaxpr, consts: Sequence[Any], sources: Mapping[int, Hashable], note: Note) -> None:
    """Note every equation that adds something else to what comes from a source."""
    args = [Mark(True, frozenset({sources[i]})) if i in sources else DATA for i in range(len(jaxpr.invars))]
    marks_through(jaxpr, consts, args, note)


def marks_through(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Mark], note: Note) -> list[Mark]:
    """Marks of the outputs of a program; equations that add something else to what comes from a source are noted."""

    def handle(site: Site, eqn: JaxprEqn, values: list[Any]) -> list[Mark] | None:
        if eqn.primitive.name in INLINED:
            return None
        marks = [v if isinstance(v, Mark) else mark_of(v) for v in values]
        enter = _ENTER.get(eqn.primitive.name)
        if enter is not None:
            return enter(eqn, marks, note)
        met = frozenset().union(*(m.sources for m in marks))
        zero = _zero(eqn, marks, bool(met))
        if (
            met
            and not zero
            and any(is_inexact(v.aval) for v in eqn.outvars)
            and all(m.zero for m in marks if m.sources)
        ):
            note(eqn, "adds something else to a gradient", met)
        return [Mark(zero, met) for _ in eqn.outvars]

    wrapped = [mark_of(c) for c in consts]
    return [o if isinstance(o, Mark) else mark_of(o) for o in interpret(jaxpr, wrapped, args, handle)]


def mark_of(x: Any) -> Mark:
    """The mark of a constant."""
    return Mark(is_concrete(x) and not is_extended(x) and not np.any(np.asarray(x)))


def _zero(eqn: JaxprEqn, marks: Sequence[Mark], met: bool) -> bool:
    zero = record_of(eqn.primitive.name).zero
    # What is not linear or not known has been noted for that.
    return met if zero is None else zero(eqn, [m.zero for m in marks])


def _cond(eqn: JaxprEqn, marks: list[Mark], note: Note) -> list[Mark]:
    outs = [marks_through(body, consts, marks[1:], note) for body, consts in cond_branches(eqn)]
    return [_settled(eqn, joined(found), note) for found in zip(*outs, strict=True)]


def _settled(eqn: JaxprEqn, mark: Mark, note: Note) -> Mark:
    """Paths that meet: one that comes from a source must not meet one that is not zero."""
    if mark.sources and not mark.zero:
        note(eqn, "adds something else to a gradient", mark.sources)
    return mark


def _loop(body: Callable[[list[Mark]], list[Mark]], carry: list[Mark]) -> tuple[list[Mark], list[Mark]]:
    """Marks of the carry once they no longer change, and the body's outputs then."""
    while True:
        outs = body(carry)
        new = [joined([a, b]) for a, b in zip(carry, outs, strict=False)]
        if new == carry:
            return carry, outs
        carry = new


def _scan(eqn: JaxprEqn, marks: list[Mark], note: Note) -> list[Mark]:
    scan = scan_parts(eqn)
    n, m = scan.num_consts, scan.num_consts + scan.num_carry
    quiet: Note = lambda *_: None  # noqa: E731
    run = lambda c, note: marks_through(scan.jaxpr, scan.consts, [*marks[:n], *c, *marks[m:]], note)  # noqa: E731
    carry, _ = _loop(lambda c: run(c, quiet), marks[n:m])
    outs = run(carry, note)
    return [_settled(eqn, mark, note) for mark in (*carry, *outs[scan.num_carry :])]


def _while(eqn: JaxprEqn, marks: list[Mark], note: Note) -> list[Mark]:
    parts = while_parts(eqn)
    n, m = parts.cond_consts, parts.cond_consts + parts.body_consts
    carry, _ = _loop(lambda c: marks_through(*parts.body, [*marks[n:m], *c], note), marks[m:])
    return [_settled(eqn, mark, note) for mark in carry]


def _call(eqn: JaxprEqn, marks: list[Mark], note: Note) -> list[Mark]:
    return marks_through(*inner_jaxpr(eqn), marks, note)


def _shard_map(eqn: JaxprEqn, marks: list[Mark], note: Note) -> list[Mark]:
    return marks_through(*over_all_devices(eqn), marks, note)


def _each(eqn: JaxprEqn, marks: list[Mark], note: Note) -> list[Mark]:
    return marks


_ENTER = {
    "optimization_barrier": _each, "cond": _cond, "scan": _scan, "while": _while, "shard_map": _shard_map,
    **dict.fromkeys((*CUSTOM, "linear_call"), _call),
}  # fmt: skip
