"""What a run tells: a record per epoch, the result, and the two ways in which it can break off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..compiler.ir import PyTree
from ..learn import NonFiniteError


@dataclass(frozen=True)
class Epoch:
    """One finished epoch. `metrics` holds `loss` (training), then `val_loss` and `val_<name>` if there is validation,
    or `<name>` on the training data if there is none.

    `step` counts batches since the first epoch, `seconds` is the whole epoch, `samples_per_second` training alone.
    `params` are the parameters at its end in what a callback sees, and None in the history, which would otherwise hold
    those of every epoch.

    >>> from etrax.train import Epoch
    >>> Epoch(epoch=1, step=5, metrics={"loss": 0.5}, seconds=1.0, samples_per_second=10.0).metrics["loss"]
    0.5
    """

    epoch: int
    step: int
    metrics: Mapping[str, float]
    seconds: float
    samples_per_second: float
    params: PyTree = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Result:
    """What `Trainer.fit` returns.

    `params` are those of the best epoch (`best`, by `monitor`), or the last ones if nothing is monitored;
    `last_params` and `opt_state` are the last ones in any case. `reason` is why the run ended: 'epochs', 'patience',
    'callback', 'interrupted', 'diverged' or 'unsaved'.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> import numpy as np, optax
    >>> data = etrax.train.Dataset(np.ones((6, 8, 3), np.float32), np.zeros((6, 8, 4), np.float32))
    >>> batch = etrax.compile(step, "d_rtrl", jnp.ones((4, 3)), params=jnp.ones((3, 4)), hidden=jnp.zeros((4, 4)))
    >>> trainer = etrax.Trainer(batch, optax.sgd(0.1), lambda o, y: ((o - y) ** 2).mean(), window=3)
    >>> len(trainer.fit(data, 2, progress=False).history)
    2
    """

    params: PyTree = field(repr=False)
    last_params: PyTree = field(repr=False)
    opt_state: PyTree = field(repr=False)
    history: tuple[Epoch, ...]
    best: int | None
    reason: str


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during `Trainer.fit`. `result` holds the finished epochs and the parameters after the last batch.

    >>> from etrax.train import Interrupted
    >>> issubclass(Interrupted, KeyboardInterrupt)
    True
    """

    def __init__(self, message: str, result: Result):
        super().__init__(message)
        self.result = result


class Diverged(NonFiniteError):
    """A loss that is not finite, or a parameter that is NaN. `result` holds the parameters before that batch."""

    def __init__(self, message: str, result: Result, epoch: int, batch: int):
        super().__init__(message)
        self.result, self.epoch, self.batch = result, epoch, batch
