"""Layers of linear recurrent units and their training on batches of sequences, for two of the tables.

h' = λ h + γ (B x + b)        y = Re(C h)        λ = exp(−e^ν + i e^θ)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from benchmarks.published import results

import etrax

RECURRENT = ("nu", "theta", "gamma", "B_re", "B_im", "b_re", "b_im")


def glorot(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return rng.standard_normal((rows, columns)) * (2 / (rows + columns)) ** 0.5


def lecun(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return rng.standard_normal((rows, columns)) / rows**0.5


def new_lru(rng: np.random.Generator, inputs: int, hidden: int, outputs: int, r_min: float, phase: float) -> dict:
    """|λ| between `r_min` and 1, uniform in area; γ starts as √(1 − |λ|²)."""
    square = rng.uniform(r_min**2, 1 - 1e-6, hidden)
    return {
        "nu": np.log(-0.5 * np.log(square)), "theta": np.log(phase * rng.uniform(1e-6, 1, hidden)),
        "gamma": 0.5 * np.log1p(-square),
        "B_re": glorot(rng, inputs, hidden) / 2**0.5, "B_im": glorot(rng, inputs, hidden) / 2**0.5,
        "b_re": np.zeros(hidden), "b_im": np.zeros(hidden),
        "C_re": glorot(rng, hidden, outputs) / 2**0.5, "C_im": glorot(rng, hidden, outputs) / 2**0.5,
    }  # fmt: skip


def lru(p: dict, h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    decay, scale = jnp.exp(jax.lax.complex(-jnp.exp(p["nu"]), jnp.exp(p["theta"]))), jnp.exp(p["gamma"])
    driven = jax.lax.complex(scale * (x @ p["B_re"] + p["b_re"]), scale * (x @ p["B_im"] + p["b_im"]))
    h = decay * h + driven
    return h, h.real @ p["C_re"] - h.imag @ p["C_im"]


def norm(p: dict, x: jax.Array) -> jax.Array:
    middle = x - x.mean(-1, keepdims=True)
    return p["scale"] * middle / jnp.sqrt((middle**2).mean(-1, keepdims=True) + 1e-6) + p["shift"]


def new_norm(width: int) -> dict:
    return {"scale": np.ones(width), "shift": np.zeros(width)}


def single(tree: Any) -> Any:
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), tree)


class Problem(NamedTuple):
    """`start(seed)` gives parameters, `hidden(batch)` states, `figure(params, test)` what the table shows of a run."""

    start: Callable[[int], Any]
    hidden: Callable[[int], Any]
    step: Callable[[Any, Any, jax.Array], tuple[Any, jax.Array]]
    loss_fn: Callable[[jax.Array, jax.Array], jax.Array]
    optimizer: Callable[[int], optax.GradientTransformation]
    batch: int


def adamw(rate: float, factor: float, decay: float, undecayed: Iterable[str]) -> Callable[[int], Any]:
    """AdamW with a cosine schedule and gradients clipped at 1; recurrent parameters learn `factor` times as fast."""
    names = frozenset(undecayed)

    def make(updates: int) -> optax.GradientTransformation:
        def of(scale: float, weight_decay: float) -> optax.GradientTransformation:
            return optax.adamw(optax.cosine_decay_schedule(scale * rate, updates), weight_decay=weight_decay)

        kinds: dict[Any, optax.GradientTransformation] = {
            "recurrent, decays": of(factor, decay), "recurrent, stays": of(factor, 0),
            "other, decays": of(1, decay), "other, stays": of(1, 0),
        }  # fmt: skip

        def labels(params: Any) -> Any:
            def kind(path: tuple, _: Any) -> str:
                name = path[-1].key
                return f"{'recurrent' if name in RECURRENT else 'other'}, {'stays' if name in names else 'decays'}"

            return jax.tree_util.tree_map_with_path(kind, params)

        return optax.chain(optax.clip_by_global_norm(1.0), optax.multi_transform(kinds, labels))

    return make


def prepared(problem: Problem, rule: etrax.Rule, window: int, example: np.ndarray, seed: int) -> etrax.Learner:
    params, hidden = problem.start(seed), problem.hidden(problem.batch)
    return etrax.compile(problem.step, rule, jnp.asarray(example[0]), params=params, hidden=hidden)


def train(
    problem: Problem, rule: etrax.Rule, window: int, seed: int, updates: int,
    draw: Callable[[np.random.Generator, int], tuple[np.ndarray, ...]],
) -> tuple[Any, dict[str, list[float]]]:  # fmt: skip
    """Parameters after learning, and the cosine's interval at the beginning and at the end, on one batch."""
    rng = np.random.default_rng(1000 + seed)
    measured = draw(np.random.default_rng(10_000 + seed), problem.batch)
    learner = prepared(problem, rule, window, measured[0], seed)
    gradient, optimizer = learner.value_and_grad(problem.loss_fn, window), problem.optimizer(updates)
    meter = learner.meter(problem.loss_fn, window, probes=4)

    def cosine(params: Any) -> list[float]:
        data = [jnp.asarray(a) for a in measured]
        return results.interval(meter.measure(params, learner.init(params), *data, key=jax.random.key(seed)))

    @jax.jit
    def update(params: Any, opt_state: Any, *data: jax.Array) -> tuple[Any, Any, jax.Array]:
        (loss, grads), _ = gradient(params, learner.init(params), *data)
        changes, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, changes), opt_state, loss

    params = problem.start(seed)
    opt_state, cosines = optimizer.init(params), {"start": cosine(params)}
    for n in range(updates):
        params, opt_state, loss = update(params, opt_state, *draw(rng, problem.batch))
        if (n + 1) % 100 == 0:
            print(rule, window, seed, n + 1, float(loss), flush=True)
    return params, cosines | {"end": cosine(params)}


def outputs(problem: Problem) -> Callable[[Any, jax.Array], jax.Array]:
    """Outputs of a batch of sequences."""

    @jax.jit
    def run(params: Any, xs: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda h, x: problem.step(params, h, x), problem.hidden(xs.shape[1]), xs)[1]

    return run
