"""Cells that a model may have beside its other states: those of real networks, and near misses of them."""

from __future__ import annotations

from .draw import Draw, Value
from .forms import STEEP_FORMS
from .nests import fit
from .ops import embedding, matmul
from .spec import Leaf
from .weights import weight

# States with their new values, and what the output may show of them.
Cell = tuple[dict[str, tuple[Leaf, Value]], list[Value]]


def _drive(g: Draw, u: Value, n: int, count: int) -> list[Value]:
    """Products of the same data, most often; of one matrix, or one for each."""
    if g.chance(0.3):
        y = matmul(g, u, count * n)
        return [g.emit("part", [y], (n,), a=i * n, b=(i + 1) * n) for i in range(count)]
    return [matmul(g, u if g.chance(0.85) else g.data((1,)) or u, n) for _ in range(count)]


def _vector(g: Draw) -> Value:
    u = g.data((1, 2)) or g.pool[0]
    return u if len(u.shape) == 1 else fit(g, u, (g.dim(),))


def _gated_cell(g: Draw) -> Cell:
    """An LSTM: its output is a function of its cell and the last step; near misses keep some of the old output."""
    n, u = g.dim(), _vector(g)
    c, m = Value("s.c", (n,)), Value("s.m", (n,))
    u = g.emit("concat", [u, m], (u.shape[0] + n,)) if g.chance(0.5) else u
    forget, enter, value, leave = _drive(g, u, n, 4)
    fresh = g.emit("gate", [enter, g.emit("tanh", [value], (n,))], (n,))
    cell = g.emit("add", [g.emit("gate", [forget, c], (n,)), fresh], (n,))
    out = g.emit("gate", [leave, g.emit("tanh", [cell], (n,))], (n,))
    out = g.emit("leaky", [m, out], (n,)) if g.chance(0.25) else out
    g.pool += [cell, out]
    return {"c": (Leaf((n,)), cell), "m": (Leaf((n,)), out)}, [cell, out]


def _complex_cell(g: Draw) -> Cell:
    """A complex state with one real matrix for each of its parts, whose traces are one."""
    n, u = g.dim(), _vector(g)
    drive = g.emit("join", _drive(g, u, n, 2), (n,), "z")
    drive = g.emit("gain", [drive, weight(g, (n,))], (n,), "z") if g.chance(0.4) else drive
    decay = g.emit("unit", [g.param((n,), "complex128")], (n,), "z")
    new = g.emit("rotated", [Value("s.u", (n,), "z"), drive, decay], (n,), "z")
    parts = [g.emit(part, [new], (n,)) for part in ("real", "imag")]
    g.pool += parts
    return {"u": (Leaf((n,), "complex128"), new)}, parts


def _rotating_cell(g: Draw) -> Cell:
    """The same with two real states."""
    n, u = g.dim(), _vector(g)
    a, b, old = g.param((n,)), g.param((n,)), [Value("s.c", (n,)), Value("s.m", (n,))]
    first, second = _drive(g, u, n, 2)
    kept = [[g.emit("gain", [v, w], (n,)) for v in old] for w in (a, b)]
    left = g.emit("add", [g.emit("subtract", [kept[0][0], kept[1][1]], (n,)), first], (n,))
    right = g.emit("add", [g.emit("add", [kept[1][0], kept[0][1]], (n,)), second], (n,))
    g.pool += [left, right]
    return {"c": (Leaf((n,)), left), "m": (Leaf((n,)), right)}, [left, right]


def _fused_cell(g: Draw) -> Cell:
    """One product whose columns serve several ends: a state, its leak, a second state, the gate of an output."""
    n, u = g.dim(), _vector(g)
    count = g.pick((2, 3, 4))
    y = matmul(g, u, count * n)
    drive, *rest = g.rng.sample([g.emit("part", [y], (n,), a=i * n, b=(i + 1) * n) for i in range(count)], count)
    drive = g.emit("tanh", [drive], (n,)) if g.chance(0.7) else drive
    kept = g.emit("gate", [rest.pop(), Value("s.e", (n,))], (n,)) if len(rest) > 1 else Value("s.e", (n,))
    new = g.emit("leaky", [kept, drive], (n,))
    states = {"e": (Leaf((n,)), new)}
    if len(rest) > 1:
        second = g.emit("leaky", [Value("s.f", (n,)), g.emit("sin", [rest.pop()], (n,))], (n,))
        states["f"] = (Leaf((n,)), g.emit("gate", [second, new], (n,)) if g.chance(0.3) else second)
    return states, [*(v for _, v in states.values()), *(g.emit("gate", [gate, new], (n,)) for gate in rest)]


