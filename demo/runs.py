"""The four runs: the same network, data, order of samples, optimizer and epochs. Gradients and updates differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import etrax

from . import model
from .data import Digits

# The headline first, then what it is measured against. BPTT is no rule: it is `jax.grad` through the whole sequence.
METHODS = ("d_rtrl", "bptt", "pp_prop", "tbptt")


@dataclass(frozen=True)
class Settings:
    """What makes a run. `window` is K: a gradient looks back on so many steps, and an update follows."""

    neurons: int = 100
    batch: int = 32
    window: int = 10
    epochs: int = 10
    rate: float = 5e-3


@dataclass(frozen=True)
class Method:
    """A way to a gradient: a learner, and whether BPTT takes the place of its rule."""

    name: str
    learner: etrax.Learner
    trainer: etrax.train.Trainer
    is_bptt: bool

    @property
    def label(self) -> str:
        return "BPTT" if self.is_bptt else self.name


def loss(output: jax.Array, target: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(output, target).mean()


def method(name: str, settings: Settings, digits: Digits) -> Method:
    """Compile the model under a rule, and make its trainer."""
    is_bptt = name == "bptt"
    learner = etrax.compile(
        model.step, "d_rtrl" if is_bptt else name, jnp.zeros((settings.batch, digits.channels), jnp.float32),
        params=model.weights(jax.random.key(0), digits.channels, settings.neurons, digits.classes),
        hidden=model.silence(settings.batch, settings.neurons),
    )  # fmt: skip
    how: dict[str, Any] = {"update": "window"}
    if is_bptt:
        how = {"update": "sequence", "gradient": etrax.testing.bptt}
    adam = optax.adam(optax.cosine_decay_schedule(settings.rate, updates(settings, digits, how["update"])))
    metrics = {"accuracy": etrax.train.accuracy}
    trainer = etrax.Trainer(learner, adam, loss, window=settings.window, metrics=metrics, **how)
    return Method(name, learner, trainer, is_bptt)


def updates(settings: Settings, digits: Digits, update: str) -> int:
    """How many updates a run makes: the learning rate falls to zero over them, so that the last epoch is fair to judge.

    Online there is one after each window in which a word of the batch ends, as p_w of all words do in window w:

        batches · Σ_w 1 − (1 − p_w)^B        on average, over batches of B drawn at random
    """
    batches = settings.epochs * -(-digits.train.inputs.shape[1] // settings.batch)
    if update == "sequence":
        return batches
    ends = np.argmax(digits.train.mask, axis=0) // settings.window
    share = np.bincount(ends) / len(ends)
    return round(batches * float(np.sum(1 - (1 - share) ** settings.batch)))


def fit(method: Method, settings: Settings, digits: Digits, directory: Path) -> etrax.train.Result:
    """Train, or go on from where an interrupted run was.

    No epoch is chosen by what is held out: the last one counts, whatever came before it.
    """
    return method.trainer.fit(
        digits.train, settings.epochs, validation=digits.test, monitor="loss", checkpoint=directory / method.name
    )


def first_batch(settings: Settings, data: etrax.train.Dataset) -> tuple[Any, Any, Any]:
    """As many samples as a batch holds: inputs, targets and mask."""
    chosen = np.arange(settings.batch) % data.inputs.shape[1]
    return data.inputs[:, chosen], data.targets[:, chosen], data.mask[:, chosen]
