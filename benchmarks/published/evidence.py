"""Accumulation of evidence at full size, by spiking neurons: iterations until a rule has learned it.

    python -m benchmarks.published.evidence                       all rows; writes benchmarks/results/evidence.json
    python -m benchmarks.published.evidence --rows random tbptt1  some rows
    python -m benchmarks.published.evidence --page                the table in docs/learning.md, from the stored results

Settings of the published task (Bellec et al., 2020, and the tutorials made of it; fixed before any figure of ours was
seen): `etrax.tasks.evidence` with its defaults, 2,250 steps; 50 LIF and 50 ALIF neurons, two leaky outputs; τ_m =
τ_out = 20 steps, threshold 0.6, soft reset without a derivative, four silent steps after a spike, τ_a = 2,000, β = 1.7
(1 − e^(−1/2000)) / (1 − e^(−1/20)); pseudo-derivative 0.3 max(0, 1 − |v − A|/0.6)/0.6. Input weights N/√40, recurrent
ones N/√100 without a diagonal, readout uniform (Glorot) without a bias, feedback N(0, 1). The mean cross-entropy of the
last 150 steps and Σ_j (rate_j − 0.01)², rates being those of the batch; Adam 5e-3, batches of 64, a fresh batch for
each iteration.

The figure is the number of iterations until eight batches that are not learned from have a mean error below 7 per cent,
looked at every 20 iterations. An answer is the side with the larger mean output over the last 150 steps.

The leak of the outputs stands before their weights, s' = κ s + (1 − κ) z and o = s W, as in the source's code. Feedback
is then that of e-prop's filtered eligibility. Random feedback in Etrax is N(0, 1)/√100: the cross-entropy counts
tenfold in that row, which makes it N(0, 1), and changes nothing for the readout under Adam. What a spike costs meets
the spike's own eligibility in all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from benchmarks.learning_models import spike
from benchmarks.published import results

import etrax
from etrax import tasks

UNITS, ADAPTIVE, BATCH, RATE, REST = 100, 50, 64, 0.01, 5
THRESHOLD, LEAK, SLOW = 0.6, float(np.exp(-1 / 20)), float(np.exp(-1 / 2000))
BETA = 1.7 * (1 - SLOW) / (1 - LEAK)
ITERATIONS, CHECK, VALIDATION, CRITERION = 2000, 20, 8, 0.07


def start(seed: int) -> dict[str, jax.Array]:
    rng, edge = np.random.default_rng(seed), (6 / (UNITS + 2)) ** 0.5
    params = {
        "in": rng.standard_normal((40, UNITS)) / 40**0.5,
        "rec": rng.standard_normal((UNITS, UNITS)) / UNITS**0.5,
        "out": rng.uniform(-edge, edge, (UNITS, 2)),
    }
    return {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}


def hidden(batch: int) -> dict[str, jax.Array]:
    zeros = {name: jnp.zeros((batch, UNITS), jnp.float32) for name in "vazs"}
    return zeros | {"resting": jnp.zeros((batch, UNITS), jnp.int32)}


def step(p: dict, h: dict, x: jax.Array) -> tuple[dict, tuple[jax.Array, jax.Array]]:
    betas = jnp.where(jnp.arange(UNITS) < UNITS - ADAPTIVE, 0, BETA).astype(jnp.float32)
    recurrent = p["rec"] * (1 - jnp.eye(UNITS, dtype=jnp.float32))
    v = LEAK * h["v"] + x @ p["in"] + h["z"] @ recurrent - THRESHOLD * jax.lax.stop_gradient(h["z"])
    a = SLOW * h["a"] + h["z"]
    z = jnp.where(h["resting"] > 0, 0, spike((v - THRESHOLD - betas * a) / THRESHOLD))
    resting = jnp.clip(h["resting"] + REST * z.astype(jnp.int32) - 1, 0, REST)
    s = LEAK * h["s"] + (1 - LEAK) * z
    return {"v": v, "a": a, "z": z, "s": s, "resting": resting}, (s @ p["out"], z)


class Target(NamedTuple):
    """The label, the weight of the cross-entropy, and what a spike of each unit costs."""

    label: jax.Array
    asked: jax.Array
    cost: jax.Array


def loss_fn(output: tuple[jax.Array, jax.Array], target: Target) -> jax.Array:
    logits, z = output
    entropy = optax.softmax_cross_entropy_with_integer_labels(logits, target.label).mean()
    return target.asked * entropy + (z.mean(0) * target.cost).sum()


class Row(NamedTuple):
    label: str
    rule: Callable[[int], etrax.Rule]
    window: int
    weight: float = 1.0


ROWS = {
    "random": Row("`e_prop`, random feedback", lambda seed: etrax.e_prop(feedback="random", key=seed), 50, UNITS**0.5),
    "symmetric": Row("`e_prop`, symmetric feedback", lambda seed: etrax.e_prop(), 50),
    "d_rtrl": Row("`d_rtrl`", lambda seed: etrax.d_rtrl(), 50),
    "pp_prop": Row("`pp_prop(0.99)`", lambda seed: etrax.pp_prop(0.99), 50),
    "pp_slow": Row("`pp_prop(0.9995)`, the leak of thresholds", lambda seed: etrax.pp_prop(0.9995), 50),
    "tbptt1": Row("`tbptt`, window 1", lambda seed: etrax.tbptt(), 1),
    "tbptt50": Row("`tbptt`, window 50", lambda seed: etrax.tbptt(), 50),
    "bptt": Row("BPTT (`tbptt`, window 2,250)", lambda seed: etrax.tbptt(), 2250),
}


def prepared(row: Row, seed: int, batch: int, sizes: dict) -> tuple[Callable, Callable, Callable]:
    """The update, the answers to a batch, and the meter of a row."""
    example = tasks.evidence(0, 1, **sizes)
    recall = float(example.mask.sum())
    learner = etrax.compile(
        step, row.rule(seed), jnp.zeros((batch, 40), jnp.float32), params=start(seed), hidden=hidden(batch)
    )
    gradient = learner.value_and_grad(loss_fn, row.window, "sum")
    adam = optax.adam(5e-3)
    asked = jnp.asarray(row.weight * example.mask[:, 0] / recall, jnp.float32)

    def forward(params: dict, xs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Rates of all units, and the answers."""

        def body(carry: Any, x: Any) -> tuple[Any, None]:
            h, spikes, answers = carry
            h, (logits, z) = step(params, h, x[0])
            return (h, spikes + z.mean(0), answers + x[1] * logits), None

        begin = hidden(batch), jnp.zeros(UNITS), jnp.zeros((batch, 2))
        (_, spikes, answers), _ = jax.lax.scan(body, begin, (xs, asked))
        return spikes / len(xs), answers.argmax(-1)

    def targets(params: dict, xs: jax.Array, labels: jax.Array) -> Target:
        rates, _ = forward(params, xs)
        cost = 2 * (rates - RATE) / len(xs)  # the derivative of Σ (rate − target)² by a spike
        return Target(jnp.broadcast_to(labels, (len(xs), batch)), asked, jnp.broadcast_to(cost, (len(xs), UNITS)))

    @jax.jit
    def update(params: Any, opt_state: Any, xs: jax.Array, labels: jax.Array) -> tuple[Any, Any, jax.Array]:
        xs = xs.astype(jnp.float32)
        (loss, grads), _ = gradient(params, learner.init(params), xs, targets(params, xs, labels))
        updates, opt_state = adam.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    def measure(params: dict, xs: jax.Array, labels: jax.Array) -> list[float]:
        xs = xs.astype(jnp.float32)
        meter = learner.meter(loss_fn, row.window, probes=8)
        reading = meter.measure(
            params, learner.init(params), xs, jax.jit(targets)(params, xs, labels), key=jax.random.key(seed)
        )
        return results.interval(reading)

    answers = jax.jit(lambda params, xs: forward(params, xs.astype(jnp.float32))[1])
    return update, answers, measure