def _steep_cell(g: Draw) -> Cell:
    """States that start at zero or become zero in the middle, under functions whose slope has no bound there."""
    n, u, steep = g.dim(), _vector(g), g.pick(list(STEEP_FORMS))
    y, old, start = matmul(g, u, n), Value("s.o", (n,)), g.pick(("zeros", "ones"))
    kind = g.pick(("rectified", "cleared", "timer"))
    if kind == "rectified":
        new = g.emit("rectified", [g.emit(steep, [old], (n,)), y], (n,))
        return {"o": (Leaf((n,), start=start), new)}, [new]
    if kind == "timer":  # no parameter reaches it, most often
        age = Value("s.o", (1,))
        new = g.emit("timer", [age, u], (1,))
        y = g.emit("multiply", [y, g.emit(steep, [g.pick((age, new))], (1,))], (n,))
        above = g.emit("leaky", [Value("s.v", (n,)), y], (n,))
        return {"o": (Leaf((1,), start=start), new), "v": (Leaf((n,)), above)}, [above]
    new = g.emit("cleared", [old, y], (n,))
    above = g.emit("leaky", [Value("s.v", (n,)), g.emit(steep, [g.pick((old, new))], (n,))], (n,))
    return {"o": (Leaf((n,), start=start), new), "v": (Leaf((n,)), above)}, [above]


def _constant_cell(g: Draw) -> Cell:
    """A leak, and now and then a mask or an offset, that are arrays of numpy."""
    n, u = g.dim(), _vector(g)
    w = g.param((*u.shape, n))
    if g.chance(0.5):
        w = g.emit("w_mask", [w, g.const(w.shape, "numpy")], w.shape, "w")
    y = g.emit("matmul", [u, w], (n,))
    if g.chance(0.3):
        y = g.emit(g.pick(("shift", "jit_constant", "scaled_by")), [y, g.const((n,), "numpy")], (n,))
    new = g.emit("kept_by", [Value("s.l", (n,)), g.const((n,), "numpy"), y], (n,))
    return {"l": (Leaf((n,)), new)}, [new]


def _delayed_cell(g: Draw) -> Cell:
    """A layer above another that it reads a step later, or by a line of delays; the output shows the upper one."""
    n, m = g.dim(), g.dim()
    low, up = Value("s.low", (n,)), Value("s.up", (m,))
    new_low = g.emit(g.pick(("leaky", "vanilla", "soft_reset")), [low, matmul(g, _vector(g), n)], (n,))
    states, read = {"low": (Leaf((n,)), new_low)}, low
    for i in range(g.pick((0, 0, 1, 2))):
        line = Value(f"s.line{i}", (n,))
        states[line.name[2:]] = Leaf((n,)), g.emit("assign", [line, read], (n,))
        read = line
    read = g.emit(g.pick(("tanh", "spike_jvp", "scale")), [read], (n,), a=0.7)
    form = g.weighted([(2, "one_leak_differs"), (1, "leaky"), (1, "gate_of_sample"), (1, "assign")])
    new_up = g.emit(form, [up, matmul(g, read, m)], (m,))
    states["up"] = Leaf((m,)), new_up
    return states, [new_up if g.chance(0.8) else up]


