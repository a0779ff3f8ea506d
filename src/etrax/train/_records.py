"""What a run returns: a record for each epoch, the result, and the errors that end it early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .._errors import ArgumentError
from ..compiler.ir import PyTree
from ..learn import NonFiniteError


@dataclass(frozen=True)
class Epoch:
    """One finished epoch. `metrics` holds `loss` (training), then `val_loss` and `val_<name>` if there is validation,
    or `<name>` on the training data if there is none.

    `step` counts batches since the first epoch. `updates` counts changes of the parameters by the optimizer, which is
    what a schedule of optax counts: one for each window in which some target counts, or one for each batch under
    `update="sequence"`. `samples` counts sequences. `seconds` is the whole epoch, `samples_per_second` training alone.
    A callback finds the parameters at the end of the epoch in `params`; in the history it is None, to save memory.
    `cosines` has what a trainer's meter measured at the end of the epoch: by the name of a parameter, and for all
    together, the cosine of the rule's gradient with the true one and the ends of its interval.

    >>> from etrax.train import Epoch
    >>> Epoch(epoch=1, step=5, metrics={"loss": 0.5}, seconds=1.0, samples_per_second=10.0).metrics["loss"]
    0.5
    """

    epoch: int
    step: int
    metrics: Mapping[str, float]
    seconds: float
    samples_per_second: float
    updates: int = 0
    samples: int = 0
    params: PyTree = field(default=None, repr=False, compare=False)
    cosines: Mapping[str, tuple[float, float, float]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Result:
    """What `Trainer.fit` returns.

    `params` are those of the best epoch (`best`, by `monitor`), or the last ones if nothing is monitored;
    `last_params` and `opt_state` are the last ones in any case. `reason` is why the run ended: 'epochs', 'patience',
    'callback', 'interrupted', 'diverged', 'data' or 'unsaved'.

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

    def __repr__(self) -> str:
        """Short: how many epochs, why it ended, and the figures of the epoch that counts."""
        if not self.history:
            return f"Result(no epochs, ended by {self.reason!r})"
        record = self.history[-1 if self.best is None else self.best - 1]
        which = "last epoch:" if self.best is None else f"best epoch {self.best}:"
        figures = ", ".join(f"{name} {value:.4g}" for name, value in record.metrics.items())
        count = f"{len(self.history)} epoch{'s' * (len(self.history) != 1)}"
        return f"Result({count}, ended by {self.reason!r}; {which} {figures})"


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


class DataError(ArgumentError):
    """An iterable of batches that ended early, raised, or gave something else. `result` holds the parameters before.

    `result` is None where it happened outside of an epoch: at the first batch, or while evaluating.
    """

    result: Result | None = None
