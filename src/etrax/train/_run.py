"""One run: epoch after epoch, from a point that may come from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import NamedTuple

import jax
import numpy as np

from .._arguments import check_whole, short
from .._errors import ArgumentError
from ..learn import Learner, NonFiniteError
from ._batch import Live, Updated
from ._checkpoint import Point, Saver
from ._data import Batches, shuffled
from ._progress import Silent
from ._records import Diverged, Epoch, Interrupted, Result
from ._stored import CheckpointError


class Monitor(NamedTuple):
    """What the best epoch is chosen by (None: nothing is), and how many epochs without a better one are waited for."""

    name: str | None
    mode: str
    patience: int | None

    @classmethod
    def of(cls, name: str | None, mode: str | None, patience: int | None, metrics: Sequence[str]) -> Monitor:
        """Checked against the names of a record's metrics; `val_loss` by default, where there is one."""
        if patience is not None:
            patience = check_whole("patience", patience, "epochs")
        if mode is not None and (not isinstance(mode, str) or mode not in ("min", "max")):
            raise ArgumentError(f"`mode` is {short(mode)}; expected 'min' or 'max'.")
        if name is not None and (not isinstance(name, str) or name not in metrics):
            raise ArgumentError(f"`monitor` is {short(name)}; this run measures {', '.join(metrics)}.")
        if name is None and "val_loss" in metrics:
            name = "val_loss"
        if name is None and patience is not None:
            raise ArgumentError("`patience` needs something to watch: pass `validation=`, or `monitor='loss'`.")
        return cls(name, mode or ("min" if name is None or name.endswith("loss") else "max"), patience)

    def value(self, epoch: Epoch) -> float:
        """Less is better."""
        value = epoch.metrics[self.name or "loss"]
        return value if self.mode == "min" else -value


@dataclass
class Run:
    """Holds the last consistent `point` and, within an epoch, the parameters after the last batch (`live`).

    `update` and `measure` are the trainer's; without a `key` samples keep their order. The first batch compiles, so it
    is left out of the time that is left.
    """

    learner: Learner
    update: Callable[..., Updated]
    measure: Callable[[object, Batches], dict[str, float]]
    data: Batches
    validation: Batches | None
    key: jax.Array | None
    monitor: Monitor
    train_metrics: bool
    callback: Callable[[Epoch], object] | None
    saver: Saver | None
    point: Point
    live: Live = field(init=False)
    compiling: float | None = None  # seconds of the first batch, during the first epoch

    def __post_init__(self) -> None:
        self.live = self.point.live

    def until(self, epochs: int, display: Silent) -> Result:
        """Go on until the given number of epochs is reached, or something else ends the run."""
        if self.point.history:
            display.say(f"going on after epoch {len(self.point.history)}")
        reason = self._ended(epochs)
        try:
            while reason is None:
                record = self._epoch(display)
                display.epoch(record, (epochs - record.epoch) * (record.seconds - (self.compiling or 0.0)))
                self.compiling = 0.0
                reason = "callback" if self._told_to_stop(record) else self._ended(epochs)
        except KeyboardInterrupt:
            done = len(self.point.history)
            message = f"interrupted in epoch {min(done + 1, epochs)} of {epochs}; {done} finished"
            if self.saver is not None and done:
                message += f" and saved in {str(self.saver.store.directory)!r}: the same call goes on from there"
            raise Interrupted(f"{message}.", self.result("interrupted")) from None
        return self.result(reason)

    def _told_to_stop(self, record: Epoch) -> bool:
        if self.callback is None:
            return False
        answer = self.callback(replace(record, metrics=dict(record.metrics), params=self.point.live.params))
        return isinstance(answer, bool | np.bool_) and bool(answer)

    def _ended(self, epochs: int) -> str | None:
        done, best = len(self.point.history), self.point.best
        if self.monitor.patience is not None and best is not None and done - best >= self.monitor.patience:
            return "patience"
        return "epochs" if done >= epochs else None

    def result(self, reason: str) -> Result:
        point, live = self.point, self.live
        best = live.params if point.best is None else point.best_params
        return Result(best, live.params, live.opt_state, point.history, point.best, reason)

    def _epoch(self, display: Silent) -> Epoch:
        began, number = perf_counter(), len(self.point.history) + 1
        loss = self._train(number, display)
        trained = perf_counter() - began
        metrics = {"loss": loss}
        if self.train_metrics:
            metrics |= {k: v for k, v in self.measure(self.live.params, self.data).items() if k != "loss"}
        if self.validation is not None:
            metrics |= {f"val_{k}": v for k, v in self.measure(self.live.params, self.validation).items()}
        rate, step = self.data.layout.samples / trained, self.point.step + len(self.data)
        record = Epoch(number, step, metrics, perf_counter() - began, rate)
        point = self._next(record)
        try:
            if self.saver is not None:
                self.saver.save(point)
        except CheckpointError as error:
            self.point = point  # the epoch is finished, if only in memory
            error.result = self.result("unsaved")
            raise
        self.point = point
        return record

    def _train(self, number: int, display: Silent) -> float:
        """All batches once; returns the mean loss."""
        layout, total, weight, began = self.data.layout, 0.0, 0.0, perf_counter()
        order = None if self.key is None else shuffled(self.key, number, layout.samples)
        for i, batch in enumerate(self.data.epoch(order), start=1):
            out = self.update(self.live, self.point.step + i, batch, batched=layout.batched)
            if not out.finite:
                raise self._diverged(number, i, out)
            self.live = out.live
            total, weight = total + float(out.loss), weight + float(out.weight)
            if self.compiling is None:
                self.compiling = perf_counter() - began
            rate = min(i * layout.batch, layout.samples) / (perf_counter() - began)
            display.batch(number, i, len(self.data), total / weight if weight else 0.0, rate)
        return total / weight

    def _diverged(self, epoch: int, batch: int, out: Updated) -> Diverged:
        what = "the parameters became NaN" if np.isfinite(out.loss) else f"the loss is {float(out.loss)}"
        where = "Compile with `check_finite=True` to be told the step and the parameter."
        try:
            if out.state is not None:
                self.learner.check(out.state)
        except NonFiniteError as error:
            where = str(error)
        return Diverged(
            f"{what} in epoch {epoch}, batch {batch} of {len(self.data)}. {where} The parameters before that batch are "
            "in `.result.last_params` of this error. Try a smaller learning rate, or clip gradients "
            "(`optax.clip_by_global_norm`).",
            self.result("diverged"), epoch, batch,
        )  # fmt: skip

    def _next(self, record: Epoch) -> Point:
        history = (*self.point.history, record)
        best, best_params = self.point.best, self.point.best_params
        if self.monitor.name is not None:
            value = self.monitor.value(record)
            # NaN is never better, and is replaced by anything that is a number.
            least = None if best is None else self.monitor.value(history[best - 1])
            if least is None or value < least or (least != least and value == value):
                best, best_params = record.epoch, self.live.params
        return Point(self.live, best_params, best, history)