def _stabilised_cell(g: Draw) -> Cell:
    """Exponential gates, held in range by a running maximum or by a normaliser in log space (xLSTM)."""
    n, u = g.dim(), _vector(g)
    width = g.pick((1, n))  # of the gates and the stabiliser: one for all units, or one for each
    enter, forget = matmul(g, u, width), g.emit("log_sigmoid", [matmul(g, u, width)], (width,))
    old = Value("s.top", (width,))
    top = g.emit(g.pick(("running_maximum", "log_space")), [old, forget, enter], (width,))
    start = g.pick(("drawn", "zeros", "lowest"))

    gates = [forget, old, top, enter]
    inner = g.emit("stabilised", [Value("s.num", (n,)), *gates, matmul(g, u, n)], (n,))
    states = {"top": (Leaf((width,), start=start), top), "num": (Leaf((n,)), inner)}
    if g.chance(0.7):
        total = g.emit("stabilised", [Value("s.den", (width,)), *gates, Value("1.0", ())], (width,))
        states["den"] = Leaf((width,), start="ones"), total
        inner = g.emit("quotient", [inner, total], (n,))
    return states, [inner]


def _between(g: Draw, z: Value, u: Value) -> Value:
    """What stands between two maps in series: most often linear in the data."""
    (n,), kind = z.shape, g.weighted([(3, "gain"), (3, "bias"), (2, "matmul"), (1, "scale"), (1, "part"), (1, "concat"),
                                      (1, "add"), (1, "subtract"), (0.7, "tanh"), (0.7, "multiply")])  # fmt: skip
    if kind in ("gain", "bias"):
        return g.emit(kind, [z, weight(g, (n,))], (n,))
    if kind == "part":
        return g.emit(kind, [z], (n - n // 2,), a=n // 2, b=n)
    if kind == "concat":
        return g.emit(kind, [z, u], (n + u.shape[0],))
    if kind in ("add", "subtract", "multiply"):
        return g.emit(kind, [z, matmul(g, u, n)], (n,))
    return matmul(g, z) if kind == "matmul" else g.emit(kind, [z], (n,), a=0.7)


def _series_cell(g: Draw) -> Cell:
    """A gated state under maps in series, of data or of a token's row; near misses have a function between them."""
    n, u = g.dim(), _vector(g)
    z = (embedding(g, u) if g.chance(0.3) else None) or matmul(g, u)
    for _ in range(g.pick((0, 1, 1, 2))):
        z = _between(g, z, u)
    y, old = matmul(g, z, n), Value("s.ser", (n,))
    y = g.emit("tanh", [y], (n,)) if g.chance(0.6) else y
    read = g.pick((u, z))  # what lies between may be read elsewhere, not linearly
    new = g.emit("add", [g.emit("gate", [matmul(g, read, n), old], (n,)), y], (n,))
    return {"ser": (Leaf((n,)), new)}, [new]


def _convolved_cell(g: Draw) -> Cell:
    """A short convolution over the last inputs, channel by channel, under a gated state; near misses mix channels."""
    n, taps = g.dim(), g.pick((2, 3))
    u, old = matmul(g, _vector(g), n), Value("s.conv", (taps - 1, n))
    window = g.emit("append", [old, u], (taps, n))
    form = g.weighted([(2, "taps_by_sum"), (2, "taps_by_einsum"), (2, "taps_by_conv"), (1, "taps_that_mix")])
    shape = (taps, n, n) if form == "taps_that_mix" else (taps, n)
    v = g.emit(form, [window, weight(g, shape)], (n,))
    v = g.emit("tanh", [v], (n,)) if g.chance(0.6) else v
    h = Value("s.above", (n,))
    read = matmul(g, v, n) if g.chance(0.4) else v
    new = g.emit("add", [g.emit("gate", [g.pick((read, u)), h], (n,)), v], (n,))
    g.pool.append(new)
    later = g.emit("without_first", [window], (taps - 1, n))
    return {"conv": (Leaf((taps - 1, n)), later), "above": (Leaf((n,)), new)}, [new]


# How far seeds are moved, how many models have such a cell, and which.
CELLS = (
    (2**41, 0.2, (_gated_cell, _complex_cell, _rotating_cell)),
    (2**42, 0.15, (_fused_cell,)),
    (2**44, 0.05, (_steep_cell,)),
    (2**45, 0.05, (_constant_cell,)),
    (2**46, 0.05, (_delayed_cell,)),
    (2**47, 0.05, (_stabilised_cell,)),
    (2**48, 0.05, (_series_cell,)),
    (2**49, 0.05, (_convolved_cell,)),
)
