"""Chaotic series, predicted online: the published table, and the same series seen once in ten steps.

    python -m benchmarks.published.chaotic                              all rows, into benchmarks/results/chaotic.json
    python -m benchmarks.published.chaotic --rows snap --columns henon  one cell of the table
    python -m benchmarks.published.chaotic --seeds 0 1 --steps 3000     a first look
    python -m benchmarks.published.chaotic --page                       the table in docs/learning.md

Settings of the published table (sketched-rtrl; fixed before any figure of ours was seen): a tanh network of 64 units,
recurrent and input weights uniform in ±1/8, bias zero, a linear readout that starts as torch's; 8 lanes; Adam 1e-3; an
update at every step; 15,000 steps; squared error on series of mean 0 and deviation 1, so that 1 is what a constant
reaches; hidden state and trace of all lanes start again every 200 steps; the first 64 steps are not learned from. A
run's figure is the mean of its last five records, one each 250 steps, each the mean of the last 200 losses. Figures are
the mean and the population deviation over seeds, which draw the network and, but for Hénon's, the series.

Mackey–Glass: β 0.2, γ 0.1, n 10, τ 17, Euler steps of 1, a history of 1.2 + 0.2 U. Lorenz: Euler steps of 0.01, every
second point, x alone, from (1, 1, 1) + 0.1 N. Hénon: a 1.4, b 0.3, x₀ = 0.1 + 0.01 · lane.

The column `glimpses` needs memory: the series is shown at every tenth step alone, beside a flag, and the next value is
asked for at every step. Hénon's map forgets its past within ten steps, so that nobody could predict it there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from benchmarks.published import results

import etrax

UNITS, LANES, RESTART, SKIPPED, EVERY = 64, 8, 200, 64, 10
SERIES = ("mackey_glass", "lorenz", "henon")
COLUMNS = (*SERIES, "mackey_glass glimpses", "lorenz glimpses")


def mackey_glass(rng: np.random.Generator, steps: int) -> np.ndarray:
    """x' = β x(t − τ) / (1 + x(t − τ)ⁿ) − γ x, one series for each lane."""
    values = list(1.2 + 0.2 * rng.random((18, LANES)))
    for _ in range(steps - len(values)):
        late = values[-18]
        values.append(values[-1] + 0.2 * late / (1 + late**10) - 0.1 * values[-1])
    return np.array(values)


def lorenz(rng: np.random.Generator, steps: int) -> np.ndarray:
    """The first coordinate at every second Euler step of 0.01."""
    point, values = 1 + 0.1 * rng.standard_normal((LANES, 3)), []
    for n in range(2 * steps):
        x, y, z = point.T
        point = point + 0.01 * np.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], 1)
        if n % 2 == 0:
            values.append(point[:, 0])
    return np.array(values)


def henon(rng: np.random.Generator, steps: int) -> np.ndarray:
    """x' = 1 − a x² + y, y' = b x; the seeds of the table change the network only."""
    x, y, values = 0.1 + 0.01 * np.arange(LANES), np.zeros(LANES), []
    for _ in range(steps):
        x, y = 1 - 1.4 * x**2 + y, 0.3 * x
        values.append(x)
    return np.array(values)


