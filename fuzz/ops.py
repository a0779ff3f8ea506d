"""Weight ops: how weights meet data. Each takes the draw and a data value, and gives a new value, or None."""

from __future__ import annotations

from .draw import Draw, Value
from .weights import weight


def op(g: Draw, u: Value) -> Value:
    """A random weight op on a value."""
    if not u.shape:
        u = g.emit("expand", [u], (1,))
    families = {1: ON_VECTORS, 2: ON_MATRICES}.get(len(u.shape), ALIGNED)
    found = g.weighted(families)(g, u)
    return found if found is not None else matmul(g, u)


def matmul(g: Draw, u: Value, m: int | None = None) -> Value:
    m = g.dim() if m is None else m
    form = g.weighted([(6, "matmul"), (1, "w_on_left"), (1, "shared_op"), (1, "triangular"), (0.5, "hypernet")])
    if form == "w_on_left":
        return g.emit(form, [u, weight(g, (m, u.shape[-1]))], (*u.shape[:-1], m))
    if form == "hypernet" and len(u.shape) > 1:
        form = "matmul"
    return g.emit(form, [u, weight(g, (u.shape[-1], m))], (*u.shape[:-1], m))


def aligned(g: Draw, u: Value) -> Value:
    """Bias, gain, leak and their like, of the value's shape or broadcast to it."""
    form = g.weighted(
        [(4, "bias"), (3, "gain"), (3, "leak"), (1, "divide"), (1, "minimum"), (1, "w_where"), (1, "power")]
    )
    shape = g.weighted([(5, u.shape), (1, ()), (1, u.shape[-1:])])
    return g.emit(form, [u, weight(g, shape)], u.shape)


def low_rank(g: Draw, u: Value) -> Value:
    k, m = g.dim(), g.dim()
    return g.emit("low_rank", [u, weight(g, (u.shape[-1], k)), weight(g, (k, m))], (*u.shape[:-1], m))


def heads(g: Draw, u: Value) -> Value:
    a, m = g.dim(), g.dim()
    n = u.shape[-1]
    if len(u.shape) == 1:
        return g.emit("einsum", [u, weight(g, (n, a, m))], (a, m), a="...n,nam->...am")
    a = u.shape[0]
    text, shape, out = g.pick(
        (
            ("...an,anm->...am", (a, n, m), (a, m)),
            ("...an,nam->...am", (n, a, m), (a, m)),
            ("...an,an->...a", (a, n), (a,)),
            ("...an,am->...nm", (a, m), (n, m)),
            ("...an,anm->...m", (a, n, m), (m,)),
        )
    )
    return g.emit("einsum", [u, weight(g, shape)], out, a=text)


def sparse(g: Draw, u: Value) -> Value:
    """Products over a list of connections, in one of three spellings."""
    n, m = u.shape[0], g.dim()
    pairs = sorted({(g.rng.randrange(n), g.rng.randrange(m)) for _ in range(g.pick((2, 3, 4)))})
    sources, targets = [a for a, _ in pairs], [b for _, b in pairs]
    form = g.pick(("scatter", "bcoo") if g.batch == "lead" else ("scatter", "segment_sum", "bcoo"))
    w = weight(g, (len(pairs),))
    if form == "bcoo":
        return g.emit("bcoo", [u, w], (m,), a=[list(p) for p in pairs], b=(n, m))
    return g.emit(form, [u, w], (m,), a=sources, b=m, c=targets)


