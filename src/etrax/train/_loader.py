"""Batches that an iterable gives: a generator, a list, a `DataLoader` of torch or of grain.

    batch = (inputs, targets[, mask[, reset]]), or a dictionary or `Dataset` with these names

Each is checked when it comes: arrays (T, B, …) that fit the learner, of any length T. One that is shorter along the
batch is filled up with samples of weight 0, as the last batch of a data set is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import jax
import numpy as np

from .._arguments import check_arrays, short
from .._errors import ArgumentError, ArgumentTypeError
from ..compiler.ir import PyTree
from ..learn import Learner
from ._batch import Batch
from ._check_data import DataShape, as_tuple
from ._data import Batches, Dataset
from ._records import DataError

# What gives batches: something to iterate over, or a function that makes it anew for every epoch.
Source = Iterable[PyTree] | Callable[[], Iterable[PyTree]]


@dataclass
class Loader:
    """The batches of an iterable, checked one by one; `batches` is their number in an epoch, if users said it.

    An iterator (a generator) is read once, and so is what has a number of batches: an epoch goes on where the last one
    ended. The first batch is read when the loader is made, and trained on like the others when its turn comes.
    """

    learner: Learner
    source: Source
    what: str
    batch_first: bool = False
    batches: int | None = None
    first: Batches = field(init=False)

    def __post_init__(self) -> None:
        self._read = self._samples = 0
        self._iterator = self._started()
        self.once = self.batches is not None or (not callable(self.source) and self._iterator is self.source)
        first = self._next()
        if first is None:
            raise ArgumentError(f"`{self.what}` holds no batch.")
        self.first, self._waits = first, True

    @property
    def layout(self) -> DataShape:
        """That of the first batch."""
        return self.first.layout

    def __len__(self) -> int:
        """The number of batches of an epoch; 0 where nothing says it."""
        if self.batches is not None:
            return self.batches
        try:
            return len(self.source)  # type: ignore[arg-type]
        except TypeError:
            return 0

    def epoch(self, order: np.ndarray | None = None) -> Iterator[Batch]:
        """One pass over the iterable, or its next batches if there is a number of them. Their order is its own."""
        del order
        self._samples = 0
        if not self._waits and not self.once:
            self._iterator, self._read = self._started(), 0
        count = 0
        while self.batches is None or count < self.batches:
            batch, self._waits = self.first if self._waits else self._next(), False
            if batch is None:
                break
            count += 1
            self._samples += batch.layout.samples
            yield from batch.epoch()
        if count < (self.batches or 1):
            raise DataError(self._ended(count))

    def samples_of(self, batches: int) -> int:
        """The number of samples in the batches of this epoch so far."""
        del batches
        return self._samples

    def _ended(self, count: int) -> str:
        if self.batches is not None:
            return f"`{self.what}` ended after {count} of the {self.batches} batches of an epoch."
        again = ": an iterator is read once; pass a list, or a function that makes one for every epoch"
        return f"`{self.what}` gave no batch in this epoch{again if self.once else ''}."

    def digest(self) -> str:
        """What a record of a run says of its data: not what they are, which nobody knows beforehand."""
        return "an iterable"

    def target_of_a_sample(self) -> tuple[PyTree, bool]:
        """The target of one step and sample as a shape, and whether the model has a batch axis, which is then 1."""
        return self.first.target_of_a_sample()

    def _started(self) -> Iterator[PyTree]:
        try:
            return iter(self.source() if callable(self.source) else self.source)
        except TypeError as error:
            raise ArgumentTypeError(f"`{self.what}` is a function that gave nothing to iterate over.") from error

    def _next(self) -> Batches | None:
        self._read += 1
        try:
            got = next(self._iterator)
        except StopIteration:
            return None
        except Exception as error:  # the code of others may raise anything
            lines = str(error).splitlines()
            why = f": {lines[0].rstrip('.')}" if lines else ""
            raise DataError(f"`{self.what}` raised {type(error).__name__} at batch {self._read}{why}.") from error
        try:
            return self._checked(got)
        except ArgumentError as error:
            raise DataError(f"batch {self._read} of `{self.what}`: {error}") from error

    def _checked(self, got: PyTree) -> Batches:
        inputs, targets, mask, reset = (jax.tree.map(_as_numpy, part) for part in _parts(got))
        inputs = as_tuple(self.learner, inputs)
        for name, part in zip(Dataset._fields, (inputs, targets, mask, reset), strict=True):
            check_arrays(name, part)
        # A number at each step, which all samples share, is one axis.
        lead = next((a.shape[:2] for a in jax.tree.leaves(inputs) if a.ndim > 1), (0, 0))
        inputs, mask, reset = jax.tree.map(self._time_first, (inputs, mask, reset))
        targets = jax.tree.map(lambda a: self._at_every_step(a, lead), targets)
        batches = Batches(self.learner, Dataset(inputs, targets, mask, reset), "data", counts=False)
        layout = batches.layout
        if layout.batched and layout.samples > layout.batch:
            other = "" if self.batch_first else "; if the batch comes first, pass `batch_first=True`"
            raise ArgumentError(
                f"it holds {layout.samples} samples, but the model was compiled for {layout.batch} at a time{other}."
            )
        return batches

    def _time_first(self, a: np.ndarray) -> np.ndarray:
        return np.swapaxes(a, 0, 1) if self.batch_first and a.ndim > 1 else a

    def _at_every_step(self, target: np.ndarray, lead: tuple[int, ...]) -> np.ndarray:
        """A target (T, B, …); one without an axis of time, (B, …), is that of all steps."""
        if target.shape[:2] == lead:
            return self._time_first(target)
        steps, samples = reversed(lead) if self.batch_first else lead
        one_for_all = target.shape[:1] == (samples,)
        return np.broadcast_to(target, (steps, *target.shape)) if one_for_all else target


def _as_numpy(leaf: PyTree) -> PyTree:
    """Tensors of other libraries as arrays; what is none stays, and is refused by name."""
    if isinstance(leaf, np.ndarray | jax.Array) or not hasattr(leaf, "__array__"):
        return leaf
    return np.asarray(leaf)


def _parts(got: PyTree) -> tuple[PyTree, PyTree, PyTree, PyTree]:
    """Inputs, targets, mask and reset of what an iterable gave; None for those that it did not give."""
    names = Dataset._fields
    if isinstance(got, Mapping):
        unknown = sorted(str(k) for k in got if k not in names)
        if unknown or "inputs" not in got:
            raise ArgumentError(f"it is a dictionary with {', '.join(map(str, got))}; expected {', '.join(names)}.")
        return tuple(got.get(name) for name in names)  # type: ignore[return-value]
    if not isinstance(got, tuple | list) or not 2 <= len(got) <= len(names):
        kind = f"{len(got)} values" if isinstance(got, tuple | list) else f"a {type(got).__name__}"
        raise ArgumentError(f"it is {kind}; expected (inputs, targets), (inputs, targets, mask) or with `reset`.")
    return (*got, *[None] * (len(names) - len(got)))  # type: ignore[return-value]


def is_dataset(data: object) -> bool:
    """Whether it holds whole arrays rather than batches, or is a class by mistake."""
    return isinstance(data, type) or all(hasattr(data, name) for name in ("inputs", "targets", "mask"))


def source_of(
    learner: Learner, data: Dataset | Source, what: str, batch_first: bool = False, batches: int | None = None
) -> Batches | Loader:
    """The batches of a data set, or of an iterable."""
    arrays = isinstance(data, tuple | list) and any(isinstance(a, np.ndarray | jax.Array) for a in data)
    if is_dataset(data) or arrays or not (callable(data) or hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        if batches is not None or batch_first:
            raise ArgumentError("`batches` and `batch_first` are for an iterable of batches, but `data` is a data set.")
        return Batches(learner, data, what)  # type: ignore[arg-type]
    if isinstance(data, str | bytes | Mapping):
        raise ArgumentTypeError(f"`{what}` is {short(data)}; expected batches, (inputs, targets) each, or a `Dataset`.")
    return Loader(learner, data, what, batch_first, batches)  # type: ignore[arg-type]
