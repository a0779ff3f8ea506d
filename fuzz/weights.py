"""Weight expressions: what a model makes of its parameters before they meet data."""

from __future__ import annotations

from .draw import Draw, Value
from .spec import Leaf

Shape = tuple[int, ...]


def weight(g: Draw, shape: Shape, depth: int = 0) -> Value:
    """A value of a shape that is made of parameters only; most often a parameter."""
    known = [Value(f"p.{k}", leaf.shape, "w") for k, leaf in g.params.items() if leaf == Leaf(shape)]
    if g.closed:
        inside = [v for v in g.pool if v.kind == "w" and v.shape == shape]
        return g.pick(inside) if inside else g.const(shape)
    if known and g.chance(0.15):
        return g.pick(known)
    if depth > 1 or g.chance(0.6):
        return g.param(shape)
    made = g.pick(MAKERS)(g, shape, depth + 1)
    return made if made is not None else g.param(shape)


def same(form: str, **attrs: object):
    """An expression that keeps the shape."""
    return lambda g, shape, d: g.emit(form, [weight(g, shape, d)], shape, "w", **attrs)


def _transpose(g: Draw, shape: Shape, d: int) -> Value:
    return g.emit("transpose", [weight(g, shape[::-1], d)], shape, "w")


def _mask(g: Draw, shape: Shape, d: int) -> Value:
    return g.emit("w_mask", [weight(g, shape, d), g.const(shape)], shape, "w")


def _sum(g: Draw, shape: Shape, d: int) -> Value:
    return g.emit("w_sum", [weight(g, shape, d), weight(g, shape, d)], shape, "w")


def _slice(g: Draw, shape: Shape, d: int) -> Value | None:
    if not shape:
        return g.emit("w_row", [weight(g, (3,), d)], shape, "w", a=1)
    more = g.pick((1, 2))
    return g.emit("w_slice", [weight(g, (shape[0] + more, *shape[1:]), d)], shape, "w", a=1, b=1 + shape[0])


def _row(g: Draw, shape: Shape, d: int) -> Value:
    return g.emit("w_row", [weight(g, (2, *shape), d)], shape, "w", a=g.pick((0, 1)))


def _concat(g: Draw, shape: Shape, d: int) -> Value | None:
    if not shape:
        return None
    axis = g.rng.randrange(len(shape))
    cut = g.rng.randrange(shape[axis] + 1)  # a part may be empty
    parts = [(*shape[:axis], n, *shape[axis + 1 :]) for n in (cut, shape[axis] - cut)]
    return g.emit("w_concat", [weight(g, part, d) for part in parts], shape, "w", a=axis)


def _reshape(g: Draw, shape: Shape, d: int) -> Value:
    size = 1
    for n in shape:
        size *= n
    return g.emit("w_reshape", [weight(g, (size,), d)], shape, "w", a=shape)


def _low_rank(g: Draw, shape: Shape, d: int) -> Value | None:
    if len(shape) != 2:
        return None
    k = g.dim()
    return g.emit("w_low_rank", [weight(g, (shape[0], k), d), weight(g, (k, shape[1]), d)], shape, "w")


def _outer(g: Draw, shape: Shape, d: int) -> Value | None:
    if len(shape) != 2:
        return None
    return g.emit("w_outer", [weight(g, shape[:1], d), weight(g, shape[1:], d)], shape, "w")


def _take(g: Draw, shape: Shape, d: int) -> Value | None:
    if not shape:
        return None
    rows = g.dim()
    index = [g.rng.randrange(rows) for _ in range(shape[0])]
    return g.emit("w_take", [weight(g, (rows, *shape[1:]), d)], shape, "w", a=index)


def _broadcast(g: Draw, shape: Shape, d: int) -> Value | None:
    return g.emit("w_broadcast", [weight(g, shape[1:], d)], shape, "w", a=shape) if shape else None


def _expm(g: Draw, shape: Shape, d: int) -> Value | None:
    if len(shape) != 2 or shape[0] != shape[1] or not g.chance(0.2):  # its trace is long
        return None
    return g.emit("expm", [weight(g, shape, d)], shape, "w")


def _complex(g: Draw, shape: Shape, d: int) -> Value:
    return g.emit("w_real", [g.param(shape, "complex128")], shape, "w")


def _cast(g: Draw, shape: Shape, d: int) -> Value:
    return g.emit("w_float", [g.param(shape, g.pick(("bfloat16", "float32", "float16", "int32")))], shape, "w")


def _narrow(g: Draw, shape: Shape, d: int) -> Value:
    return g.emit("w_narrow", [weight(g, shape, d)], shape, "w", a=g.pick(("bfloat16", "float16", "float32")))


def _jit(g: Draw, shape: Shape, d: int) -> Value | None:
    return g.emit("w_jit", [weight(g, shape, d)], shape, "w", a=shape[-1]) if shape else None


def _of_vector(form: str):
    """Expressions that need an axis of several: a softmax over one element is a constant."""
    return lambda g, shape, d: g.emit(form, [weight(g, shape, d)], shape, "w") if shape and shape[-1] > 1 else None


MAKERS = [
    _transpose, same("w_abs"), same("softplus"), same("w_scale", a=2.0), same("w_tanh"), _mask, _sum, _slice, _row,
    _concat, _reshape, _low_rank, _outer, _take, _broadcast, _expm, _complex, _cast, _narrow, same("w_stop"),
    
    same("w_loop"), same("w_clip"), same("w_binary"), same("w_remat"), _jit,
    _of_vector("normalise"), _of_vector("w_softmax"), _of_vector("w_cumsum"),
    lambda g, shape, d: g.emit("tril", [weight(g, shape, d)], shape, "w") if len(shape) == 2 else None,
]  # fmt: skip
