"""Data sets in time-major arrays, and their batches: every sample once, the last batch filled up with weight 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import jax
import numpy as np

from .._arguments import as_numbers, check_arrays, short
from .._compat import is_extended, shape_struct
from .._errors import ArgumentError, ArgumentTypeError
from ..compiler.ir import PyTree, describe, digest_of, leaves_with_paths
from ..learn import Learner
from ._batch import Batch
from ._check_data import DataShape, as_tuple, check_data

DIGESTED = 128 << 20  # bytes of an array that a digest reads


class Dataset(NamedTuple):
    """N sequences of T steps. `inputs` and `targets` are trees of arrays (T, N, …), `mask` (T, N) weights each step,
    `reset` (T, N) flags steps before which hidden state and trace restart.

    `inputs` is the tuple of the step's inputs; a single one may be passed bare. An input that is one number per step
    may be (T,): all samples share it. A mask of 0 and 1 says which steps count (`pad` makes one for sequences of
    different lengths); other weights are allowed, and without a mask all steps count alike. `packed` lays episodes of
    different lengths end to end, with a reset at the beginning of each.

    >>> import numpy as np
    >>> data = Dataset(np.zeros((50, 200, 3)), np.zeros((50, 200, 1)))  # 200 sequences of 50 steps
    """

    inputs: PyTree
    targets: PyTree = None
    mask: jax.Array | np.ndarray | None = None
    reset: jax.Array | np.ndarray | None = None

    def __repr__(self) -> str:
        """Shapes, not values."""
        described = [f"{name}: {describe(tree, name)}" for name, tree in self._asdict().items() if tree is not None]
        return f"Dataset({'; '.join(described)})"

    @classmethod
    def labelled(cls, inputs: PyTree, labels: jax.Array, mask: jax.Array | np.ndarray | None = None) -> Dataset:
        """One target per sequence: `labels` are arrays (N, …), which applies to every step that counts.

        >>> import numpy as np
        >>> Dataset.labelled(np.zeros((50, 200, 3)), np.arange(200) % 10).targets.shape
        (50, 200)
        """
        inputs, labels = _arrays("inputs", inputs), _arrays("labels", labels)
        shapes = [np.shape(a) for a in jax.tree.leaves(inputs)]
        steps, samples = next(((s[0], s[1]) for s in shapes if len(s) > 1), (None, None))
        if steps is None:
            raise ArgumentError("`Dataset.labelled` found no input of shape (T, N, …).")

        def repeated(a: np.ndarray) -> np.ndarray:
            if a.shape[:1] != (samples,):
                raise ArgumentError(
                    f"`labels` has shape {list(a.shape)}, but `inputs` holds {samples} samples: one label for each."
                )
            return np.broadcast_to(a, (steps, *a.shape))  # a view: no memory

        return cls(inputs, jax.tree.map(repeated, labels), mask)


def pad(sequences: Sequence[jax.Array], count: Literal["all", "last"] = "all") -> tuple[np.ndarray, np.ndarray]:
    """Sequences (T_n, …) of different lengths as one array (T, N, …) filled with zeros, and its mask (T, N).

    `count="last"` makes a mask that is 1 at the last step of each sequence only: only the answer at its end counts.

    >>> import numpy as np
    >>> xs, mask = pad([np.ones((2, 3)), np.ones((4, 3))])
    >>> xs.shape, mask.T.tolist()
    ((4, 2, 3), [[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    """
    if not isinstance(count, str) or count not in ("all", "last"):
        raise ArgumentError(f"`count` is {short(count)}; expected 'all' or 'last'.")
    listed = isinstance(sequences, Sequence) and not isinstance(sequences, str | bytes)
    if not listed and not (isinstance(sequences, np.ndarray | jax.Array) and sequences.ndim):
        raise ArgumentTypeError(f"`pad` takes a list of arrays, got {short(sequences)}.")
    if any(isinstance(s, tuple) for s in sequences):
        raise ArgumentError(
            "`pad` takes arrays, not tuples of them: pad inputs and targets apart, "
            "`inputs, mask = pad([x for x, _ in pairs])` and `targets, _ = pad([y for _, y in pairs])`. "
            "`packed` takes pairs."
        )
    arrays = [as_numbers(f"`sequences[{n}]`", s) for n, s in enumerate(sequences)]
    if not arrays:
        raise ArgumentError("`pad` got no sequences.")
    for n, a in enumerate(arrays):
        if a.ndim == 0 or a.shape[1:] != arrays[0].shape[1:] or a.dtype != arrays[0].dtype:
            first = arrays[0]
            raise ArgumentError(
                f"`sequences[{n}]` is {a.dtype}{list(a.shape)} and `sequences[0]` {first.dtype}{list(first.shape)}: "
                "they may differ in their first axis (time) only."
            )
        if len(a) == 0:
            raise ArgumentError(f"`sequences[{n}]` has no steps: leave it out.")
    lengths = np.array([len(a) for a in arrays])
    out = np.zeros((lengths.max(), len(arrays), *arrays[0].shape[1:]), arrays[0].dtype)
    for n, a in enumerate(arrays):
        out[: len(a), n] = a
    when = np.arange(lengths.max())[:, None]
    counted = when == lengths - 1 if count == "last" else when < lengths
    return out, counted.astype(np.float32)


class Batches:
    """A checked data set, cut into batches of the size that the learner was compiled with.

    If it `counts`, the mask must be above zero somewhere.
    """

    once = False

    def __init__(self, learner: Learner, data: Dataset, what: str, counts: bool = True):
        if isinstance(data, type) or not all(hasattr(data, name) for name in ("inputs", "targets", "mask")):
            raise ArgumentError(
                f"`{what}` is a {type(data).__name__}; pass a task of `etrax.tasks`, "
                "`etrax.train.Dataset(inputs, targets, mask=None)`, or an iterable of batches (inputs, targets)."
            )
        data = Dataset(*(_arrays(f"{what}.{name}", getattr(data, name, None)) for name in Dataset._fields))
        self.learner = learner
        self.layout: DataShape = check_data(learner, data, what, counts)
        self.inputs, self.targets = as_tuple(learner, data.inputs), data.targets
        shape = (self.layout.steps, self.layout.samples)
        mask = np.broadcast_to(np.float32(1), shape) if data.mask is None else np.asarray(data.mask)
        self.mask = mask if np.issubdtype(mask.dtype, np.floating) else mask.astype(np.float32)
        self.reset = None if data.reset is None else np.asarray(data.reset) != 0

    def __len__(self) -> int:
        return -(-self.layout.samples // self.layout.batch)

    @property
    def first(self) -> Batches:
        """Data whose first batch is that of an epoch in order."""
        return self

    def epoch(self, order: np.ndarray | None = None) -> Iterator[Batch]:
        """All samples once, in the given order."""
        size, total = self.layout.batch, self.layout.samples
        order = np.arange(total) if order is None else order
        on_mesh = self.layout.batched and jax.process_count() > 1
        for start in range(0, total, size):
            chosen = order[start : start + size]
            # Filled up with a real sample: its numbers are finite, so that times 0 they are 0.
            index = np.concatenate([chosen, np.full(size - len(chosen), chosen[0])])
            mask = self.mask[:, index]
            mask[:, len(chosen) :] = 0
            reset = None if self.reset is None else self.reset[:, index]
            if on_mesh:  # a process reads only the samples that its devices need
                both = self.targets, self.reset
                inputs, (targets, reset), mask = self.learner.place_batch(self.inputs, both, mask, index)
            else:
                inputs, targets = jax.tree.map(lambda a, i=index: self._take(a, i), (self.inputs, self.targets))
            yield Batch(inputs, targets, mask, reset)  # type: ignore[arg-type]

    def samples_of(self, batches: int) -> int:
        """The number of samples in the first batches of an epoch."""
        return min(batches * self.layout.batch, self.layout.samples)

    def digest(self) -> str:
        """What a record of a run says of its data; of large arrays a fixed choice of samples stands for all."""
        steps, samples = self.layout.steps, self.layout.samples
        parts = (self.inputs, self.targets, self.mask, *([] if self.reset is None else [self.reset]))
        leaves = [(path, _some(a)) for path, a in leaves_with_paths(parts)]
        return f"{samples} samples of {steps} steps, digest {digest_of(leaves)}"

    def target_of_a_sample(self) -> tuple[PyTree, bool]:
        """The target of one step and sample as a shape, and whether the model has a batch axis, which is then 1."""
        batched = self.layout.batched

        def one(a: np.ndarray) -> jax.ShapeDtypeStruct:
            struct = shape_struct(a)
            return jax.ShapeDtypeStruct((*(1,) * batched, *struct.shape[2:]), struct.dtype)

        return jax.tree.map(one, self.targets), batched

    def _take(self, a: np.ndarray, index: np.ndarray) -> np.ndarray:
        if a.ndim == 1:  # shared by all samples
            return a
        return a[:, index] if self.layout.batched else a[:, index[0]]


def _some(a: np.ndarray) -> np.ndarray:
    """All of an array (T, N, …), or as many of its samples, spread evenly, as are read in a fraction of a second."""
    if a.ndim < 2 or is_extended(a) or a.nbytes <= DIGESTED:
        return a
    return a[:, np.linspace(0, a.shape[1] - 1, max(DIGESTED * a.shape[1] // a.nbytes, 1)).astype(int)]


def _arrays(what: str, tree: object) -> PyTree:
    """A tree of numpy arrays of numbers, or of keys, for which numpy has no type."""
    check_arrays(what, tree)
    return jax.tree.map(lambda a: a if is_extended(a) else np.asarray(a), tree)


def shuffled(key: jax.Array, epoch: int, samples: int) -> np.ndarray:
    """The order of an epoch: a function of the key and its number, so that a resumed run draws the same."""
    return np.asarray(jax.random.permutation(jax.random.fold_in(key, epoch), samples))
