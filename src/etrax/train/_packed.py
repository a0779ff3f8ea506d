"""Episodes of different lengths, one behind the other: a reset at the beginning of each, and few empty steps."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import jax
import numpy as np

from .._arguments import check_arrays, check_whole, short, struct_of
from .._errors import ArgumentError, ArgumentTypeError
from ..compiler.ir import PyTree, describe, format_path, leaves_with_paths
from ._data import Dataset

# Where an episode lies: its lane and its first step there.
Place = tuple[int, int]


def packed(episodes: Sequence[PyTree], *, lanes: int | None = None, length: int | None = None) -> Dataset:
    """Episodes of different lengths as a `Dataset` that has a `reset` at the beginning of each.

    - `episodes`: `(inputs, targets)` or `(inputs, targets, mask)` for each, trees of arrays (T_n, …) without an axis of
      samples; `inputs` is the tuple of the step's inputs, or one array.
    - `lanes`: lay them end to end in so many sequences, which are made as equal in length as possible.
    - `length`: or in sequences of so many steps, as few as possible.

    Long episodes come first; steps behind the last episode of a sequence do not count. `pad` would take as many steps
    for each episode as the longest one has; this takes little more than the episodes have together.

    >>> import numpy as np
    >>> episodes = [(np.ones((n, 3)), np.ones((n, 1))) for n in (5, 2, 4, 3)]
    >>> data = packed(episodes, lanes=2)
    >>> data.inputs.shape, data.reset.T.astype(int).tolist()
    ((7, 2, 3), [[1, 0, 0, 0, 0, 1, 0], [1, 0, 0, 0, 1, 0, 0]])
    """
    trees = _checked(episodes)
    lengths = [jax.tree.leaves(tree)[0].shape[0] for tree in trees]
    if (lanes is None) == (length is None):
        raise ArgumentError(
            "`packed` takes either `lanes=`, the number of sequences, or `length=`, that of their steps."
        )
    if lanes is not None:
        places = _in_lanes(lengths, check_whole("lanes", lanes, "lanes"))
    else:
        places = _of_length(lengths, check_whole("length", length, "steps"))
    ends = [at + n for (_, at), n in zip(places, lengths, strict=True)]
    shape = (max(ends) if length is None else length, 1 + max(lane for lane, _ in places))
    reset, counts = np.zeros(shape, bool), np.zeros(shape, np.float32)
    laid = jax.tree.map(lambda a: np.zeros((*shape, *a.shape[1:]), a.dtype), trees[0])
    for tree, (lane, at), n in zip(trees, places, lengths, strict=True):
        reset[at, lane] = True
        counts[at : at + n, lane] = 1 if tree[2] is None else tree[2]
        jax.tree.map(lambda out, a, lane=lane, at=at, n=n: _put(out, a, lane, at, n), laid, tree)
    return Dataset(laid[0], laid[1], None if counts.all() and laid[2] is None else counts, reset)


def _put(out: np.ndarray, a: np.ndarray, lane: int, at: int, n: int) -> None:
    out[at : at + n, lane] = a


def _in_lanes(lengths: Sequence[int], lanes: int) -> list[Place]:
    """Each episode, the longest first, behind those of the shortest lane: none is then much longer than another."""
    if lanes > len(lengths):
        raise ArgumentError(
            f"`lanes` is {lanes}, more than the number of episodes ({len(lengths)}): a lane would be empty."
        )
    filled, places = [(0, lane) for lane in range(lanes)], {}
    for k in sorted(range(len(lengths)), key=lambda k: -lengths[k]):
        at, lane = heapq.heappop(filled)
        places[k] = (lane, at)
        heapq.heappush(filled, (at + lengths[k], lane))
    return [places[k] for k in range(len(lengths))]


def _of_length(lengths: Sequence[int], length: int) -> list[Place]:
    """Each episode, the longest first, into the first lane that has room for it."""
    longest = int(np.argmax(lengths))
    if lengths[longest] > length:
        raise ArgumentError(f"`episodes[{longest}]` has {lengths[longest]} steps, more than `length={length}`.")
    filled, places = [], {}
    for k in sorted(range(len(lengths)), key=lambda k: -lengths[k]):
        lane = next((i for i, n in enumerate(filled) if n + lengths[k] <= length), len(filled))
        if lane == len(filled):
            filled.append(0)
        places[k] = (lane, filled[lane])
        filled[lane] += lengths[k]
    return [places[k] for k in range(len(lengths))]


def _checked(episodes: Sequence[PyTree]) -> list[tuple[PyTree, PyTree, PyTree]]:
    """Episodes as triples of numpy arrays of one structure, each of one length."""
    if not isinstance(episodes, list | tuple) or not episodes:
        raise ArgumentTypeError(f"`packed` takes a list of episodes, `(inputs, targets)` each, got {short(episodes)}.")
    trees = []
    for k, episode in enumerate(episodes):
        name = f"episodes[{k}]"
        if not isinstance(episode, list | tuple) or not 1 <= len(episode) <= 3:
            raise ArgumentTypeError(
                f"`{name}` is {short(episode)}; expected `(inputs, targets)`, with a mask or without."
            )
        check_arrays(name, tuple(episode))
        tree = (*jax.tree.map(np.asarray, tuple(episode)), *[None] * (3 - len(episode)))
        steps = {struct_of(f"`{name}`", a).shape[:1] for a in jax.tree.leaves(tree)}
        if len(steps) != 1 or steps & {(), (0,)}:
            raise ArgumentError(f"`{name}` holds {describe(tree, name)}; expected arrays of one number of steps.")
        if tree[2] is not None and np.shape(tree[2]) != next(iter(steps)):
            raise ArgumentError(
                f"the mask of `{name}` has shape {list(np.shape(tree[2]))}; expected one weight per step."
            )
        trees.append(tree)
    for k, tree in enumerate(trees):
        _check_like(k, tree, trees[0])
    return trees


def _check_like(k: int, tree: PyTree, first: PyTree) -> None:
    """All episodes are of one structure, and their arrays of one shape at each step."""
    if jax.tree.structure(tree) != jax.tree.structure(first):
        raise ArgumentError(
            f"`episodes[{k}]` holds {describe(tree, 'episode')}, and `episodes[0]` {describe(first, 'episode')}: they "
            "must have one structure."
        )
    for (path, a), (_, b) in zip(leaves_with_paths(tree), leaves_with_paths(first), strict=True):
        if a.shape[1:] != b.shape[1:] or a.dtype != b.dtype:
            at = format_path(path, "episode")
            raise ArgumentError(
                f"`episodes[{k}]` is {a.dtype}{list(a.shape)} at {at} and `episodes[0]` {b.dtype}{list(b.shape)}: they "
                "may differ in their first axis (time) only."
            )