def drawn(key: int, batch: int, sizes: dict) -> tuple[np.ndarray, np.ndarray]:
    """Spikes and labels of one batch, in bytes."""
    task = tasks.evidence(key, batch, **sizes)
    return task.inputs.astype(np.uint8), task.targets[0]


def learn(row: Row, seed: int, iterations: int, batch: int = BATCH, sizes: dict | None = None) -> results.Run:
    """One training, to the criterion or to the end; cosines at its beginning and its end."""
    sizes = sizes or {}
    update, answers, measure = prepared(row, seed, batch, sizes)
    validation = [drawn(10_000_000 + 100 * seed + n, batch, sizes) for n in range(VALIDATION)]
    params, opt_state, errors, reached = start(seed), optax.adam(5e-3).init(start(seed)), [], None
    before = measure(params, *validation[0])
    for n in range(1, iterations + 1):
        params, opt_state, _ = update(params, opt_state, *drawn(100_000 * seed + n, batch, sizes))
        if n % CHECK == 0 or n == iterations:
            wrong = [np.mean(np.asarray(answers(params, xs)) != labels) for xs, labels in validation]
            errors.append([n, round(float(np.mean(wrong)), 4)])
            print(row.label, seed, *errors[-1], flush=True)
            if errors[-1][1] < CRITERION:
                reached = n
                break
    after = measure(params, *validation[0])
    return {
        "reached": reached,
        "iterations": errors[-1][0],
        "errors": errors,
        "cosine": {"start": before, "end": after},
    }


def one_row(row: Row, seeds: list[int], iterations: int) -> results.Run:
    runs = [learn(row, seed, iterations) for seed in seeds]
    return {key: [run[key] for run in runs] for key in runs[0]}


def text(stored: results.Stored) -> str:
    """Iterations to the criterion, seed by seed; errors at the end where it was not reached."""
    lines = [["*random-feedback e-prop, published*", "about 200–500", "", "", "", ""]]
    for name, row in ((name, ROWS[name]) for name in ROWS if name in stored):
        run = stored[name]["evidence"]
        pairs = zip(run["reached"], run["iterations"], strict=True)
        reached = [str(at) if at else f"not in {iterations}" for at, iterations in pairs]
        least = [f"{100 * min(error for _, error in errors):.1f}" for errors in run["errors"]]
        cosines = [results.shown_interval(run["cosine"][0][when]) for when in ("start", "end")]
        lines.append([row.label, ", ".join(reached), ", ".join(least), *cosines, results.minutes([run])])
    head = ["", "iterations to an error below 7 %", "least error, %", "cosine at the start", "at the end", "minutes"]
    return results.table(head, lines)


def main() -> None:
    parser = results.arguments(__doc__, ROWS, ["evidence"])
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    options = parser.parse_args()
    results.main("evidence", options, lambda row, _, seeds: one_row(ROWS[row], seeds, options.iterations), text)


if __name__ == "__main__":
    main()
