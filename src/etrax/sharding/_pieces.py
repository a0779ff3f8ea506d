"""Arrays in pieces, put next to each other, repeated, read through windows: along the dimension of which this is done a
value is whole, along all others it stays cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .._compat import JaxprEqn, run_equation
from ._partition import Walk, rule
from ._place import Local, merged_dims


def _on_one(walk: Walk, eqn: JaxprEqn, x: Local, to: Sequence[int | None]) -> list[Local]:
    """All outputs, of one operand whose dimension d becomes `to[d]` of each; where that is None, it must be whole."""
    held = [a if t is not None else None for a, t in zip(x.place.dims, to, strict=True)]
    if tuple(held) != x.place.dims:
        x = walk.put(x, held, frozenset(a for a in held if a))
    dims: list[str | None] = [None] * len(eqn.outvars[0].aval.shape)
    for d, t in enumerate(to):
        if t is not None:
            dims[t] = x.place.dims[d]
    found = walk.local(eqn, [x], dims, x.place.partial, lambda v: run_equation(eqn, [v]))
    return [
        replace(found, value=v, shape=tuple(o.aval.shape), made=None)
        for v, o in zip(found.value, eqn.outvars, strict=True)
    ]


def _but(rank: int, gone: int) -> list[int | None]:
    """Every dimension stays where it is, but for one."""
    return [None if d == gone else d for d in range(rank)]


@rule("split")
def _split(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    return _on_one(walk, eqn, operands[0], _but(len(operands[0].shape), eqn.params["axis"]))


@rule("unstack")
def _unstack(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    gone = eqn.params["axis"]
    return _on_one(
        walk, eqn, operands[0], [None if d == gone else d - (d > gone) for d in range(len(operands[0].shape))]
    )


@rule("stack")
def _stack(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    arrays, new = [walk.summed(o) for o in operands], eqn.params["axis"]
    inner = merged_dims(len(arrays[0].shape), (o.place.dims for o in arrays))
    own = frozenset(a for a in inner if a)
    dims = (*inner[:new], None, *inner[new:])
    ready = [walk.put(o, inner, own) for o in arrays]
    return [walk.local(eqn, ready, dims, frozenset(), lambda *v: run_equation(eqn, v)[0])]


@rule("tile")
def _tile(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    times = eqn.params["reps"]
    return _on_one(walk, eqn, operands[0], [d if n == 1 else None for d, n in enumerate(times)])


@rule("top_k")
def _top_k(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    x = walk.summed(operands[0])
    rank = len(x.shape)
    return _on_one(walk, eqn, x, _but(rank, eqn.params.get("axis", rank - 1) % rank))


@rule("reduce_window_sum", "reduce_window_max", "reduce_window_min")
def _window(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    x, p = walk.summed(operands[0]), eqn.params
    each = zip(
        p["window_dimensions"], p["window_strides"], p["padding"], p["base_dilation"], p["window_dilation"], strict=True
    )
    alone = [(n, s, *pad, base, gap) == (1, 1, 0, 0, 1, 1) for n, s, pad, base, gap in each]
    return _on_one(walk, eqn, x, [d if one else None for d, one in enumerate(alone)])


@rule("fft")
def _fft(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    x = walk.summed(operands[0])
    first = len(x.shape) - len(eqn.params["fft_lengths"])
    return _on_one(walk, eqn, x, [d if d < first else None for d in range(len(x.shape))])
