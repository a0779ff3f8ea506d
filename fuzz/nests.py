"""Calls, loops and branches around weight ops, up to three deep."""

from __future__ import annotations

from .draw import Draw, Value
from .ops import by_counter, matmul, op
from .tails import tail
from .weights import weight

DEEPEST = 3


def piece(g: Draw, u: Value) -> Value:
    """One more statement on a value: an op, a tail, or a nest."""
    kinds = [(4.0, op), (4.0, tail)]
    if g.depth < DEEPEST and not g.closed:
        kinds.append((1.6 if g.depth == 0 else 0.8, nest))
    found = g.weighted(kinds)(g, u)
    g.pool.append(found)
    return found


def chain(g: Draw, u: Value, longest: int = 2) -> Value:
    """Some statements after one another."""
    for _ in range(g.rng.randrange(1, longest + 1)):
        u = piece(g, u)
    return u


def fit(g: Draw, u: Value, shape: tuple[int, ...]) -> Value:
    """A value of a shape that depends on `u`: itself, a part, or by a weight op."""
    if u.shape == shape:
        return u
    if not u.shape:
        u = g.emit("expand", [u], (1,))
    while len(u.shape) > 1 and len(shape) != len(u.shape):
        n = 1
        for k in u.shape:
            n *= k
        u = g.emit("flatten", [u], (n,), a=-len(u.shape))
    if shape == ():
        return g.emit("total", [u], ()) if g.chance(0.5) else g.emit("dot_sum", [u, weight(g, u.shape)], ())
    if len(shape) == 1:
        if u.shape == (1,) and g.chance(0.5):
            return g.emit(g.pick(("gain", "bias")), [u, weight(g, shape)], shape)
        return matmul(g, u, shape[0])
    if len(u.shape) == 1:
        return g.emit("einsum", [u, weight(g, (u.shape[0], *shape))], shape, a="...n,nam->...am")
    if u.shape[0] == shape[0]:
        return matmul(g, u, shape[1])
    return g.emit("einsum", [u, weight(g, (u.shape[0], u.shape[1], *shape))], shape, a="...ab,abcd->...cd")


def onto(g: Draw, carry: Value, start: Value | None = None) -> Value:
    """A value of the carry's shape that depends on it, for loops: what a body gives back."""
    y = fit(g, chain(g, carry if start is None else start, 2), carry.shape)
    if g.chance(0.4):
        return y
    return g.emit(g.pick(("leaky", "vanilla")), [carry, y], carry.shape)


def nest(g: Draw, u: Value) -> Value:
    found = g.weighted(NESTS)(g, u)
    return found if found is not None else call(g, u)


def call(g: Draw, u: Value) -> Value:
    """`jit` or `jax.checkpoint` around some statements, which may read anything from around them."""
    shape: list[tuple[int, ...]] = []

    def make(args: list[Value]) -> list[Value]:
        out = chain(g, args[0])
        shape.append(out.shape)
        return [out]

    block = g.block([u], make)
    return g.emit(g.pick(("jit", "jit", "remat")), [u], shape[0], blocks=[block])


def branch(g: Draw, u: Value) -> Value:
    shape = g.pick((u.shape, (g.dim(),)))
    source = g.data() or u
    form = g.pick(("cond", "cond", "switch"))
    which = g.emit("any_positive" if form == "cond" else "which", [source], (), "p")
    blocks = [g.block([u], lambda a: [fit(g, chain(g, a[0], 2), shape)]) for _ in range(2)]
    return g.emit(form, [which, u], shape, blocks=blocks)


def loop(g: Draw, u: Value) -> Value:
    """Sub-steps with the weights inside."""
    n = g.pick((1, 2, 3))
    if g.chance(0.5):
        block = g.block([Value("", (), "j"), u], lambda a: [onto(g, a[1], _of_turn(g, a[1]))])
        return g.emit("fori", [u], u.shape, blocks=[block], n=n)
    block = g.block([u, Value("", (), "none")], lambda a: [onto(g, a[0]), "None"])
    return g.emit("scan", [u], u.shape, blocks=[block], n=n)


