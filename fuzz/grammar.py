"""From a seed to a model: inputs, states of several kinds, some statements, the states' updates, the output."""

from __future__ import annotations

import random

from .cells import CELLS
from .draw import Draw, Value
from .nests import chain, fit, piece
from .ops import matmul, op
from .spec import Leaf, Model, names_read
from .tails import tail
from .weights import weight

UPDATES = [
    (6, "leaky"), (2, "vanilla"), (1, "soft_reset"), (1, "hard_reset"), (1, "reset_where"), (0.7, "mean_field"),
    (0.7, "ring"), (0.7, "delay"), (0.7, "product"), (0.7, "assign"), (0.5, "maximum"), (1, "clipped"),
    (0.7, "detached"), (0.5, "write_first"), (0.5, "shift_in"), (0.5, "alternate"),
    (0.5, "normed"), (0.3, "clip_state"), (0.5, "one_leak_differs"), (0.5, "gate_of_sample"),
]  # fmt: skip
NEEDS_AXIS = ("mean_field", "ring", "delay", "write_first", "shift_in", "one_leak_differs", "gate_of_sample")
# Memories that a key and a value write: delta rules, and what is near to one.
MEMORIES = [(2, "key_value"), (2, "selective"), (1, "delta_rule"), (1, "gated_delta"), (1, "delta_by_row"),
            (1, "delta_over_norm")]  # fmt: skip
READOUTS = [(5, "leaky"), (1, "one_leak_differs"), (1, "gate_of_sample"), (1, "vanilla"), (1, "detached")]


def draw_model(seed: int) -> Model:
    """The model of a seed, the same on every machine."""
    g = Draw(seed)
    g.batch = g.weighted([(4, "none"), (4, "lead"), (2, "vmap")])
    inputs = _inputs(g)
    hidden, old = _states(g)
    for _ in range(g.weighted([(4, 0), (4, 1), (2, 2), (0.7, 3), (0.2, 5)])):
        piece(g, g.data() or g.pool[0])
    new = {name: _update(g, name, old[name]) for name in g.rng.sample(sorted(old), len(old))}
    below = [v for v in new.values() if v.kind == "d" and len(v.shape) == 1]
    shown = [v for v in new.values() if v.kind == "d"]
    if below and g.chance(0.2):
        hidden["r"], new["r"] = _readout(g, g.pick(below))
        shown = [new["r"]] if g.chance(0.8) else [*shown, new["r"]]
    for shift, share, cells in CELLS:
        own = random.Random(seed + shift)  # by itself, so that seeds without such a cell give the models that they gave
        if own.random() < share:
            rest, g.rng = g.rng, own
            cell, shown = g.pick(cells)(g)
            hidden |= {name: leaf for name, (leaf, _) in cell.items()}
            new |= {name: value for name, (_, value) in cell.items()}
            g.rng = rest
    own = random.Random(seed + 2**43)
    if below and own.random() < 0.15:
        rest, g.rng = g.rng, own
        hidden["q"], new["q"] = _read_later(g, g.pick(below), hidden)
        shown, g.rng = [Value("s.q", hidden["q"].shape)], rest
    output = _output(g, shown)
    model = Model(
        params=g.params, hidden=hidden, inputs=inputs, consts=g.consts, body=tuple(g.body),
        new={name: new[name].name for name in hidden}, output=output, batch=g.batch,
        samples=g.pick((1, 2, 2)), steps=g.pick((4, 4, 5)),
        wrap=g.weighted([(12, ""), (1.5, "jax.jit"), (1, "jax.checkpoint")]),
    )  # fmt: skip
    return model if g.params else draw_model(seed + 2**40)


def _inputs(g: Draw) -> tuple[Leaf, ...]:
    if g.chance(0.03):
        return ()  # it runs by itself
    leaves = [Leaf(g.weighted([(8, (g.dim(),)), (1, ()), (1.5, (2, g.dim()))]))]
    if g.chance(0.2):
        leaves.append(Leaf((g.dim(),)))
    if g.chance(0.2):
        leaves.append(Leaf((), "int32"))
    g.pool += [Value(f"x{i}", leaf.shape, "i" if leaf.dtype == "int32" else "d") for i, leaf in enumerate(leaves)]
    return tuple(leaves)


def _states(g: Draw) -> tuple[dict[str, Leaf], dict[str, Value]]:
    hidden: dict[str, Leaf] = {}
    n = g.dim()
    for i in range(g.weighted([(6, 1), (4, 2), (0.8, 3)])):
        hidden[f"h{i}"] = Leaf(g.weighted([(5, (n,)), (3, (g.dim(),)), (1.5, (2, g.dim())), (0.7, ())]))
    if g.chance(0.08):
        hidden["z"] = Leaf((g.dim(),), "complex128")
    if g.chance(0.1):
        hidden["n"] = Leaf((), "int32")
    if g.chance(0.08) and g.batch != "lead":
        hidden["k"] = Leaf((), "key")
    if g.chance(0.05):
        hidden["b"] = Leaf((g.dim(),), g.pick(("float32", "bfloat16")))
    kinds = {"z": "z", "n": "i", "k": "k", "b": "b"}
    old = {name: Value(f"s.{name}", leaf.shape, kinds.get(name, "d")) for name, leaf in hidden.items()}
    g.pool += [v for v in old.values() if v.kind != "k"]
    if "k" in old:
        g.pool.append(g.emit("second_key", [old["k"]], (), "k"))
        noisy = g.data()
        g.pool.append(g.emit("noise", [noisy, g.pool[-1]], noisy.shape))
    if "b" in old:
        g.pool.append(g.emit("w_float", [old["b"]], old["b"].shape))
    return hidden, old


