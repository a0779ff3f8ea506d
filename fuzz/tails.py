"""What may stand between a weight op and a state, and what joins values; none of it has weights."""

from __future__ import annotations

from .draw import Draw, Value


def tail(g: Draw, u: Value) -> Value:
    """A random function of a value, or of it and another."""
    found = g.weighted(TAILS)(g, u)
    return found if found is not None else g.emit("tanh", [u], u.shape)


def keep(*forms: str):
    """Elementwise functions."""
    return lambda g, u: g.emit(g.pick(forms), [u], u.shape)


def along(*forms: str):
    """Functions along the last axis that keep its length."""
    return lambda g, u: g.emit(g.pick(forms), [u], u.shape) if u.shape else None


def _roll(g: Draw, u: Value) -> Value | None:
    return g.emit("roll", [u], u.shape, a=g.pick((1, -1))) if u.shape else None


def _fixed(g: Draw, u: Value) -> Value | None:
    if not u.shape:
        return None
    m = g.dim()
    return g.emit("fixed", [u, g.const((u.shape[-1], m))], (*u.shape[:-1], m))


def _shape(g: Draw, u: Value) -> Value | None:
    """Transpose, flatten or fold."""
    if len(u.shape) == 2:
        if g.chance(0.5):
            return g.emit("swap", [u], u.shape[::-1])
        return g.emit("flatten", [u], (u.shape[0] * u.shape[1],), a=-2)
    if len(u.shape) == 3:
        return g.emit("flatten", [u], (u.shape[0] * u.shape[1] * u.shape[2],), a=-3)
    if len(u.shape) == 1 and u.shape[0] in (2, 4):
        return g.emit("fold", [u], (2, u.shape[0] // 2), a=(2, u.shape[0] // 2))
    return None


def _pool(g: Draw, u: Value) -> Value | None:
    if not u.shape or u.shape[-1] % 2 or not u.shape[-1]:
        return None
    return g.emit(g.pick(("mean_pool", "max_pool")), [u], (*u.shape[:-1], u.shape[-1] // 2))


def _take(g: Draw, u: Value) -> Value | None:
    if not u.shape:
        return None
    index = [g.rng.randrange(u.shape[-1]) for _ in range(g.dim())] if u.shape[-1] else []
    return g.emit("take", [u], (*u.shape[:-1], len(index)), a=index) if index else None


def _shrink(g: Draw, u: Value) -> Value | None:
    if not u.shape or not u.shape[-1]:
        return None
    if g.chance(0.4):
        return g.emit(g.pick(("total", "logsumexp")), [u], u.shape[:-1])
    if g.chance(0.4):
        return g.emit("index", [u], u.shape[:-1], a=g.rng.randrange(u.shape[-1]))
    n = g.rng.randrange(1, u.shape[-1] + 1)
    return g.emit("part", [u], (*u.shape[:-1], n), a=0, b=n)


def _join(g: Draw, u: Value) -> Value | None:
    """Two values of one shape."""
    other = g.like(u.shape, u)
    if other is None:
        return None
    form = g.pick(("add", "multiply", "gate", "subtract", "normaliser", "barrier"))
    return g.emit(form, g.pick(([u, other], [other, u])), u.shape)


def _select(g: Draw, u: Value) -> Value | None:
    other, which = g.like(u.shape, u), g.like(u.shape)
    return None if other is None or which is None else g.emit("select", [which, u, other], u.shape)


def _concat(g: Draw, u: Value) -> Value | None:
    other = g.data((1,))
    if other is None or len(u.shape) != 1 or u.shape[0] + other.shape[0] > 6:
        return None
    return g.emit("concat", [u, other], (u.shape[0] + other.shape[0],))


def _gates(g: Draw, u: Value) -> Value | None:
    """The two halves of one value, one the gate of the other."""
    if not u.shape or u.shape[-1] % 2 or not u.shape[-1]:
        return None
    n = u.shape[-1] // 2
    a = g.emit("part", [u], (*u.shape[:-1], n), a=0, b=n)
    b = g.emit("part", [u], (*u.shape[:-1], n), a=n, b=2 * n)
    return g.emit("gate", [a, b], a.shape)


def _outer(g: Draw, u: Value) -> Value | None:
    """Products of data with data, as in attention."""
    if len(u.shape) == 2:
        other = g.like(u.shape[:1])
        return None if other is None else g.emit("contract", [u, other], u.shape[1:])
    other = g.data((1,))
    return None if len(u.shape) != 1 or other is None else g.emit("outer", [u, other], u.shape + other.shape)


def _closure(g: Draw, u: Value) -> Value | None:
    """An array from outside the step, by name or written out, also inside `jit`."""
    form = g.pick(("shift", "scaled_by", "shift_np", "jit_closure", "jit_constant"))
    if form in ("shift", "scaled_by", "jit_constant"):
        return g.emit(form, [u, g.const(u.shape)], u.shape)
    return g.emit(form, [u], u.shape, a=u.shape[-1]) if u.shape else None


def _narrow(g: Draw, u: Value) -> Value:
    if g.chance(0.5):
        return g.emit("narrow", [u], u.shape, a=g.pick(("bfloat16", "float16", "float32")))
    return g.emit("reduce_precision", [u], u.shape, a=g.pick((4, 7)))


def _wider(g: Draw, u: Value) -> Value | None:
    """Zeros behind it, or copies of it along a new axis."""
    if len(u.shape) != 1 or not u.shape[0]:
        return None
    n = g.rng.randrange(1, min(u.shape[0], 2) + 1)
    if g.chance(0.5):
        return g.emit("pad", [u], (u.shape[0] + n,), a=n)
    return g.emit("broadcast", [u], (*u.shape, n), a=n)


def _scale(g: Draw, u: Value) -> Value:
    return g.emit("scale", [u], u.shape, a=g.pick((0.5, -1.0, 2.0)))


def _linear_call(g: Draw, u: Value) -> Value | None:
    """A linear map that brings its own transpose, and that JAX cannot map over an axis."""
    return None if g.batch == "vmap" else g.emit("linear_call", [u, g.const(u.shape)], u.shape)


def _top(g: Draw, u: Value) -> Value | None:
    n = u.shape[-1] if u.shape else 0
    if not n:
        return None
    k = g.rng.randrange(1, n + 1)
    return g.emit("top", [u], (*u.shape[:-1], k), a=k)


def _reduce(g: Draw, u: Value) -> Value | None:
    if not u.shape or not u.shape[-1]:
        return None
    return g.emit(g.pick(("product_of", "norm", "largest")), [u], u.shape[:-1])


def _edit(g: Draw, u: Value) -> Value | None:
    if not u.shape or not u.shape[-1]:
        return None
    return g.emit(g.pick(("set_first", "add_last", "by_order", "fourier", "diff", "cumprod", "cummax")), [u], u.shape)


def _while(g: Draw, u: Value) -> Value | None:
    return g.emit("while_scale", [u], u.shape)


def _batch_mean(g: Draw, u: Value) -> Value | None:
    return g.emit("batch_mean", [u], u.shape) if g.batch == "lead" else None


def _phase(g: Draw, u: Value) -> Value | None:
    counters = [v for v in g.pool if v.kind == "i" and v.shape == ()]
    if len(u.shape) != 1 or not counters:
        return None
    return g.emit("phase", [u, g.pick(counters)], u.shape, a=None)


def _noise(g: Draw, u: Value) -> Value | None:
    keys = [v for v in g.pool if v.kind == "k"]
    return g.emit("noise", [u, g.pick(keys)], u.shape) if keys else None


TAILS = [
    (5, keep("tanh", "sigmoid", "sin")), (3, keep("relu", "leaky_where", "clip", "abs", "square")),
    (1.5, along("softmax", "layer_norm", "mean_out")), (1, along("flip", "sort", "cumsum", "associative")), (1, _roll),
    (1, _fixed),
    (2.5, _shape), (1, _pool), (1, _take), (1.5, _shrink), (5, _join), (1, _select), (1.5, _concat),
    (1.5, _gates), (1, _outer), (1.5, _closure), (0.8, _narrow), (0.4, _while), (0.4, _batch_mean),
    (1, _phase), (0.7, _wider), (0.3, _top), (0.2, _linear_call), (0.7, _reduce), (1.2, _edit), (0.7, _scale),
    (3, _noise), (1.5, keep("spike_jvp", "spike_vjp")), (0.7, keep("clip_gradient")), (0.5, keep("scale_gradient")),
    (0.4, keep("stop")),
]  # fmt: skip
