"""A set of sequences with targets and a mask, and what may be done to one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .._arguments import as_numbers, short
from ._shared import TaskError as TaskError
from ._shared import check_sizes, is_number


@dataclass(frozen=True)
class Task:
    """N sequences of T steps, time-major NumPy arrays.

    `inputs` (T, N, features) float32; `targets` (T, N) class numbers, or (T, N, outputs) float32; `mask` (T, N), true
    at the steps that count in the loss. `classes` is the number of classes, None where targets are numbers.

    >>> from etrax.tasks import copy
    >>> task = copy(key=0, size=8)
    >>> batch = task.take([0, 1, 2])
    >>> batch.inputs.shape, batch.size, batch.steps
    ((16, 3, 5), 3, 16)
    """

    inputs: np.ndarray
    targets: np.ndarray
    mask: np.ndarray
    classes: int | None = None

    def __post_init__(self) -> None:
        for name in ("inputs", "targets", "mask"):
            # Frozen dataclasses are set up through `object`.
            object.__setattr__(self, name, as_numbers(f"`{name}`", getattr(self, name)))
        if self.inputs.ndim < 2:
            raise TaskError(f"`inputs` has shape {list(self.inputs.shape)}; expected (T, N, …): time, then sequences.")
        if self.classes is not None:
            check_sizes("Task", classes=self.classes)
        for name in ("targets", "mask"):
            shape = getattr(self, name).shape[:2]
            if shape != self.inputs.shape[:2]:
                raise TaskError(
                    f"`{name}` has {list(shape)} steps and sequences, but `inputs` have {list(self.inputs.shape[:2])}."
                )

    def __repr__(self) -> str:
        """Shapes, not values."""
        shapes = [f"{k}: {a.dtype}{list(a.shape)}" for k, a in (("inputs", self.inputs), ("targets", self.targets))]
        marked = "every step counts" if self.mask.all() else f"{np.mean(self.mask != 0):.0%} of the steps count"
        classes = "" if self.classes is None else f"; {self.classes} classes"
        return f"Task({'; '.join(shapes)}; {marked}{classes})"

    @property
    def steps(self) -> int:
        """T, the length of the longest sequence."""
        return self.inputs.shape[0]

    @property
    def size(self) -> int:
        """N, the number of sequences."""
        return self.inputs.shape[1]

    def take(self, which: np.ndarray | list[int] | slice) -> Task:
        """Some of the sequences, by index."""
        try:
            chosen = np.arange(self.size)[which]
        except Exception as error:  # numpy may raise anything for an index
            raise TaskError(
                f"`take` got {short(which)}; expected a list of whole numbers below {self.size}, booleans for each "
                "sequence, or a slice."
            ) from error
        if np.ndim(chosen) != 1:
            raise TaskError(f"`take` got {short(which)}; expected a list of sequences, also of one: `[0]`.")
        return replace(self, inputs=self.inputs[:, which], targets=self.targets[:, which], mask=self.mask[:, which])


def labelled(inputs: np.ndarray, labels: np.ndarray, classes: int, mask: np.ndarray | None = None) -> Task:
    """A task of one label per sequence: the target at every step. All steps count unless a mask is given.

    >>> from etrax.tasks import latency_spikes
    >>> spikes = latency_spikes(np.array([[0.1, 0.9], [0.8, 0.2]]), steps=4)
    >>> labelled(spikes, np.array([1, 0]), classes=2).targets.tolist()
    [[1, 0], [1, 0], [1, 0], [1, 0]]
    """
    inputs, labels = as_numbers("`inputs`", inputs), as_numbers("`labels`", labels)
    check_sizes("labelled", classes=classes)
    shape = inputs.shape[:2]
    if len(shape) < 2:
        raise TaskError(f"`inputs` has shape {list(inputs.shape)}; expected (T, N, …): time, then sequences.")
    if labels.shape != shape[1:]:
        raise TaskError(f"`labels` has shape {list(labels.shape)}, but `inputs` hold {shape[1]} sequences.")
    targets = np.broadcast_to(labels.astype(np.int32), shape).copy()
    return Task(inputs.astype(np.float32), targets, np.ones(shape, bool) if mask is None else mask, classes)


def split(task: Task, test: float = 0.2, seed: int = 0) -> tuple[Task, Task]:
    """`(train, test)`: a random share of the sequences is held out, the same one for the same seed.

    >>> from etrax.tasks import copy
    >>> train, test = split(copy(key=0, size=10), test=0.3, seed=0)
    >>> train.size, test.size
    (7, 3)
    """
    _check_task("split", task)
    check_sizes("split", 0, seed=seed)
    if not is_number(test) or not 0 <= test <= 1:
        raise TaskError(f"`split` takes a `test` share from 0 to 1, got {short(test)}.")
    count = round(test * task.size)
    if not 0 < count < task.size:
        raise TaskError(
            f"`split` with `test={test!r}` would hold out {count} of {task.size} sequences; both parts need one."
        )
    order = np.random.default_rng(seed).permutation(task.size)
    return task.take(np.sort(order[count:])), task.take(np.sort(order[:count]))


def standardise(train: Task, *others: Task) -> tuple[Task, ...]:
    """Each feature to mean 0 and variance 1, by the marked steps of `train` alone; unmarked steps become 0.

    >>> from etrax.tasks import integrator
    >>> a, b = standardise(*split(integrator(key=0, size=50), test=0.2))
    >>> bool(abs(a.inputs.mean()) < 1e-6), a.size, b.size
    (True, 40, 10)
    """
    for task in (train, *others):
        _check_task("standardise", task)
    if not train.mask.any():
        raise TaskError("`standardise` needs marked steps to take mean and variance of; the mask of `train` has none.")
    marked = train.inputs[train.mask != 0].astype(np.float64)
    mean, scale = marked.mean(0), marked.std(0)
    scale = np.where(scale == 0, 1, scale)

    def scaled(task: Task) -> Task:
        inputs = (task.inputs - mean) / scale * task.mask[..., None]
        return replace(task, inputs=inputs.astype(np.float32))

    return tuple(scaled(task) for task in (train, *others))


def last_only(task: Task) -> Task:
    """Sequences of which only the last marked step counts: an answer at the end.

    >>> from etrax.tasks import integrator
    >>> last_only(integrator(key=0, size=2, steps=3)).mask.tolist()
    [[False, False], [False, False], [True, True]]
    """
    _check_task("last_only", task)
    later = np.cumsum(task.mask[::-1], axis=0)[::-1]
    return replace(task, mask=task.mask & (later == 1))


def _check_task(what: str, task: Task) -> None:
    if not isinstance(task, Task):
        raise TaskError(
            f"`{what}` takes a `Task`, got {short(task)}. Make one of arrays by `etrax.tasks.labelled(inputs, labels, "
            "classes)` or `etrax.tasks.Task(inputs, targets, mask)`; `Trainer.fit` takes it as it takes a `Dataset`."
        )