def convolution(g: Draw, u: Value) -> Value:
    """One axis of space and one of channels, or two of space."""
    flat = len(u.shape) == 1
    if flat or g.chance(0.6):
        u = g.emit("expand", [u], (*u.shape, 1)) if flat else u
        size, channels, stride = g.pick((1, 2, 3)), g.pick((1, 2)), g.pick((1, 1, 2))
        out = (-(-u.shape[0] // stride), channels)
        return g.emit("conv1d", [u, weight(g, (size, u.shape[1], channels))], out, a=stride, b='"SAME"')
    u = g.emit("expand", [u], (*u.shape, 1))
    y = g.emit("conv2d", [u, weight(g, (2, 2, 1, 1))], (*u.shape[:2], 1), a=1, b='"SAME"')
    return g.emit("index", [y], y.shape[:2], a=0)


def chosen(g: Draw, u: Value) -> Value:
    """The data say which weight acts."""
    n, m = u.shape[-1], g.dim()
    form = g.pick(("chosen", "chosen_matmul", "chosen_by_one", "chosen_by_slice"))
    shape = (2, m) if form == "chosen" else (2, n, m)
    return g.emit(form, [u, weight(g, shape)], (m,))


def embedding(g: Draw, u: Value) -> Value | None:
    index = [v for v in g.pool if v.kind == "i" and v.shape == ()]
    if not index:
        return None
    m, i = g.dim(), g.pick(index)
    if g.chance(0.7):
        # A counter may be larger than the table: the nearest row is read, or a fill value.
        if g.chance(0.2):
            return g.emit("embed_columns", [i, weight(g, (m, g.pick((1, 2, 2))))], (m,))
        form = g.pick(("embed", "embed", "embed_clip", "embed_fill"))
        return g.emit(form, [i, weight(g, (g.pick((1, 2, 2)), m))], (m,), a=g.pick((0.0, 0.5)))
    return g.emit("one_hot", [i, weight(g, (2, m))], (m,), a=2)


def by_counter(g: Draw, u: Value) -> Value | None:
    """Inside a loop, the weight of this turn."""
    counters = [v for v in g.pool if v.kind == "j"]
    if not counters:
        return None
    m, i = g.dim(), g.pick(counters)
    if g.chance(0.6):
        return g.emit("row_matmul", [u, weight(g, (3, u.shape[-1], m)), i], (*u.shape[:-1], m))
    return g.emit("row_bias", [u, weight(g, (3, *u.shape)), i], u.shape)


def mapped(g: Draw, u: Value) -> Value:
    """Loops of the library over a parameter's rows or scalars."""
    form, k = g.pick(("lax_map", "map_scalars", "polyval")), g.dim()
    if form == "lax_map":
        return g.emit(form, [u, weight(g, (k, u.shape[-1]))], (k,))
    return g.emit(form, [u, weight(g, (k,))], u.shape)


def mixed(g: Draw, u: Value) -> Value | None:
    """A weight that is joined, overwritten or chosen as if it were data, or the first carry of a loop."""
    n, m = u.shape[-1], g.dim()
    form = g.pick(("beside", "overwritten", "first_carry", "scan_data", "cond_weight"))
    if form == "beside":
        return g.emit(form, [u, weight(g, (m,))], (n + m,)) if n + m <= 6 else None
    if form == "scan_data":
        return g.emit(form, [u, weight(g, ())], ())
    if form == "cond_weight":
        return g.emit(form, [u, weight(g, (n, m)), weight(g, (n, m))], (m,))
    return g.emit(form, [u, weight(g, (n,))], u.shape) if n else None


def foreign(g: Draw, u: Value) -> Value | None:
    """Ops that JAX cannot map over an axis, or whose derivative is a program of the host."""
    form, m = g.pick(("host_rule", "callback", "plain_callback")), g.dim()
    if form in ("host_rule", "plain_callback") and g.batch == "vmap":
        return None
    return g.emit(form, [u, weight(g, (u.shape[-1], m))], (m,))


def dot_sum(g: Draw, u: Value) -> Value:
    return g.emit("dot_sum", [u, weight(g, u.shape[-1:])], u.shape[:-1])


def empty(g: Draw, u: Value) -> Value:
    """A weight without numbers."""
    none, m = g.emit("part", [u], (0,), a=0, b=0), g.dim()
    return g.emit("matmul", [none, weight(g, (0, m), 2)], (m,))


def solve(g: Draw, u: Value) -> Value:
    n = u.shape[0]
    return g.emit("solve", [u, weight(g, (n, n))], u.shape, a=n)


ALIGNED = [(1, aligned)]
ON_VECTORS = [
    (8, matmul), (6, aligned), (1, low_rank), (1.5, heads), (1.5, sparse), (1, convolution), (2, chosen),
    (4, by_counter), (2, embedding), (1.5, mapped), (0.7, dot_sum), (0.2, empty), (0.5, foreign), (0.3, solve),
    (1.5, mixed),
]  # fmt: skip
ON_MATRICES = [(4, matmul), (4, aligned), (3, heads), (2, convolution), (1, low_rank), (0.7, dot_sum)]
