"""The same cells as other libraries spell them, against BPTT: what a user of one of them gets.

    python -m benchmarks.spellings [names]

Prints CPU time as ratios to BPTT of the same cell, least of many turns in one process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import jax
import jax.numpy as jnp
from benchmarks.gated import OUTPUTS, gru, lstm
from benchmarks.rivals import bptt, ours
from benchmarks.workload import F32, Array, Ops, Tree, Workload, gaussian, matrix

BATCH, UNITS, WINDOW, STEPS = 16, 256, 64, 1024


def _read_out(
    cell: Callable[[Tree, Tree, Array], Tree], params: Tree, hidden: Tree, batch: int, units: int
) -> Workload:
    """A cell `(params, hidden, x) -> hidden` under a linear readout of its state h."""

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        state = cell(p, state, x)
        return state, state["h"] @ p["out"]

    readout = matrix(jax.random.key(1), units, OUTPUTS)
    return Workload(step, {**params, "out": readout}, hidden, gaussian(batch, units, OUTPUTS), batch, 6 * units**2)


def flax_gru(batch: int, units: int) -> Workload:
    """Reset after the product: n = tanh(W x + b + r U h), one product of x and one of h for all gates."""
    from flax import nnx

    graph, params = nnx.split(nnx.GRUCell(units, units, rngs=nnx.Rngs(0)), nnx.Param, ...)[:2]

    def cell(p: Tree, state: Tree, x: Array) -> Tree:
        return {"h": nnx.merge(graph, _nested(params, p), nnx.State({}))(state["h"], x)[0]}

    return _read_out(cell, _flat(params), {"h": jnp.zeros((batch, units), F32)}, batch, units)


def flax_lstm(batch: int, units: int) -> Workload:
    """`OptimizedLSTMCell`: one product of x and one of h for all gates."""
    from flax import nnx

    graph, params = nnx.split(nnx.OptimizedLSTMCell(units, units, rngs=nnx.Rngs(0)), nnx.Param, ...)[:2]

    def cell(p: Tree, state: Tree, x: Array) -> Tree:
        (c, h), _ = nnx.merge(graph, _nested(params, p), nnx.State({}))((state["c"], state["h"]), x)
        return {"c": c, "h": h}

    hidden = {name: jnp.zeros((batch, units), F32) for name in "ch"}
    return _read_out(cell, _flat(params), hidden, batch, units)


def _flat(params: object) -> Tree:
    return {str(i): a for i, a in enumerate(jax.tree.leaves(params))}


def _nested(params: object, p: Tree) -> object:
    tree = jax.tree.structure(params)
    return jax.tree.unflatten(tree, [p[str(i)] for i in range(tree.num_leaves)])


def equinox_gru(batch: int, units: int) -> Workload:
    """As Flax's, with `W @ x` of one sample, mapped over the batch."""
    import equinox

    params, static = equinox.partition(
        equinox.nn.GRUCell(units, units, dtype=F32, key=jax.random.key(0)), equinox.is_array
    )

    def cell(p: Tree, state: Tree, x: Array) -> Tree:
        return {"h": jax.vmap(equinox.combine(_nested(params, p), static))(x, state["h"])}

    return _read_out(cell, _flat(params), {"h": jnp.zeros((batch, units), F32)}, batch, units)


def equinox_lstm(batch: int, units: int) -> Workload:
    """As `flax_lstm`, with `W @ x` of one sample, mapped over the batch."""
    import equinox

    params, static = equinox.partition(
        equinox.nn.LSTMCell(units, units, dtype=F32, key=jax.random.key(0)), equinox.is_array
    )

    def cell(p: Tree, state: Tree, x: Array) -> Tree:
        h, c = jax.vmap(equinox.combine(_nested(params, p), static))(x, (state["h"], state["c"]))
        return {"c": c, "h": h}

    hidden = {name: jnp.zeros((batch, units), F32) for name in "ch"}
    return _read_out(cell, _flat(params), hidden, batch, units)


def brainstate_gru(batch: int, units: int) -> Workload:
    """As brainstate spells it: reset before the product, z and r from one product of [x, h], biases."""
    keys = jax.random.split(jax.random.key(0), 2)
    params = {"rz": matrix(keys[0], 2 * units, 2 * units, 0.5), "n": matrix(keys[1], 2 * units, units, 0.5)}
    params |= {"b_rz": jnp.zeros(2 * units, F32), "b_n": jnp.zeros(units, F32)}

    def cell(p: Tree, state: Tree, x: Array) -> Tree:
        h = state["h"]
        r, z = jnp.split(jax.nn.sigmoid(jnp.concatenate([x, h], -1) @ p["rz"] + p["b_rz"]), 2, -1)
        n = jnp.tanh(jnp.concatenate([x, r * h], -1) @ p["n"] + p["b_n"])
        return {"h": (1 - z) * h + z * n}

    return _read_out(cell, params, {"h": jnp.zeros((batch, units), F32)}, batch, units)


def plain(batch: int, units: int) -> Workload:
    """h' = tanh(W [x, h] + b)."""
    params = {"w": matrix(jax.random.key(0), 2 * units, units, 0.5), "b": jnp.zeros(units, F32)}

    def cell(p: Tree, state: Tree, x: Array) -> Tree:
        return {"h": jnp.tanh(jnp.concatenate([x, state["h"]], -1) @ p["w"] + p["b"])}

    return _read_out(cell, params, {"h": jnp.zeros((batch, units), F32)}, batch, units)


CELLS = {
    "own GRU": gru,
    "brainstate GRU": brainstate_gru,
    "Flax GRU": flax_gru,
    "Equinox GRU": equinox_gru,
    "own LSTM": lstm,
    "Flax LSTM": flax_lstm,
    "Equinox LSTM": equinox_lstm,
    "plain RNN": plain,
}


def main(names: list[str], turns: int = 5) -> None:
    for name, make in CELLS.items():
        if names and not name.startswith(tuple(names)):
            continue
        workload = make(BATCH, UNITS)
        data = workload.data(STEPS)
        rivals = [bptt(), ours("tbptt", WINDOW), ours("d_rtrl", WINDOW)]
        programs = [rival.build(workload, *data) for rival in rivals]
        times: list[list[float]] = [[] for _ in programs]
        for _ in range(turns):
            for program, seconds in zip(programs, times, strict=True):
                start = time.process_time()
                program.run()
                seconds.append((time.process_time() - start) / STEPS)
        least = [min(seconds) for seconds in times]
        for rival, seconds, best in list(zip(rivals, times, least, strict=True))[1:]:
            middle = median(a / b for a, b in zip(seconds, times[0], strict=True))
            print(f"{name:16} {rival.name:20} {1e6 * best:7.0f} µs, BPTT {1e6 * least[0]:7.0f} µs: ", end="")
            print(f"least {best / least[0]:.2f}, median {middle:.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