def data(series: str, glimpses: bool, steps: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets, (steps, lanes, channels)."""
    make = {"mackey_glass": mackey_glass, "lorenz": lorenz, "henon": henon}[series]
    values = make(np.random.default_rng(1000 + seed), steps + 1)
    values = (values - values.mean(0)) / values.std(0)
    xs, ys = values[:-1, :, None], values[1:, :, None]
    if glimpses:
        shown = np.broadcast_to((np.arange(steps) % EVERY == 0)[:, None, None], xs.shape)
        xs = np.concatenate([xs * shown, shown], -1)
    return xs.astype(np.float32), ys.astype(np.float32)


def tanh_step(params: dict, h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    h = jnp.tanh(x @ params["u"] + h @ params["w"] + params["b"])
    return h, h @ params["out"] + params["bias"]


def gru_step(params: dict, h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    z, r = jnp.split(jax.nn.sigmoid(x @ params["u2"] + h @ params["w2"] + params["b2"]), 2, -1)
    h = (1 - z) * h + z * jnp.tanh(x @ params["u"] + (r * h) @ params["w"] + params["b"])
    return h, h @ params["out"] + params["bias"]


def start(step: Callable, channels: int, seed: int) -> dict:
    """Uniform in ±1/√units, biases of the cell zero."""
    rng, n = np.random.default_rng(seed), UNITS
    shapes = {"u": (channels, n), "w": (n, n), "out": (n, 1), "bias": (1,)}
    shapes |= {"u2": (channels, 2 * n), "w2": (n, 2 * n)} if step is gru_step else {}
    params = {name: rng.uniform(-1, 1, shape) / n**0.5 for name, shape in shapes.items()}
    params |= {"b": np.zeros(n)} | ({"b2": np.zeros(2 * n)} if step is gru_step else {})
    return {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}


class Row(NamedTuple):
    """A rule and its window, a cell, a learning rate; `seeds` bounds how many are run of what is slow."""

    label: str
    rule: etrax.Rule
    window: int = 1
    step: Callable = tanh_step
    rate: float = 1e-3
    seeds: int = 10


ROWS = {
    "tbptt1": Row("`tbptt`, window 1", etrax.tbptt()),
    "d_rtrl": Row("`d_rtrl`", etrax.d_rtrl()),
    "snap": Row("`snap(1)`", etrax.snap(1)),
    "tbptt25": Row("`tbptt`, window 25", etrax.tbptt(), window=25),
    "uoro": Row("`uoro`", etrax.uoro(0)),
    "kf_rtrl": Row("`kf_rtrl`", etrax.kf_rtrl(0)),
    "gru": Row("GRU, `d_rtrl`", etrax.d_rtrl(), step=gru_step),
    "gru_fast": Row("GRU, `d_rtrl`, Adam 3e-3", etrax.d_rtrl(), step=gru_step, rate=3e-3),
    "gru_tbptt1": Row("GRU, `tbptt`, window 1", etrax.tbptt(), step=gru_step),
    "rtrl": Row("`rtrl`", etrax.rtrl(), seeds=3),
    "rtrl_slow": Row("`rtrl`, Adam 3e-4", etrax.rtrl(), rate=3e-4, seeds=3),
}


def squared(output: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.mean((output - target) ** 2)


def figure(losses: np.ndarray, window: int) -> float:
    """The mean of the last five records, one each 250 steps, each the mean of the last 200 losses."""
    per_record, last = 250 // window, 200 // window
    ends = [len(losses) - per_record * n for n in range(5)]
    return float(np.mean([losses[max(end - last, 0) : end].mean() for end in ends if end > 0]))


def run(name: str, column: str, seeds: list[int], steps: int = 15_000) -> results.Run:
    """All seeds at once: figures, and the cosine of the rule's gradient at the end of the first seed."""
    row, (series, *rest) = ROWS[name], column.split()
    seeds = seeds[: row.seeds]
    both = [data(series, bool(rest), steps, seed) for seed in seeds]
    xs, ys = (jnp.asarray(np.stack([b[i] for b in both])) for i in (0, 1))
    starts = [start(row.step, xs.shape[-1], seed) for seed in seeds]
    params = jax.tree.map(lambda *a: jnp.stack(a), *starts)
    learner = etrax.compile(row.step, row.rule, xs[0, 0], params=starts[0], hidden=jnp.zeros((LANES, UNITS)))
    optimizer = optax.adam(row.rate)
    train = learner.train(optimizer, squared, window=row.window)
    reset = jnp.arange(steps) % RESTART == 0
    mask = jnp.arange(steps) >= SKIPPED

    def one(params: dict, xs: jax.Array, ys: jax.Array) -> tuple[dict, jax.Array]:
        new, _, _, losses = train(params, optimizer.init(params), learner.init(), xs, ys, mask, reset)
        return new, losses

    ends, losses = jax.block_until_ready(jax.jit(jax.vmap(one))(params, xs, ys))
    last = jax.tree.map(lambda a: a[0], ends)
    meter = learner.meter(squared, row.window, probes=16)
    reading = meter.measure(last, learner.init(last), xs[0, -RESTART:], ys[0, -RESTART:], key=jax.random.key(0))
    figures = [figure(of_seed, row.window) for of_seed in np.asarray(losses)]
    return {"figures": figures, "seeds": seeds, "steps": steps, "cosine": results.interval(reading)}


# Read from the records of the source: mean (and deviation, where it gives one) of ten seeds.
PUBLISHED = {
    "exact RTRL": (".0180 ± .0218", ".0051 ± .0040", ".0052 ± .0010"),
    "SnAp-1": (".0050 ± .0010", ".0024 ± .0008", ".0052 ± .0012"),
    "TBPTT, 25 steps": (".0080", ".0054", ".0311"),
    "KF-RTRL": (".0286", ".0126", ".0384"),
    "UORO": (".0497", ".0425", ".658"),
    "GRU, TBPTT": (".0054", ".0038", ".0143"),
}


def text(stored: results.Stored) -> str:
    """Published rows, then ours: figures of all columns, the meter's interval at the end of Mackey–Glass, minutes."""
    head = ["", "Mackey–Glass", "Lorenz", "Hénon", "Mackey–Glass, glimpses", "Lorenz, glimpses", "cosine", "minutes"]
    lines = [[f"*{name}, published*", *values, "", "", "", ""] for name, values in PUBLISHED.items()]
    for name in (name for name in ROWS if name in stored):
        cells = [_cell(stored[name].get(column)) for column in COLUMNS]
        cosine = stored[name].get(COLUMNS[0], {}).get("cosine")
        minutes = results.minutes(stored[name].values())
        lines.append([ROWS[name].label, *cells, results.shown_interval(cosine), minutes])
    return results.table(head, lines)


def _cell(run: results.Run | None) -> str:
    if run is None:
        return ""
    few = "" if len(run["figures"]) == 10 else f" ({len(run['figures'])})"
    return results.spread(run["figures"], 4) + few


def main() -> None:
    parser = results.arguments(__doc__, ROWS, COLUMNS)
    parser.add_argument("--steps", type=int, default=15_000)
    options = parser.parse_args()
    results.main("chaotic", options, lambda row, column, seeds: run(row, column, seeds, options.steps), text)


if __name__ == "__main__":
    main()
