"""Control flow: branches are joined, loops are run to a fixed point."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..._compat import ScanParts, cond_branches, inner_jaxpr, scan_parts, while_parts
from ._dep import Dep, everything, reduce, same_map, union
from ._record import Call, Deps, define

# A scan this short is followed step by step; a longer one with scanned gradients is followed for all steps at once.
MAX_STEPS = 64
MAX_ROUNDS = 12


def _join(a: Deps, b: Deps) -> Deps:
    return {s: union([d[s] for d in (a, b) if s in d]) for s in {**a, **b}}


def _equal(a: Dep, b: Dep) -> bool:
    labels = a.part is b.part or np.array_equal(a.part.all_labels(), b.part.all_labels())
    return labels and len(a.maps) == len(b.maps) and all(map(same_map, a.maps, b.maps))


def _stable(a: Sequence[Deps], b: Sequence[Deps]) -> bool:
    return all(x.keys() == y.keys() and all(_equal(x[s], y[s]) for s in x) for x, y in zip(a, b, strict=True))


def _cond(call: Call) -> list[Deps]:
    if call.deps[0]:
        call.problem("branches on the value of a gradient")
    outs: list[Deps] = [{} for _ in call.eqn.outvars]
    for jaxpr, consts in cond_branches(call.eqn):
        found = call.nested(jaxpr, consts, call.deps[1:], call.constants(1))
        outs = [_join(a, b) for a, b in zip(outs, found, strict=True)]
    return outs


def _while(call: Call) -> list[Deps]:
    parts = while_parts(call.eqn)
    n, m = parts.cond_consts, parts.cond_consts + parts.body_consts
    fixed = list(call.deps[n:m])
    carry = _fixed_point(call, list(call.deps[m:]), lambda c: call.nested(*parts.body, [*fixed, *c]))
    if any(call.nested(*parts.cond, [*call.deps[:n], *carry])):
        call.problem("loops on the value of a gradient")
    return carry


def _fixed_point(call: Call, carry: list[Deps], body: Callable[[list[Deps]], list[Deps]]) -> list[Deps]:
    for _ in range(MAX_ROUNDS):
        new = [_join(a, b) for a, b in zip(carry, body(carry), strict=True)]
        if _stable(carry, new):
            return new
        carry = new
    # Elements keep spreading: let each array depend on all that any carried array depends on.
    widest = _join_all(carry, call)
    return [
        {s: everything(d, v.aval.shape, call.cause) for s, d in widest.items()} for v in call.eqn.outvars[: len(carry)]
    ]


def _join_all(carry: Sequence[Deps], call: Call) -> Deps:
    total: Deps = {}
    for deps in carry:
        flat = {s: everything(d, (), call.cause) for s, d in deps.items()}
        total = _join(total, flat)
    return total


def _slice(deps: Deps, i: int) -> Deps:
    return {s: d.relocate(lambda m: m[i]) for s, d in deps.items()}


def _any_step(deps: Deps, call: Call) -> Deps:
    return {s: reduce(d, (0,), call.cause) for s, d in deps.items()}


def _scan(call: Call) -> list[Deps]:
    scan = scan_parts(call.eqn)
    n, m = scan.num_consts, scan.num_consts + scan.num_carry
    fixed, carry, scanned = list(call.deps[:n]), list(call.deps[n:m]), list(call.deps[m:])

    def body(carry: Sequence[Deps], xs: Sequence[Deps]) -> list[Deps]:
        return call.nested(scan.jaxpr, scan.consts, [*fixed, *carry, *xs], call.constants(0, n))

    if scan.length <= MAX_STEPS and any(scanned):
        return _followed(call, scan, carry, scanned, body)
    xs = [_any_step(deps, call) for deps in scanned]
    carry = _fixed_point(call, carry, lambda c: body(c, xs)[: scan.num_carry])
    ys = body(carry, xs)[scan.num_carry :]
    whole = [{s: d.relocate(lambda m: np.broadcast_to(m, (scan.length, *m.shape))) for s, d in y.items()} for y in ys]
    return [*carry, *whole]


def _followed(
    call: Call, scan: ScanParts, carry: list[Deps], scanned: list[Deps], body: Callable[..., list[Deps]]
) -> list[Deps]:
    """Step by step, each with its own slice of what is scanned."""
    steps = range(scan.length - 1, -1, -1) if scan.reverse else range(scan.length)
    pieces: list[list[Deps]] = [[{} for _ in range(scan.length)] for _ in call.eqn.outvars[scan.num_carry :]]
    for t in steps:
        out = body(carry, [_slice(deps, t) for deps in scanned])
        carry = out[: scan.num_carry]
        for k, deps in enumerate(out[scan.num_carry :]):
            pieces[k][t] = deps
    return [
        *carry,
        *(_stacked(found, v.aval.shape) for found, v in zip(pieces, call.eqn.outvars[scan.num_carry :], strict=True)),
    ]


def _stacked(steps: list[Deps], shape: tuple[int, ...]) -> Deps:
    out: Deps = {}
    for t, deps in enumerate(steps):
        for source, dep in deps.items():

            def place(m: np.ndarray, t: int = t) -> np.ndarray:
                full = np.full(shape, -1, np.int32)
                full[t] = m
                return full

            placed = dep.relocate(place)
            out[source] = union([out[source], placed]) if source in out else placed
    return out


def _custom(call: Call) -> list[Deps]:
    """A gradient that passes through a function with a derivative rule of its own: its value is what counts here."""
    jaxpr, consts = inner_jaxpr(call.eqn)
    return call.nested(jaxpr, consts, call.deps, call.constants())


define("cond", pattern=_cond)
define("while", pattern=_while)
define("scan", pattern=_scan)
define("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "linear_call", pattern=_custom)
