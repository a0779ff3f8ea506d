"""Copying twenty patterns of seven bits, by four layers of linear recurrent units: BPTT of ours is the bar.

    python -m benchmarks.published.copying                          all rows; writes benchmarks/results/copying.json
    python -m benchmarks.published.copying --rows bptt --seeds 0    one row, one seed
    python -m benchmarks.published.copying --epochs 1               a first look
    python -m benchmarks.published.copying --page                   the table in docs/learning.md

Settings of the source (Zucchet et al., NeurIPS 2023; its figures could not be verified, so that none stands beside
ours): 20 patterns of 7 bits, a pause of 7 steps, a sign, 20 steps to repeat them: 48 steps, eight inputs. An encoder of
128; four layers of LayerNorm, an LRU of 64 states (|λ| between 0 and 1), GELU, a gated linear unit (both halves of
128), a skip; a decoder. Batches of 50, 20,000 sequences, 25 epochs, AdamW with a cosine schedule, learning rate 0.004,
half of it for the recurrence. Without the source's dropout of 0.1. The loss is the cross-entropy of the bits in the
last 20 steps, and the figure the share of bits that are right in 1,000 new sequences.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from benchmarks.published import lru_stack, results
from benchmarks.published.lru_stack import lecun, lru, new_lru, new_norm, norm, single

import etrax

PATTERNS, BITS, PAUSE, STEPS = 20, 7, 7, 48
WIDTH, UNITS, LAYERS, BATCH, GRU = 128, 64, 4, 50, 134
SEQUENCES, EPOCHS, TEST = 20_000, 25, 1000


def sequences(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs (48, size, 8), bits to give back (48, size, 7), and which steps count."""
    bits = rng.integers(2, size=(PATTERNS, size, BITS)).astype(np.float32)
    xs, ys = np.zeros((STEPS, size, BITS + 1), np.float32), np.zeros((STEPS, size, BITS), np.float32)
    xs[:PATTERNS, :, :BITS] = bits
    xs[PATTERNS + PAUSE, :, BITS] = 1
    ys[-PATTERNS:] = bits
    mask = np.zeros(STEPS, np.float32)
    mask[-PATTERNS:] = 1
    return xs, ys, mask


def start_lru(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    layers = [
        {
            "norm": new_norm(WIDTH), "lru": new_lru(rng, WIDTH, UNITS, WIDTH, 0.0, 6.28),
            "left": lecun(rng, WIDTH, WIDTH), "right": lecun(rng, WIDTH, WIDTH),
        }
        for _ in range(LAYERS)
    ]  # fmt: skip
    return single({"in": lecun(rng, BITS + 1, WIDTH), "layers": layers, "out": lecun(rng, WIDTH, BITS)})


def step_lru(params: dict, h: list, x: jax.Array) -> tuple[list, jax.Array]:
    states, x = [], x @ params["in"]
    for p, old in zip(params["layers"], h, strict=True):
        new, y = lru(p["lru"], old, norm(p["norm"], x))
        y = jax.nn.gelu(y)
        x = x + (y @ p["left"]) * jax.nn.sigmoid(y @ p["right"])
        states.append(new)
    return states, x @ params["out"]


def start_gru(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    pairs = {"u": (BITS + 1, GRU), "w": (GRU, GRU), "u2": (BITS + 1, 2 * GRU), "w2": (GRU, 2 * GRU)}
    weights = {name: rng.uniform(-1, 1, shape) / GRU**0.5 for name, shape in pairs.items()}
    return single(weights | {"b": np.zeros(GRU), "b2": np.zeros(2 * GRU), "out": lecun(rng, GRU, BITS)})


def step_gru(p: dict, h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    z, r = jnp.split(jax.nn.sigmoid(x @ p["u2"] + h @ p["w2"] + p["b2"]), 2, -1)
    h = (1 - z) * h + z * jnp.tanh(x @ p["u"] + (r * h) @ p["w"] + p["b"])
    return h, h @ p["out"]


def loss_fn(logits: jax.Array, bits: jax.Array) -> jax.Array:
    return optax.sigmoid_binary_cross_entropy(logits, bits).mean()


OPTIMIZER = lru_stack.adamw(4e-3, 0.5, 0.01, lru_stack.RECURRENT)
STACK = lru_stack.Problem(
    start_lru, lambda batch: [jnp.zeros((batch, UNITS), jnp.complex64)] * LAYERS, step_lru, loss_fn, OPTIMIZER, BATCH
)
GATED = lru_stack.Problem(start_gru, lambda batch: jnp.zeros((batch, GRU)), step_gru, loss_fn, OPTIMIZER, BATCH)


class Row(NamedTuple):
    label: str
    problem: lru_stack.Problem
    rule: etrax.Rule
    window: int


ROWS = {
    "bptt": Row("BPTT (`tbptt`, window 48)", STACK, etrax.tbptt(), STEPS),
    "d_rtrl": Row("`d_rtrl`, window 1 (the top layer is exact)", STACK, etrax.d_rtrl(), 1),
    "tbptt1": Row("`tbptt`, window 1", STACK, etrax.tbptt(), 1),
    "gru_bptt": Row("GRU, BPTT", GATED, etrax.tbptt(), STEPS),
    "gru_d_rtrl": Row("GRU, `d_rtrl`, window 1", GATED, etrax.d_rtrl(), 1),
}


def draw(pool: tuple, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    which = rng.integers(pool[0].shape[1], size=size)
    return pool[0][:, which], pool[1][:, which], pool[2]


def run(name: str, _: str, seeds: list[int], epochs: float = EPOCHS, count: int = SEQUENCES) -> results.Run:
    row, runs = ROWS[name], []
    updates = max(int(epochs * count / row.problem.batch), 1)
    for seed in seeds:
        pool = sequences(np.random.default_rng(seed), count)
        params, cosine = lru_stack.train(row.problem, row.rule, row.window, seed, updates, partial(draw, pool))
        xs, ys, mask = sequences(np.random.default_rng(100_000 + seed), TEST)
        logits = np.asarray(lru_stack.outputs(row.problem)(params, jnp.asarray(xs)))
        right = 100 * float(((logits > 0) == (ys > 0.5))[mask > 0].mean())
        runs.append({"right": right, "cosine": cosine})
    return {key: [r[key] for r in runs] for key in runs[0]} | {"updates": updates}


def text(stored: results.Stored) -> str:
    lines = []
    for name in (name for name in ROWS if name in stored):
        r = stored[name]["copy"]
        cosines = [results.shown_interval(r["cosine"][0][when]) for when in ("start", "end")]
        count = f"{len(r['seeds'])} × {r['updates']:,}"
        lines.append([ROWS[name].label, results.spread(r["right"], 1), *cosines, count, results.minutes([r])])
    head = ["", "bits that are right, %", "cosine at the start", "at the end", "seeds × updates", "minutes"]
    return results.table(head, lines)


def main() -> None:
    parser = results.arguments(__doc__, ROWS, ["copy"])
    parser.add_argument("--epochs", type=float, default=EPOCHS)
    parser.set_defaults(seeds=[0, 1, 2])
    options = parser.parse_args()
    results.main("copying", options, lambda row, column, seeds: run(row, column, seeds, options.epochs), text)


if __name__ == "__main__":
    main()