def _of_turn(g: Draw, u: Value) -> Value | None:
    """Often the weight of a turn is chosen by its number."""
    return by_counter(g, u) if u.shape and g.chance(0.4) else None


def rows(g: Draw, u: Value) -> Value | None:
    """A scan that slices scalars, vectors or matrices out of a weight."""
    if len(u.shape) != 1 or not u.shape[0]:
        return None
    n, k = u.shape[0], g.dim()
    row = g.pick(((), (n,), (n, n)))
    w = weight(g, (k, *row))
    form = g.pick(("scan_rows", "scan_rows", "scan_reverse", "scan_collect"))

    def make(args: list[Value]) -> list[Value | str]:
        c, r = args
        if row == (n, n):
            y = g.emit("matmul", [c, r], c.shape)
        else:
            y = g.emit(g.pick(("gain", "bias", "leak")), [c if g.chance(0.5) else tail_like(g, c), r], c.shape)
        g.pool.append(y)
        new = g.emit(g.pick(("leaky", "vanilla", "assign")), [c, y], c.shape)
        if g.chance(0.2):
            new = onto(g, c, new)
        return [new, new if form == "scan_collect" else "None"]

    return g.emit(form, [u, w], u.shape, blocks=[g.block([u, Value("", row, "w")], make)])


def stack_twice(g: Draw, u: Value) -> Value | None:
    """A loop around a scan over rows: a stack of layers that is run more than once."""
    if len(u.shape) != 1 or not u.shape[0] or g.depth >= DEEPEST - 1:
        return None
    block = g.block([Value("", (), "j"), u], lambda a: [rows(g, a[1]) or a[1]])
    return g.emit("fori", [u], u.shape, blocks=[block], n=2)


def tail_like(g: Draw, u: Value) -> Value:
    """Another value of the shape if there is one, else a function of this one."""
    return g.like(u.shape, u) or g.emit("tanh", [u], u.shape)


def over_axis(g: Draw, u: Value) -> Value | None:
    """`vmap` over the elements of a vector, alone or with the rows of a weight, or over weights, then a sum."""
    if len(u.shape) != 1 or not u.shape[0]:
        return None
    n, k = u.shape[0], g.dim()
    form = g.pick(("vmap", "vmap_rows", "vmap_sum"))
    if form == "vmap":
        block = g.block([Value("", ())], lambda a: [fit(g, chain(g, a[0], 2), ())], closed=False)
        return g.emit("vmap", [u], u.shape, blocks=[block])
    if form == "vmap_rows":

        def make(args: list[Value]) -> list[Value]:
            wide = g.emit("expand", [args[0]], (1,))
            return [g.emit("dot_sum", [wide, args[1]], ())]

        block = g.block([Value("", ()), Value("", (k,), "w")], make)
        return g.emit(form, [u, weight(g, (n, k))], u.shape, blocks=[block])
    m = g.dim()
    block = g.block([u, Value("", (n, m), "w")], lambda a: [g.emit("matmul", a, (m,))])
    return g.emit(form, [u, weight(g, (k, n, m))], (m,), blocks=[block])


def ruled(g: Draw, u: Value) -> Value | None:
    """A function of data and weight with a derivative rule of its own; it reads nothing from around it."""
    if len(u.shape) != 1:
        return None
    m = g.dim()
    w = weight(g, (u.shape[0], m))
    shape: list[tuple[int, ...]] = []

    def make(args: list[Value]) -> list[Value]:
        out = g.emit("matmul", args, (m,))
        g.pool.append(out)
        out = chain(g, out, 2) if g.chance(0.5) else out
        shape.append(out.shape)
        return [out]

    block = g.block([u, w], make, closed=True)
    return g.emit(g.pick(("own_rule", "jvp_rule")), [u, w], shape[0], blocks=[block])


NESTS = [(3, call), (2.5, branch), (2.5, loop), (2.5, rows), (0.7, stack_twice), (1.5, over_axis), (1, ruled)]
