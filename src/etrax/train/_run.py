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
from ._bias import Cosines
from ._checkpoint import Point, Saver
from ._data import Batches, shuffled
from ._loader import Loader
from ._progress import Silent
from ._records import DataError, Diverged, Epoch, Interrupted, Result
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


class Log(NamedTuple):
    """Where numbers go: `write(values)` after each epoch and, if there is a number `every`, after so many batches."""

    write: Callable[[dict[str, float]], object]
    every: int | None = None

    def epoch(self, record: Epoch) -> None:
        counts = {name: getattr(record, name) for name in ("epoch", "step", "updates", "samples")}
        times = {"seconds": record.seconds, "samples_per_second": record.samples_per_second}
        self.write({**counts, **record.metrics, **times})


class _Sums(NamedTuple):
    """Weighted loss and weight of some batches, how many they were, their samples, and the updates that they made."""

    loss: float = 0.0
    weight: float = 0.0
    batches: int = 0
    samples: int = 0
    updates: int = 0

    @property
    def mean(self) -> float:
        return self.loss / self.weight if self.weight else 0.0

    def mean_since(self, before: _Sums) -> float:
        return self._replace(loss=self.loss - before.loss, weight=self.weight - before.weight).mean


@dataclass
class Run:
    """Holds the last consistent `point` and, within an epoch, the parameters after the last batch (`live`).

    `update` and `measure` are the trainer's; without a `key` samples keep their order. The first batch compiles, so it
    is left out of the time that is left.
    """

    learner: Learner
    update: Callable[..., Updated]
    measure: Callable[[object, Batches | Loader], dict[str, float]]
    data: Batches | Loader
    validation: Batches | Loader | None
    key: jax.Array | None
    monitor: Monitor
    train_metrics: bool
    callback: Callable[[Epoch], object] | None
    saver: Saver | None
    point: Point
    log: Log | None = None
    bias: Callable[[object, int], Cosines] | None = None
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
                if self.log is not None:
                    self.log.epoch(record)
                reason = "callback" if self._told_to_stop(record) else self._ended(epochs)
            display.say(self._why(reason, epochs))
        except KeyboardInterrupt:
            done = len(self.point.history)
            message = f"interrupted in epoch {min(done + 1, epochs)} of {epochs}; {done} finished"
            if self.saver is not None and done:
                message += f" and saved in {str(self.saver.store.directory)!r}: the same call continues from there"
            raise Interrupted(f"{message}.", self.result("interrupted")) from None
        except DataError as error:
            error.result = self.result("data")
            raise
        return self.result(reason)

    def _why(self, reason: str, epochs: int) -> str:
        """A sentence that says why the run ended, and which epoch is the best."""
        done, name = len(self.point.history), self.monitor.name
        best = "" if self.point.best is None else f"; the best {name} is that of epoch {self.point.best}"
        match reason:
            case "patience":
                waited = done - (self.point.best or 0)
                return f"stopped after epoch {done} of {epochs}: no better {name} for {waited} epochs{best}"
            case "callback":
                return f"stopped after epoch {done} of {epochs}: the callback asked for it{best}"
        return f"all {done} epochs done{best}"

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
        sums = self._train(number, display)
        trained = perf_counter() - began
        metrics = {"loss": sums.mean}
        if self.train_metrics:
            metrics |= {k: v for k, v in self.measure(self.live.params, self.data).items() if k != "loss"}
        if self.validation is not None:
            metrics |= {f"val_{k}": v for k, v in self.measure(self.live.params, self.validation).items()}
        cosines = {} if self.bias is None else self.bias(self.live.params, number)
        metrics |= {"cosine": cosines["all"][0]} if cosines else {}
        step, before = self.point.step + sums.batches, self.point.history[-1] if self.point.history else None
        updates, samples = (0, 0) if before is None else (before.updates, before.samples)
        record = Epoch(
            number, step, metrics, perf_counter() - began, sums.samples / trained, updates + sums.updates,
            samples + sums.samples, cosines=cosines,
        )  # fmt: skip
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

    def _train(self, number: int, display: Silent) -> _Sums:
        """All batches once; what is summed over them."""
        layout, sums, logged, began = self.data.layout, _Sums(), _Sums(), perf_counter()
        order = None if self.key is None else shuffled(self.key, number, layout.samples)
        for i, batch in enumerate(self.data.epoch(order), start=1):
            out = self.update(self.live, self.point.step + i, batch, batched=layout.batched)
            if not out.finite:
                raise self._diverged(number, i, out)
            self.live = out.live
            samples = self.data.samples_of(i)
            updates = sums.updates + int(out.updates)
            sums = _Sums(sums.loss + float(out.loss), sums.weight + float(out.weight), i, samples, updates)
            if self.compiling is None:
                self.compiling = perf_counter() - began
            if self.log is not None and self.log.every is not None and i % self.log.every == 0:
                self.log.write({"epoch": number, "step": self.point.step + i, "loss": sums.mean_since(logged)})
                logged = sums
            display.batch(number, i, len(self.data), sums.mean, samples / (perf_counter() - began))
        return sums

    def _diverged(self, epoch: int, batch: int, out: Updated) -> Diverged:
        what = "the parameters became NaN" if np.isfinite(out.loss) else f"the loss is {float(out.loss)}"
        where = "Compile with `check_finite=True` to be told the step and the parameter."
        total = f" of {len(self.data)}" if len(self.data) else ""
        try:
            if out.state is not None:
                self.learner.check(out.state)
        except NonFiniteError as error:
            where = str(error)
        return Diverged(
            f"{what} in epoch {epoch}, batch {batch}{total}. {where} The parameters before that batch are "
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
