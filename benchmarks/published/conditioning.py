"""Trace conditioning: the return is predicted online, long after the stimulus that announces it.

    python -m benchmarks.published.conditioning                            into benchmarks/results/conditioning.json
    python -m benchmarks.published.conditioning --columns 20               one interval
    python -m benchmarks.published.conditioning --page                     the table in docs/learning.md

Settings of the published table (Farr et al., 2026; fixed before any figure of ours was seen): a stimulus of 4 steps,
the reward of 2 steps an interval of 10, 20, 40 or 80 steps later (give or take a third), then a pause of 80 to 120
steps; γ 0.9, 0.95, 0.975 and 0.9875; TD(λ) with ObGD, α 1 and κ 2; an RTU of 192 units under an MLP of 64 with one
value; 2,000,000 steps in one scan. The figure is the mean squared difference of the prediction and the return that
followed, over the last tenth of the steps. The source's way of averaging could not be verified; `constant` is what the
mean return would reach. The effective step size is ‖update‖ / ‖δ z‖, the mean over the last tenth.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.published import results

import etrax
from etrax import rl
from etrax.nn.pure import RTUCell

UNITS, WIDTH, STEPS = 192, 64, 2_000_000
DISCOUNTS = {"10": 0.9, "20": 0.95, "40": 0.975, "80": 0.9875}
STIMULUS, REWARD, PAUSE, MEASURED = 4, 2, (80, 120), 2000


def stream(rng: np.random.Generator, interval: int, steps: int) -> np.ndarray:
    """Stimulus and reward at every step, (steps, 2)."""
    shown, start = np.zeros((steps, 2), np.float32), 0
    while start < steps:
        wait = int(rng.integers(interval - interval // 3, interval + interval // 3 + 1))
        shown[start : start + STIMULUS, 0] = 1
        shown[start + wait : start + wait + REWARD, 1] = 1
        start += wait + REWARD + int(rng.integers(PAUSE[0], PAUSE[1] + 1))
    return shown


def returns(rewards: np.ndarray, discount: float) -> np.ndarray:
    """G_t = r_{t+1} + γ G_{t+1}."""
    out, after = np.zeros(len(rewards)), 0.0
    for t in range(len(rewards) - 2, -1, -1):
        after = rewards[t + 1] + discount * after
        out[t] = after
    return out


CELL = RTUCell(2, UNITS)


def step(p: dict, h: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    h, y = CELL.step(p["cell"], h, x)
    return h, jax.nn.leaky_relu(y @ p["w"] + p["b"]) @ p["out"]


def start(key: jax.Array) -> dict:
    one, two, three = jax.random.split(key, 3)
    n = 2 * UNITS
    return {
        "cell": CELL.init(one), "w": jax.random.normal(two, (n, WIDTH)) / n**0.5, "b": jnp.zeros(WIDTH),
        "out": jax.random.normal(three, (WIDTH,)) / WIDTH**0.5,
    }  # fmt: skip


class Row(NamedTuple):
    label: str
    rule: etrax.Rule
    decay: float


ROWS = {
    "exact .9": Row("`d_rtrl` (exact), λ .9", etrax.d_rtrl(), 0.9),
    "exact .95": Row("`d_rtrl` (exact), λ .95", etrax.d_rtrl(), 0.95),
    "tbptt1 .9": Row("`tbptt`, window 1, λ .9", etrax.tbptt(), 0.9),
    "tbptt1 1": Row("`tbptt`, window 1, λ 1", etrax.tbptt(), 1.0),
}


def run(name: str, column: str, seeds: list[int], steps: int = STEPS) -> results.Run:
    row, discount = ROWS[name], DISCOUNTS[column]
    learner = etrax.compile(step, row.rule, jnp.zeros(2), params=start(jax.random.key(0)), hidden=CELL.hidden())
    value = rl.eligibility(learner, lambda output, _: output, decay=discount * row.decay)
    step_size: Any = rl.obgd(1.0, 2.0)

    def live(carry: tuple, shown: tuple[jax.Array, jax.Array]) -> tuple[tuple, tuple]:
        (params, credit, opt_state), (x, after) = carry, shown
        credit, now = value.step(params, credit, x)
        error = after[1] + discount * learner.plain_step(params, credit.state.hidden, after)[1] - now
        updates, opt_state = step_size.update(credit.trace, opt_state, params, error=error)
        params = jax.tree.map(jnp.add, params, updates)
        return (params, credit, opt_state), (now, opt_state.step_size)

    @jax.jit
    @partial(jax.vmap, in_axes=(0, 0))
    def life(key: jax.Array, shown: jax.Array) -> tuple[tuple, tuple]:
        params = start(key)
        carry = params, value.init(params), step_size.init(params)
        return jax.lax.scan(live, carry, (shown[:-1], shown[1:]))

    shown = np.stack([stream(np.random.default_rng(seed), int(column), steps + 1) for seed in seeds])
    (params, credit, _), (values, sizes) = life(
        jnp.stack([jax.random.key(s) for s in seeds]), jnp.asarray(shown, float)
    )
    last = max(steps // 10, 1)
    # What comes after the end of the stream is not known: the last returns are left out.
    known = slice(steps - last, steps - min(int(10 / (1 - discount)), last // 2))
    goals = np.stack([returns(s[:, 1], discount) for s in shown])[:, known]
    errors = np.mean((np.asarray(values)[:, known] - goals) ** 2, 1)
    first = jax.tree.map(lambda a: a[0], (params, credit.state.hidden))
    xs = jnp.asarray(shown[0, -MEASURED:], float)
    ys = jnp.asarray(returns(shown[0, :, 1], discount)[-len(xs) :], float)
    meter = learner.meter(lambda v, g: (v - g) ** 2, 1, probes=16)
    reading = meter.measure(first[0], learner.init(*first), xs, ys, key=jax.random.key(seeds[0]))
    return {
        "errors": [float(e) for e in errors], "constant": float(goals.var()), "steps": steps,
        "step_size": float(np.asarray(sizes)[:, -last:].mean()), "cosine": results.interval(reading),
    }  # fmt: skip


PUBLISHED = {
    "exact RTRL, λ .9": ("", ".036", ".090", ""),
    "exact RTRL, λ .95": ("", ".032", ".059", ""),
    "one-step gradient, λ .9": ("", ".18", "", ""),
    "one-step gradient, λ 1": ("", ".07", "", ""),
}


def text(stored: results.Stored) -> str:
    lines = [[f"*{name}, published*", *cells, "", "", "", ""] for name, cells in PUBLISHED.items()]
    runs = [run for row in stored.values() for run in row.values()]
    constants = {column: row[column]["constant"] for row in stored.values() for column in row}
    cells = [results.spread([constants[c]], 3) if c in constants else "" for c in DISCOUNTS]
    lines.append(["*the mean return*", *cells, "", "", "", ""])
    for name in (name for name in ROWS if name in stored):
        runs = [stored[name].get(column) for column in DISCOUNTS]
        cells = [results.spread(run["errors"], 3) if run else "" for run in runs]
        some = [run for run in runs if run]
        sizes = ", ".join(f"{run['step_size']:.1e}" for run in some)
        counts = ", ".join(sorted({f"{len(run['seeds'])} × {run['steps']:,}" for run in some}))
        cosine = results.shown_interval(some[0]["cosine"])
        lines.append([ROWS[name].label, *cells, cosine, sizes, counts, results.minutes(some)])
    head = ["", *(f"interval {c}" for c in DISCOUNTS), "cosine", "effective step size", "seeds × steps", "minutes"]
    return results.table(head, lines)


def main() -> None:
    parser = results.arguments(__doc__, ROWS, DISCOUNTS)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    results.main("conditioning", options, lambda row, column, seeds: run(row, column, seeds, options.steps), text)


if __name__ == "__main__":
    main()