def _update(g: Draw, name: str, old: Value) -> Value:
    """The new value of a state; later statements may read it."""
    if old.kind == "k":
        return g.emit("first_key", [old], (), "k")
    if old.kind == "i":
        return g.emit("count", [old], (), "i")
    source = g.data((1, 2) if g.chance(0.8) else (0, 1, 2, 3)) or g.pool[0]
    if g.chance(0.6):
        source = op(g, source) if g.chance(0.8) else chain(g, source)
    y = fit(g, source, old.shape)
    if g.chance(0.25):
        y = fit(g, tail(g, y), old.shape)
    if old.kind == "z":
        return _rotate(g, old, y)
    if old.kind == "b":
        return g.emit("narrow_state", [old, y], old.shape, "b")
    if old.shape and g.chance(0.3 if len(old.shape) == 2 else 0.06):
        new = _fanned_out(g, old, y)
        g.pool.append(new)
        return new
    form = g.weighted(UPDATES)
    if form in NEEDS_AXIS and not old.shape:
        form = "leaky"
    if g.chance(0.12):
        gate = fit(g, g.data() or y, old.shape)
        new = g.emit("convex", [old, y, g.emit("sigmoid", [gate], gate.shape)], old.shape)
    elif g.chance(0.1):
        new = g.emit("add", [g.emit("leak", [old, weight(g, old.shape)], old.shape), y], old.shape)
    else:
        new = g.emit(form, [old, y], old.shape)
    g.pool.append(new)
    return new


def _fanned_out(g: Draw, old: Value, y: Value) -> Value:
    """An update by values that reach a whole axis of the state each: a gate that is shared, a key, a value."""
    form = g.weighted(MEMORIES) if len(old.shape) == 2 else ""
    first = fit(g, g.data((1, 2)) or y, old.shape[:1])
    if not form or g.chance(0.3):
        return g.emit("shared_gate", [old, y, fit(g, first, old.shape[:-1])], old.shape)
    second = matmul(g, first, old.shape[1]) if g.chance(0.3) else fit(g, g.data((1, 2)) or y, old.shape[1:])
    return g.emit(form, [old, first, second], old.shape)


def _readout(g: Draw, below: Value) -> tuple[Leaf, Value]:
    """A state above a layer, which most often leaks and feeds nothing but the output."""
    shape = (g.dim(),)
    y = g.emit("matmul", [below, weight(g, (*below.shape, *shape))], shape)
    return Leaf(shape), g.emit(g.weighted(READOUTS), [Value("s.r", shape, "d"), y], shape)


def _read_later(g: Draw, below: Value, hidden: dict[str, Leaf]) -> tuple[Leaf, Value]:
    """A state that the output reads a step later: the old value of another, or a product, with or without a leak.

    Its data are a layer, or the roots of old values, whose slope has no bound at zero.
    """
    plain = [(name, leaf.shape) for name, leaf in hidden.items() if leaf.dtype == "float64" and len(leaf.shape) == 1]
    kept = [Value(f"s.{name}", shape) for name, shape in plain]
    if kept and g.chance(0.3):
        delayed = g.pick(kept)
        return Leaf(delayed.shape), g.emit("assign", [delayed, delayed], delayed.shape)
    if kept and g.chance(0.4):
        old = g.pick(kept)
        below = g.emit("root", [old], old.shape)
    shape = (g.dim(),)
    y = g.emit("matmul", [below, weight(g, (*below.shape, *shape))], shape)
    form = g.weighted([(2, "assign"), (2, "leaky"), (1, "one_leak_differs")])
    return Leaf(shape), g.emit(form, [Value("s.q", shape), y], shape)


def _rotate(g: Draw, old: Value, y: Value) -> Value:
    """A complex state with a learnable rotation; the rest of the model sees its parts."""
    decay = g.emit("unit", [g.param(old.shape, "complex128")], old.shape, "z")
    new = g.emit("rotated", [old, g.emit("to_complex", [y], y.shape, "z"), decay], old.shape, "z")
    g.pool.append(g.emit(g.pick(("real", "imag", "power_of")), [new], old.shape))
    return new


def _output(g: Draw, new: list[Value]) -> tuple[str, ...]:
    """One or two values, most often new states, bare or through a readout; states that are left out are monitors."""
    parts = []
    for _ in range(g.weighted([(4, 1), (2, 2)])):
        shown = g.pick(new) if new and g.chance(0.7) else g.data() or g.pool[0]
        if g.chance(0.35):
            shown = op(g, shown)
        elif g.chance(0.25):
            shown = tail(g, shown)
        parts.append(shown)
    return tuple(dict.fromkeys(v.name for v in parts))


def draw_models(seed: int, count: int) -> list[Model]:
    """Models of consecutive seeds."""
    return [draw_model(seed + i) for i in range(count)]


def unread(model: Model) -> set[str]:
    """States that neither the output nor another state reads (monitors)."""
    read = names_read(model.body) | set(model.output)
    return {name for name in model.hidden if model.new[name] not in read and f"s.{name}" not in read}
