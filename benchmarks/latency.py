"""Latency of a Python loop: one sample, one update, beside a step that is written by hand for one cell.

    python -m benchmarks.latency            # a table; --samples 2000 for a shorter run, --check to fail beyond the bars

Every way takes the same samples of one minGRU, batch 1, one by one, and waits for each loss. The ways run in turns of
some samples in one process, so that noise moves them together; a figure is the median latency of a way, and the median
over turns of its ratio to the code by hand, which donates its arguments to `jax.jit` as a careful person does.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import etrax

RATE = 0.01
TURN = 100  # samples of one way before the next has its turn
BY_HAND = "by hand"
NOISE = 1.2  # a bar is missed if the ratio is above it by this factor
# What a way may take, as a multiple of the code by hand.
BARS = {
    "jit(train)": 1.15,
    "jit(train), donated": 1.15,
    "train, donated": 1.3,
    "online.feed": 1.5,
    "online.feed, donated": 1.5,
}


class Sample(NamedTuple):
    """One sample, and the same as a sequence of one step, which `train` takes."""

    x: jax.Array
    y: jax.Array
    xs: jax.Array
    ys: jax.Array


Way = Callable[[Sample], jax.Array]


class Figures(NamedTuple):
    """Microseconds of one sample, and the ratio to the code by hand."""

    p50: float
    p99: float
    ratio: float


def step(params: dict[str, jax.Array], h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A minGRU with a readout: gate and candidate read the input alone, so the traces by hand are exact."""
    gate = jax.nn.sigmoid(x @ params["gate"])
    h = (1 - gate) * h + gate * (x @ params["candidate"])
    return h, h @ params["out"]


def loss_fn(output: jax.Array, target: jax.Array) -> jax.Array:
    return ((output - target) ** 2).mean()


@partial(jax.jit, donate_argnums=(0, 1))
def by_hand(params: dict[str, jax.Array], state: tuple[jax.Array, ...], x: jax.Array, y: jax.Array) -> Any:
    """RTRL of the minGRU: each trace decays by 1 − gate and grows by the input times the slope of its gate."""
    h, of_gate, of_candidate = state
    gate, candidate = jax.nn.sigmoid(x @ params["gate"]), x @ params["candidate"]
    new = (1 - gate) * h + gate * candidate
    of_gate = (1 - gate) * of_gate + jnp.outer(x[0], (gate * (1 - gate) * (candidate - h))[0])
    of_candidate = (1 - gate) * of_candidate + jnp.outer(x[0], gate[0])
    loss, pull = jax.vjp(lambda out, h: loss_fn(h @ out, y), params["out"], new)
    to_out, to_h = pull(jnp.ones(()))
    grads = {"gate": of_gate * to_h, "candidate": of_candidate * to_h, "out": to_out}
    return {k: params[k] - RATE * grads[k] for k in params}, (new, of_gate, of_candidate), loss


def start(inputs: int, units: int) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = {"gate": (inputs, units), "candidate": (inputs, units), "out": (units, 4)}
    return {k: jnp.asarray(rng.standard_normal(s) / np.sqrt(s[0]), jnp.float32) for k, s in shapes.items()}


def ways(inputs: int, units: int) -> dict[str, Way]:
    """Every way as a function of one sample that holds its state."""
    params, x, hidden = start(inputs, units), jnp.zeros((1, inputs)), jnp.zeros((1, units))
    learner, optimizer = etrax.compile(step, "d_rtrl", x, params=params, hidden=hidden), optax.sgd(RATE)
    traces = jnp.zeros((inputs, units))
    own = jax.tree.map(jnp.copy, (params, (hidden, traces, traces)))

    def hand(sample: Sample) -> jax.Array:
        nonlocal own
        *own, loss = by_hand(*own, sample.x, sample.y)
        return loss

    def trained(train: Any) -> Way:
        held = (*jax.tree.map(jnp.copy, (params, optimizer.init(params))), learner.init())

        def feed(sample: Sample) -> jax.Array:
            nonlocal held
            *held, losses = train(*held, sample.xs, sample.ys)
            return losses

        return feed

    def shipped(update: Any) -> Way:
        held = (params, optimizer.init(params), learner.init())

        def feed(sample: Sample) -> jax.Array:
            nonlocal held
            *held, loss, _ = update(*held, sample.x, sample.y)
            return loss

        return feed

    def fed(**options: bool) -> Way:
        stream = learner.online(optimizer, loss_fn, **options)
        return lambda sample: stream.feed(sample.x, sample.y).loss

    train = learner.train(optimizer, loss_fn, window=1)
    with tempfile.TemporaryDirectory() as folder:
        learner.export(f"{folder}/update", optimizer, loss_fn)
        artifact = etrax.load(f"{folder}/update")
    return {
        BY_HAND: hand,
        "jit(train)": trained(jax.jit(train)),
        "jit(train), donated": trained(jax.jit(train, donate_argnums=(0, 1, 2))),
        "train, donated": trained(learner.train(optimizer, loss_fn, window=1, donate=True)),
        "online.feed": fed(),
        "online.feed, donated": fed(donate=True),
        "artifact": shipped(artifact),
        "jit(artifact)": shipped(jax.jit(artifact)),
    }


def measure(inputs: int, units: int, samples: int) -> dict[str, Figures]:
    """Figures of each way. Samples with an axis of time are made beforehand: making them is no part of an update."""
    rng = np.random.default_rng(1)
    xs, ys = (jnp.asarray(rng.standard_normal((64, 1, n)), jnp.float32) for n in (inputs, 4))
    data = [Sample(xs[i], ys[i], xs[i : i + 1], ys[i : i + 1]) for i in range(len(xs))]
    all_ways = ways(inputs, units)
    losses = {name: [way(sample).item() for sample in data[:20]] for name, way in all_ways.items()}  # compiled, warm
    for name, values in losses.items():
        np.testing.assert_allclose(values, losses[BY_HAND], rtol=1e-3, err_msg=name)
    nanoseconds: dict[str, list[list[int]]] = {name: [] for name in all_ways}
    for _ in range(max(samples // TURN, 1)):
        for name, way in all_ways.items():
            nanoseconds[name].append(_turn(way, data))
    middle = {name: [median(turn) for turn in turns] for name, turns in nanoseconds.items()}
    return {
        name: Figures(
            *(float(np.percentile(turns, q)) / 1e3 for q in (50, 99)),
            median(a / b for a, b in zip(middle[name], middle[BY_HAND], strict=True)),
        )
        for name, turns in nanoseconds.items()
    }


def _turn(way: Way, data: Sequence[Sample]) -> list[int]:
    out = []
    for n in range(TURN):
        sample = data[n % len(data)]
        began = perf_counter_ns()
        way(sample).block_until_ready()
        out.append(perf_counter_ns() - began)
    return out


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--sizes", nargs="*", default=["16x8", "64x32"], help="inputs x units")
    parser.add_argument("--check", action="store_true", help="fail if a ratio is a fifth above its bar")
    options = parser.parse_args(given)
    missed = 0
    for size in options.sizes:
        print(f"minGRU {size}, batch 1, an update a sample: microseconds")
        for name, figures in measure(*map(int, size.split("x")), options.samples).items():
            bar = BARS.get(name)
            missed += bar is not None and figures.ratio > bar * NOISE
            against = "" if bar is None else f"  bar {bar}"
            print(f"  {name:22} p50 {figures.p50:7.1f}  p99 {figures.p99:7.1f}  ratio {figures.ratio:5.2f}{against}")
    return int(options.check and missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
