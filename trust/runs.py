"""A small training run with checkpoints, and what it must have reached after each epoch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import etrax
from etrax.train import Dataset, Epoch, Result, Trainer
from etrax.train._checkpoint import Saver

INPUTS, UNITS, STEPS, SAMPLES, BATCH = 3, 32, 4, 6, 3


def _step(params: Any, h: Any, x: Any) -> tuple[Any, Any]:
    h = jax.nn.sigmoid(params["leak"]) * h + jnp.tanh(x @ params["w"])
    return h, h @ params["out"]


def _loss(output: Any, target: Any) -> Any:
    return jnp.mean((output - target) ** 2)


def make_trainer() -> Trainer:
    rng, shapes = np.random.default_rng(0), {"w": (INPUTS, UNITS), "leak": (UNITS,), "out": (UNITS, 2)}
    params = {name: jnp.asarray(rng.standard_normal(shape, np.float32)) for name, shape in shapes.items()}
    example, hidden = jnp.zeros((BATCH, INPUTS)), jnp.zeros((BATCH, UNITS))
    learner = etrax.compile(_step, "d_rtrl", example, params=params, hidden=hidden)
    return Trainer(learner, optax.adam(0.01), _loss, window=2)


def fit(trainer: Trainer, seed: int, epochs: int, directory: Path | None = None, callback: Any = None) -> Result:
    rng = np.random.default_rng(seed)
    data = Dataset(
        rng.standard_normal((STEPS, SAMPLES, INPUTS), np.float32), rng.standard_normal((STEPS, SAMPLES, 2), np.float32)
    )
    return trainer.fit(data, epochs, key=seed, checkpoint=directory, callback=callback, progress=False)


def bits(tree: Any) -> str:
    """A digest of every bit of a tree of arrays."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        found.update(np.asarray(leaf).tobytes())
    return found.hexdigest()


class Truth(NamedTuple):
    """An uninterrupted run: the bits of the parameters after each epoch, and those of all it ends with."""

    after: dict[str, str]
    end: str


def end_of(result: Result) -> str:
    losses = [e.metrics["loss"] for e in result.history]
    return bits((result.params, result.opt_state, np.asarray(losses)))


def truth(trainer: Trainer, seed: int, epochs: int) -> Truth:
    after = {}

    def note(epoch: Epoch) -> None:
        after[str(epoch.epoch)] = bits(epoch.params)

    return Truth(after, end_of(fit(trainer, seed, epochs, callback=note)))


def plain_truth(seed: int, epochs: int) -> list[object]:
    """The same as JSON can hold it, from a trainer of its own."""
    return list(truth(make_trainer(), seed, epochs))


def told(say: Any) -> None:
    """From now on every load and save in this process is told: `say("loaded", epoch, bits)`, `say("saving", epoch)`."""
    load, save = Saver.load, Saver.save

    def telling_load(self: Saver, like: Any) -> Any:
        point = load(self, like)
        say("loaded", 0 if point is None else len(point.history), "" if point is None else bits(point.live.params))
        return point

    def telling_save(self: Saver, point: Any) -> None:
        say("saving", len(point.history), "")
        save(self, point)
        say("saved", len(point.history), "")

    Saver.load, Saver.save = telling_load, telling_save
