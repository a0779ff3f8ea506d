"""`Trainer`: a learner, an optimizer and a loss, run over whole data sets."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Literal

import jax

from .._arguments import check_arrays, check_flag, check_function, check_key, check_whole, short
from .._compat import transfers_meant
from .._errors import ArgumentError, ArgumentTypeError
from ..compiler.ir import LossFunction, PyTree, Role, format_path
from ..learn import (
    Identity,
    Learner,
    Optimizer,
    check_accept,
    check_learner,
    check_opt_state,
    check_optimizer,
    check_remat,
    check_window,
    copied,
    digest_of_loss,
    digest_of_optimizer,
    identity_of,
    strong,
)
from ._batch import Gradient, Metric, Updated, begin, evaluator, projected, updater
from ._bias import Cosines, bias_meter
from ._check_data import check_values
from ._checkpoint import Point, Saver
from ._data import Batches, Dataset
from ._loader import Loader, Source, is_dataset, source_of
from ._progress import reporter
from ._records import Epoch, Result
from ._run import Log, Monitor, Run
from ._stored import digest_of_values

# What may be accepted to differ from a checkpoint.
WORDS = (
    "model", "hidden", "rule", "window", "update", "gradient", "loss", "optimizer", "data", "batch size", "validation",
    "evaluated", "key", "monitor",
)  # fmt: skip


class Trainer:
    """Trains a learner on data sets of independent sequences, in batches of the size that it was compiled with.

    - `learner`: what `etrax.compile` returned.
    - `optimizer`: an optax optimizer.
    - `loss_fn`: `loss_fn(output, target) -> scalar`, the loss of one step. It is applied to each sample on its own,
      with a batch axis of one, and averaged over the steps that count, L = Σ_tb m_tb ℓ_tb / Σ_tb m_tb.
    - `window`: the number of steps that are differentiated together.
    - `update`: "window" updates after every window (`learner.train`); "sequence" sums the gradient over the sequence
      and updates once per batch (`learner.value_and_grad`).
    - `gradient`: another gradient instead of the rule's, called as `gradient(learner, loss_fn)(params, hidden, inputs,
      targets, mask) -> (loss, grads)`. `etrax.testing.bptt` trains the same model by BPTT in the same loop.
    - `metrics`: functions of the outputs of whole sequences, by name (see `etrax.train.accuracy`). They are computed on
      the validation data, or on the training data if there are none.
    - `evaluated`: another learner with the same parameters, which evaluates: compiled from `model.eval()` of Flax NNX,
      for example. By default data are evaluated by the learner's own step, dropout and noise included.
    - `meter`: 8, say, measures after each epoch how far the rule's gradient is from the true one, without BPTT: along
      so many random directions of each parameter, on the first batch of the data. The result is `cosine` in the metrics
      and `cosines` in the record, which `etrax.viz.bias` draws. Each direction takes one more forward pass.
    - `remat`: stores the states inside long windows, as in `learner.train`.

    The training loss is that of the updates themselves.

    >>> import etrax, jax, optax, numpy as np, jax.numpy as jnp
    >>> def step(params, h, x):
    ...     h = 0.9 * h + jnp.tanh(x @ params["w"])
    ...     return h, h @ params["out"]
    >>> params = {"w": jnp.ones((1, 4)) * jnp.array([1.0, -1.0, 0.5, 0.1]), "out": jnp.zeros((4, 2))}
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones((8, 1)), params=params, hidden=jnp.zeros((8, 4)))
    >>> xs = np.random.default_rng(0).standard_normal((10, 50, 1), dtype=np.float32)
    >>> data = etrax.train.Dataset.labelled(xs, (xs.sum((0, 2)) > 0).astype(np.int32))  # is its sum positive?
    >>> loss = lambda o, t: optax.softmax_cross_entropy_with_integer_labels(o, t).mean()
    >>> trainer = etrax.train.Trainer(
    ...     learner, optax.adam(0.05), loss, window=5, metrics={"accuracy": etrax.train.accuracy}
    ... )
    >>> result = trainer.fit(data, epochs=5, validation=data, progress=False)
    >>> trainer.evaluate(result.params, data)["accuracy"] > 0.8
    True
    """

    def __init__(
        self, learner: Learner, optimizer: Optimizer, loss_fn: LossFunction, *, window: int = 1,
        update: Literal["window", "sequence"] = "window", gradient: Gradient | None = None,
        metrics: Mapping[str, Metric] | None = None, evaluated: Learner | None = None,
        meter: int | None = None, remat: int | None = None,
    ):  # fmt: skip
        self.learner, self.optimizer, self.window, self.update = learner, optimizer, check_window(window), update
        if metrics is not None and not isinstance(metrics, Mapping):
            raise ArgumentTypeError(
                f"`metrics` is a {type(metrics).__name__}; expected a dictionary from names to functions."
            )
        self.metrics, self.gradient = dict(metrics or {}), gradient
        self.loss_fn, self.evaluated, self._remat = loss_fn, evaluated, remat
        _check_arguments(learner, optimizer, loss_fn, update, gradient, self.metrics)
        check_remat(remat, learner.program.transport, str(learner.rule))
        self._updaters: list[tuple[Callable[[PyTree], PyTree] | None, Callable[..., Updated]]] = []
        _check_twin(learner, evaluated)
        self._bias = None if meter is None else _bias_meter(learner, loss_fn, window, meter, gradient, self.metrics)
        self._evaluate = evaluator(evaluated or learner, loss_fn, self.metrics)

    @transfers_meant()  # data lie with the host, and so do losses and orders of samples
    def fit(
        self, data: Dataset | Source, epochs: int, *, validation: Dataset | Source | None = None,
        params: PyTree = None, opt_state: PyTree = None, shuffle: bool = True, key: int | jax.Array = 0,
        monitor: str | None = None, mode: Literal["min", "max"] | None = None, patience: int | None = None,
        train_metrics: bool | None = None, callback: Callable[[Epoch], object] | None = None, progress: bool = True,
        checkpoint: str | Path | None = None, accept: str | Collection[str] = (),
        batches: int | None = None, batch_first: bool = False, log: Callable[[dict[str, float]], object] | None = None,
        log_every: int | None = None, project: Callable[[PyTree], PyTree] | None = None,
    ) -> Result:  # fmt: skip
        """Train for a number of epochs; returns a `Result`.

        - `data`: a `Dataset`, or an iterable of batches (inputs, targets[, mask[, reset]]) of arrays (T, B, …): a
          generator, a list, a `DataLoader` of torch or grain. A function is called for every epoch and returns the
          iterable. A target (B, …) without a time axis applies to all steps.
        - `epochs`: the number of passes over the data.
        - `validation`: data like these, evaluated after each epoch.
        - `params`, `opt_state`: where to start; by default the learner's parameters and a new optimizer state.
        - `shuffle`: whether the samples of a `Dataset` come in a new order in each epoch, drawn from `key`.
        - `key`: a number or a `jax.random` key.
        - `monitor`: the metric that chooses the best epoch; by default `val_loss` if there is `validation`.
        - `mode`: whether less ("min") or more ("max") is better; by default "min" for names that end in `loss`, "max"
          for others.
        - `patience`: end the run after so many epochs without a better one.
        - `train_metrics`: evaluate the metrics on the training data too, after each epoch; by default only if there is
          no `validation`.
        - `callback`: called with an `Epoch` after each epoch; if it returns True the run ends.
        - `progress`: whether to show how the run is going.
        - `checkpoint`: a directory in which the end of every epoch is saved. The same call continues from the last one:
          the parameters are bit for bit those of a run that was never stopped. `epochs` may be raised.
        - `accept`: what may differ from the run that the checkpoint is of, such as `["optimizer"]`.
        - `batches`: the number of batches in an epoch of an endless iterable.
        - `batch_first`: whether the arrays of an iterable are (B, T, …).
        - `log`: called with the numbers of each epoch as a dictionary (`wandb.log`, a row of a table).
        - `log_every`: call `log` with the training loss after every so many batches, too.
        - `project`: brings parameters back within bounds after every update: see `etrax.train.projected`.

        A checkpoint of a different run is refused, and the error names what differs and the word to accept: the model
        (what its step computes, with its constants), its states at the start, the rule, the window, the loss, the
        optimizer (its learning rate included), the data and others. Only one run at a time may use a directory; a
        second run, a damaged file or a full disk raises `CheckpointError`.

        Ctrl-C raises `Interrupted`; a loss or parameter that is not a number raises `Diverged`; an iterable that ends
        early, raises an error or changes its shapes raises `DataError`. Each has a `result`.
        """
        epochs = check_whole("epochs", epochs, "epochs")
        for name, flag in (("shuffle", shuffle), ("progress", progress), ("batch_first", batch_first)):
            check_flag(name, flag)
        _check_places(checkpoint, callback)
        size = None if batches is None else check_whole("batches", batches, "batches")
        source = source_of(self.learner, data, "data", batch_first, size)
        held_out = None if validation is None else _read_again(self.learner, validation, "validation", batch_first)
        train_metrics = self._measures_training(train_metrics, held_out, source)
        names = ["loss", *(self.metrics if train_metrics else ())]
        names += [f"val_{n}" for n in ("loss", *self.metrics)] if held_out else []
        names += ["cosine"] if self._bias else []
        watch = Monitor.of(monitor, mode, patience, names)
        key = check_key("`fit`", key)
        order = key if shuffle and isinstance(source, Batches) else None
        start = self._start(params, opt_state, watch)
        accepted, checkpoints = check_accept(accept, WORDS), nullcontext()
        update, reports = self._updater(project), _log(log, log_every)
        if checkpoint is not None:
            settings = self._settings(start, source, held_out, order, watch, project)
            checkpoints = Saver(checkpoint, settings, accepted)
        with checkpoints as saver:
            point = (saver.load(start) if saver else None) or start
            run = Run(
                self.learner, update, self._measured, source, held_out, order, watch, train_metrics, callback, saver,
                point, reports, self._bias_of(source),
            )  # fmt: skip
            if self.gradient is None:
                # What the rule has to say of such data.
                self.learner.warn(next(source.first.epoch()).inputs, self.window)
            with reporter(progress and jax.process_index() == 0, epochs) as display:
                return run.until(epochs, display)

    def _updater(self, project: Callable[[PyTree], PyTree] | None) -> Callable[..., Updated]:
        """One update, compiled once for each projection."""
        for other, update in self._updaters:
            if other is project:
                return update
        optimizer = self._optimizer(project)
        update = updater(self.learner, optimizer, self.loss_fn, self.window, self.update, self.gradient, self._remat)
        self._updaters = [*self._updaters[-7:], (project, update)]
        return update

    def _optimizer(self, project: Callable[[PyTree], PyTree] | None) -> Optimizer:
        return self.optimizer if project is None else projected(self.optimizer, project)

    def _measures_training(
        self, asked: bool | None, held_out: Batches | Loader | None, source: Batches | Loader
    ) -> bool:
        """Whether metrics are taken from the training data, which are then read a second time in every epoch."""
        if asked is None:
            return held_out is None and bool(self.metrics) and not source.once
        if check_flag("train_metrics", asked) and source.once:
            raise ArgumentError(
                "`train_metrics` reads the training data again after each epoch, but `data` is read once: pass a list, "
                "a function that makes the iterable, or `validation=`."
            )
        return asked

    def _bias_of(self, source: Batches | Loader) -> Callable[[object, int], Cosines] | None:
        """The meter on the first batch, in every epoch: what changes is the model, not the data."""
        if self._bias is None:
            return None
        batch = jax.tree.map(copied, next(source.first.epoch()))  # an iterable may fill it anew
        return partial(self._bias, batch, source.first.layout.batched)

    @transfers_meant()
    def evaluate(self, params: PyTree, data: Dataset | Source, *, batch_first: bool = False) -> dict[str, float]:
        """The loss and all metrics of a data set, averaged over the whole of it: `{"loss": …, "accuracy": …}`.

        - `params`: the parameters to evaluate.
        - `data`: a `Dataset` or an iterable of batches, as for `fit`.
        - `batch_first`: whether the arrays of an iterable are (B, T, …).
        """
        self._check_params(params)
        return self._measured(params, source_of(self.learner, data, "data", check_flag("batch_first", batch_first)))

    def _check_params(self, params: object) -> None:
        check_values(self.learner, params)
        check_arrays("params", params)
        self.learner.program.params(params)

    def _measured(self, params: object, batches: Batches | Loader) -> dict[str, float]:
        sums: dict[str, list[float]] = {}
        for batch in batches.epoch():
            of_batch = jax.device_get(self._evaluate(params, batch, batched=batches.layout.batched))
            for name, (value, weight) in of_batch.items():
                total = sums.setdefault(name, [0.0, 0.0])
                total[0], total[1] = total[0] + float(value), total[1] + float(weight)
        return {name: sums[name][0] / sums[name][1] for name in ("loss", *self.metrics)}

    def _start(self, params: object, opt_state: object, watch: Monitor) -> Point:
        params = self.learner.params if params is None else params
        self._check_params(params)
        params = strong(params)
        if opt_state is not None:
            check_arrays("opt_state", opt_state)
            check_opt_state(self.optimizer, params, opt_state)
        live = strong(begin(self.learner, self.optimizer, params, opt_state, self.gradient is None))
        params, opt_state = self.learner.place(live.params, live.opt_state)
        live = live._replace(params=params, opt_state=opt_state)
        return Point(live, live.params if watch.name else None)

    def _settings(
        self, start: Point, data: Batches | Loader, held_out: Batches | Loader | None, key: jax.Array | None,
        watch: Monitor, project: Callable[[PyTree], PyTree] | None,
    ) -> Identity:  # fmt: skip
        """What must not change between an interrupted run and the one that goes on, each by its word in `WORDS`."""
        name = getattr(self.gradient, "__qualname__", type(self.gradient).__name__)
        identity = identity_of(self.learner)
        return {
            "model": identity["model"],
            "hidden": digest_of_values(self.learner.hidden),
            "rule": identity["rule"],
            "window": self.window,
            "update": self.update,
            "gradient": None if self.gradient is None else name,
            "loss": digest_of_loss(self.learner, self.loss_fn, *data.target_of_a_sample()),
            "optimizer": digest_of_optimizer(self._optimizer(project), start.live.params),
            "data": data.digest(),
            "batch size": data.layout.batch,
            "validation": None if held_out is None else held_out.digest(),
            "evaluated": None if self.evaluated is None else identity_of(self.evaluated)["model"],
            "key": None if key is None else jax.random.key_data(key).tolist(),
            "monitor": f"{watch.mode} {watch.name}" if watch.name else None,
        }


def _read_again(learner: Learner, data: Dataset | Source, what: str, batch_first: bool) -> Batches | Loader:
    """Data that are read after every epoch; `batch_first` is said of iterables."""
    source = source_of(learner, data, what, batch_first and not is_dataset(data))
    if source.once:
        raise ArgumentError(
            f"`{what}` is read after every epoch, but it is an iterator, which is read once: pass a list, or a "
            "function that makes one."
        )
    return source


def _check_places(checkpoint: object, callback: object) -> None:
    if checkpoint is not None and not (isinstance(checkpoint, str | os.PathLike) and str(checkpoint)):
        raise ArgumentTypeError(f"`checkpoint` is {short(checkpoint)}; expected the name of a directory.")
    if callback is not None:
        check_function("callback", callback, "one record", arguments=1)


def _log(log: Callable[[dict[str, float]], object] | None, every: int | None) -> Log | None:
    every = None if every is None else check_whole("log_every", every, "batches")
    if log is None:
        if every is not None:
            raise ArgumentError("`log_every` says how often `log` is called: pass `log`, too.")
        return None
    check_function("log", log, "one dictionary of numbers", arguments=1)
    return Log(log, every)


def _check_arguments(
    learner: object, optimizer: object, loss_fn: object, update: object, gradient: object, metrics: Mapping[str, object]
) -> None:
    check_learner(learner)
    check_optimizer(optimizer)
    check_function("loss_fn", loss_fn, "(output, target)")
    if not isinstance(update, str) or update not in ("window", "sequence"):
        raise ArgumentError(f"`update` is {short(update)}; expected 'window' or 'sequence'.")
    if gradient is not None and not callable(gradient):
        raise ArgumentTypeError(
            f"`gradient` is a {type(gradient).__name__}; expected a function such as `etrax.testing.bptt`."
        )
    if gradient is not None and update != "sequence":
        raise ArgumentError("`gradient` is that of a whole sequence: it needs `update='sequence'`.")
    for name, metric in metrics.items():
        if not callable(metric) or name == "loss":
            raise ArgumentError(
                f"`metrics[{name!r}]` is a {type(metric).__name__}; expected a function of (outputs, targets, mask), "
                "under a name other than 'loss'."
            )
        if not _takes_three(metric):
            raise ArgumentError(
                f"`metrics[{name!r}]` does not take three arguments: it is called with the outputs, targets and mask "
                "of whole sequences, `lambda outputs, targets, mask: ...`, and returns a value per sample, or per step "
                "and sample."
            )


def _bias_meter(
    learner: Learner, loss_fn: LossFunction, window: int, probes: int, gradient: Gradient | None,
    metrics: Mapping[str, object],
) -> Callable[..., Cosines]:  # fmt: skip
    if gradient is not None:
        raise ArgumentError("`meter` measures the gradient of the learner's rule: leave out `gradient`.")
    if "cosine" in metrics:
        raise ArgumentError("`metrics['cosine']` is what `meter` records: give the metric another name.")
    probes = check_whole("meter", probes, "directions", least=4)
    return bias_meter(learner, loss_fn, window, probes)


def _check_twin(learner: Learner, evaluated: object) -> None:
    """Both have the same parameters and inputs."""
    if evaluated is None:
        return
    if not isinstance(evaluated, Learner):
        raise ArgumentError(f"`evaluated` is a {type(evaluated).__name__}; pass what `etrax.compile` returns.")
    for role in (Role.PARAM, Role.INPUT):
        here, there = ([(a.path, a.aval.shape) for a in x.facts.step.select(role)] for x in (learner, evaluated))
        if here != there:
            path = next(a for a in [*here, *there] if a not in here or a not in there)[0]
            raise ArgumentError(
                f"`evaluated` is a learner of another model: the {role.value} {format_path(path, role.value)} is not "
                "the same in both. Compile the same module, with the same example inputs."
            )


def _takes_three(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # compiled functions may not say what they take
        pass
    return True
