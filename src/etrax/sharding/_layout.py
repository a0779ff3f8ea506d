"""From what a user asks for (patterns over paths, or a word) to how every leaf of the step is cut."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._arguments import check_whole, short
from .._errors import ArgumentError, ArgumentTypeError
from ..analysis import Facts, OpNode, StateNode
from ..ir import Leaf, PyTree, Role, format_path
from ..primitives import Dep, look_up
from ._step import Device, Dims, LocalStep, local_step

ROOTS = {Role.PARAM: "params", Role.HIDDEN: "hidden", Role.OTHER: "hidden", Role.INPUT: "inputs"}
WORDS = ("batch", "neuron", "batch+neuron")


class Shardings(NamedTuple):
    """Trees of `NamedSharding`: of parameters, states, trace, and inputs of a sequence (time first)."""

    params: PyTree
    hidden: PyTree
    trace: PyTree
    inputs: PyTree


def check_mesh(mesh: object, shard: object) -> None:
    """Refuse what is no mesh, or no layout of parameters over one."""
    if mesh is None and shard is None:
        return
    if not isinstance(mesh, Mesh):
        what = "was not given" if mesh is None else f"is a {type(mesh).__name__}"
        raise ArgumentTypeError(
            f"`mesh` {what}: with `shard`, pass a `jax.sharding.Mesh`, as `jax.make_mesh` makes it."
        )
    if isinstance(shard, str) and shard in WORDS:
        return
    if not isinstance(shard, Mapping) or not all(
        isinstance(k, str) and isinstance(v, PartitionSpec) for k, v in shard.items()
    ):
        raise ArgumentTypeError(
            f"`shard` is {short(shard)}; expected {', '.join(map(repr, WORDS))}, or a dictionary from patterns over "
            "paths to `PartitionSpec`s: {'params/w': P(None, 'neuron'), 'hidden/.*': P('batch', 'neuron')}."
        )


def layout(facts: Facts, mesh: Mesh, shard: str | Mapping[str, PartitionSpec]) -> list[Dims]:
    """Per input leaf of the step, the axis of the mesh that cuts each of its dimensions."""
    leaves = facts.step.ins
    if isinstance(shard, str):
        dims = _by_word(facts, mesh, shard)
    else:
        dims = _by_pattern(leaves, mesh, shard)
        _cut_inputs(leaves, dims)
    for leaf, own in zip(leaves, dims, strict=True):
        _check_divides(leaf, own, mesh)
    _check_positions(facts, dims, mesh)
    _check_edges(facts, dims, mesh)
    _check_params(facts, dims, mesh, shard)
    return dims


def name_of(leaf: Leaf) -> str:
    return "/".join(map(str, (ROOTS[leaf.role], *leaf.path)))


def _by_pattern(leaves: Sequence[Leaf], mesh: Mesh, shard: Mapping[str, PartitionSpec]) -> list[Dims]:
    names = [name_of(leaf) for leaf in leaves]
    dims: list[Dims] = [(None,) * len(leaf.aval.shape) for leaf in leaves]
    for pattern, spec in shard.items():
        try:
            found = [i for i, n in enumerate(names) if re.fullmatch(pattern, n) or re.fullmatch(pattern, n + "/")]
        except re.error as error:
            raise ArgumentError(f"`shard`: {pattern!r} is no regular expression: {error}.") from error
        if not found:
            some = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            raise ArgumentError(f"`shard`: the pattern {pattern!r} matches no path. There are: {some}.")
        for i in found:
            dims[i] = _dims(leaves[i], pattern, spec, mesh)
    return dims


def _dims(leaf: Leaf, pattern: str, spec: PartitionSpec, mesh: Mesh) -> Dims:
    rank = len(leaf.aval.shape)
    if len(spec) > rank:
        raise ArgumentError(
            f"`shard`: {pattern!r} gives {spec} to {format_path(leaf.path, ROOTS[leaf.role])}, which has {rank} axes "
            f"(shape {list(leaf.aval.shape)}). Inputs are those of one step, without the axis of time."
        )
    found = []
    for entry in (*spec, *(None,) * (rank - len(spec))):
        if isinstance(entry, tuple) and len(entry) > 1:
            raise ArgumentError(f"`shard`: {pattern!r} cuts one axis along several of the mesh, {entry}: use one.")
        axis = entry[0] if isinstance(entry, tuple) and entry else entry or None
        if axis is not None and axis not in mesh.shape:
            raise ArgumentError(f"`shard`: {pattern!r} names the axis {axis!r}; the mesh has {list(mesh.shape)}.")
        found.append(axis)
    return tuple(found)


def _cut_inputs(leaves: Sequence[Leaf], dims: list[Dims]) -> None:
    """Inputs that were not named are cut as the samples of the states are."""
    states = [(leaf, d) for leaf, d in zip(leaves, dims, strict=True) if leaf.role in (Role.HIDDEN, Role.OTHER)]
    firsts = {(leaf.aval.shape[0], d[0]) for leaf, d in states if len(d) > 1 and d[0] is not None}
    for i, leaf in enumerate(leaves):
        if leaf.role is Role.INPUT and not any(dims[i]) and len(firsts) == 1:
            size, axis = next(iter(firsts))
            if leaf.aval.shape[:1] == (size,):
                dims[i] = (axis, *dims[i][1:])


def _axes(mesh: Mesh, word: str) -> tuple[str | None, str | None]:
    """The axes of samples and of neurons: by their names, else in this order."""
    names = list(mesh.shape)
    asked = word.split("+")
    if len(names) < len(asked):
        raise ArgumentError(f"`shard={word!r}` needs a mesh of {len(asked)} axes; this one has {names}.")
    named = {w: next((n for n in names if n in alike), None) for w, alike in _ALIKE.items() if w in asked}
    rest = iter([n for n in names if n not in named.values()])
    found = {w: n if n is not None else next(rest) for w, n in named.items()}
    return found.get("batch"), found.get("neuron")


_ALIKE = {"batch": ("batch", "data", "sample", "samples"), "neuron": ("neuron", "neurons", "model", "unit", "units")}


def _by_word(facts: Facts, mesh: Mesh, word: str) -> list[Dims]:
    batch, neuron = _axes(mesh, word)
    step, dims = facts.step, []
    states = [leaf for leaf in step.states if leaf.aval.shape]
    samples = {leaf.aval.shape[0] for leaf in states if len(leaf.aval.shape) > (1 if neuron else 0)}
    if batch and len(samples) != 1:
        raise ArgumentError(
            f"`shard={word!r}` needs states whose first axis is the batch; here these are {sorted(samples)}. "
            "Say by patterns what is cut: `shard={'hidden/.*': P('batch'), 'inputs/.*': P('batch')}`."
        )
    for leaf in step.ins:
        own: list[str | None] = [None] * len(leaf.aval.shape)
        if leaf.role is not Role.PARAM and batch and leaf.aval.shape[:1] == (next(iter(samples)),):
            own[0] = batch
        if leaf.role in (Role.HIDDEN, Role.OTHER) and neuron and own and own[-1] is None:
            own[-1] = neuron if leaf.aval.shape[-1] % mesh.shape[neuron] == 0 and _grouped(facts, leaf) else None
        dims.append(tuple(own))
    if neuron:
        if not any(neuron in d for d in dims):
            sizes = sorted({leaf.aval.shape[-1] for leaf in states})
            raise ArgumentError(
                f"`shard={word!r}`: the mesh has {mesh.shape[neuron]} devices along {neuron!r}, which divides the last "
                f"axis of no state (sizes {sizes}). Use a number of neurons that is a multiple of it, or another mesh."
            )
        _cut_params(facts, dims, mesh, neuron)
    return dims


def _grouped(facts: Facts, leaf: Leaf) -> bool:
    """Whether a leaf holds states that learn: keys and counters are not cut."""
    return any(facts.states[i] is leaf for g in facts.groups for i in g.leaves)


def _cut_params(facts: Facts, dims: list[Dims], mesh: Mesh, neuron: str) -> None:
    """Parameters are cut where their outputs are states that are, then where the step asks for slices of them."""
    step, size = facts.step, mesh.shape[neuron]
    first = step.first_state
    params = [i for i, leaf in enumerate(step.ins) if leaf.role is Role.PARAM]
    for j, site in enumerate(facts.sites):
        groups = [facts.groups[r.group] for r in facts.relations if r.site == j]
        cut = all(neuron in dims[first + i] for g in groups for i in g.leaves)
        if not cut or len(site.params) != 1 or not facts.remembers(OpNode(j)):
            continue
        (p,) = site.params
        shape = step.ins[params[p]].aval.shape
        columns = site.rule.columns(site.call)
        same = site.call.w.shape == shape
        at = columns.weight if columns is not None and not columns.new and same else -1
        if shape and shape[at] % size == 0 and (same or site.call.out.shape[-1:] == shape[-1:]):
            own: list[str | None] = [None] * len(shape)
            own[at] = neuron
            dims[params[p]] = tuple(own)
    for p, wanted in _on_first(facts, dims, mesh).wanted.items():
        d, axis = next(iter(wanted.items()))
        own = list(dims[p])
        if axis == neuron and own[d] is None and neuron not in own and step.ins[p].aval.shape[d] % size == 0:
            own[d] = axis
            dims[p] = tuple(own)
    for p, _, axis in _on_first(facts, dims, mesh).strays:  # whole, they act on all that is computed with them
        dims[p] = tuple(a if a != axis else None for a in dims[p])


def _on_first(facts: Facts, dims: Sequence[Dims], mesh: Mesh) -> LocalStep:
    """The step of the first device."""
    sizes = {a: n for a, n in mesh.shape.items() if any(a in d for d in dims)}
    return local_step(facts, dims, Device(sizes, dict.fromkeys(mesh.shape, 0)))


def align_entries(rows: np.ndarray, num_rows: int, parts: int) -> np.ndarray:
    """The order in which the entries of a sparse matrix lie with their rows on so many devices; -1 is padding.

    Rows are cut into equal parts, and every part has equally many entries. Use it for the row, the column and the value
    of each entry; a padding has a row out of bounds (`num_rows`), which sums by segment leave out.

    >>> import etrax, numpy as np
    >>> etrax.align_entries(np.array([3, 0, 1, 0]), 4, 2)
    array([ 1,  3,  2,  0, -1, -1])
    """
    num_rows, parts = check_whole("num_rows", num_rows, "rows"), check_whole("parts", parts, "devices")
    try:
        rows = np.asarray(rows)
    except Exception as error:  # an object may raise anything as it is read
        raise ArgumentTypeError(f"`rows` is {short(rows)}; pass an array of row numbers.") from error
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise ArgumentTypeError(f"`rows` is {short(rows)}; pass a flat array of row numbers, one for each entry.")
    rows = rows.astype(np.int64)
    if num_rows % parts or (rows.size and not 0 <= rows.min() <= rows.max() < num_rows):
        raise ArgumentError(
            f"`align_entries` cuts {num_rows} rows into {parts} equal parts: give rows in 0 … {num_rows - 1}, and a "
            f"number of rows that {parts} divides."
        )
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows // (num_rows // parts), minlength=parts)
    found = np.full((parts, int(counts.max(initial=0))), -1)
    for part, (n, end) in enumerate(zip(counts, np.cumsum(counts), strict=True)):
        found[part, :n] = order[end - n : end]
    return found.reshape(-1)


def _check_divides(leaf: Leaf, dims: Dims, mesh: Mesh) -> None:
    for d, (n, axis) in enumerate(zip(leaf.aval.shape, dims, strict=True)):
        if axis is not None and n % mesh.shape[axis]:
            raise ArgumentError(
                f"`shard` cuts axis {d} of {format_path(leaf.path, ROOTS[leaf.role])} (shape {list(leaf.aval.shape)}) "
                f"along {axis!r}, which has {mesh.shape[axis]} devices: they do not divide {n}. Make it a multiple of "
                f"{mesh.shape[axis]} ({n + -n % mesh.shape[axis]} is the next), or use another mesh."
            )


def _check_positions(facts: Facts, dims: Sequence[Dims], mesh: Mesh) -> None:
    """States that act on each other position by position must be on one device."""
    first = facts.step.first_state
    for g in facts.groups:
        found = np.full(g.num_positions, -1, np.int64)
        for i, place in zip(g.leaves, g.place, strict=True):
            own = _device_numbers(facts.states[i].aval.shape, dims[first + i], mesh).reshape(-1)
            flat = place.reshape(-1)
            before = found[flat]
            found[flat] = own
            if ((before >= 0) & (before != own)).any() or (found[flat] != own).any():
                names = ", ".join(facts.state_name(k) for k in g.leaves)
                raise ArgumentError(
                    f"`shard` puts parts of one position of {names} on different devices: these states act on each "
                    "other within a step other than through weights. Cut them alike, or not along this axis."
                )


def _check_edges(facts: Facts, dims: Sequence[Dims], mesh: Mesh) -> None:
    """A state acts on states of its own device only, but through weights: blocks are read on all devices at once."""
    first = facts.step.first_state
    for source, target, dep in facts.edges.between(StateNode, StateNode):
        here, there = (
            _device_numbers(facts.states[n.index].aval.shape, dims[first + n.index], mesh).reshape(-1)
            for n in (source, target)
        )
        if not _stays(dep, here, there):
            a, b = (facts.state_name(n.index) for n in (source, target))
            cause = f" ({dep.cause})" if dep.cause else ""
            raise ArgumentError(
                f"`shard` puts elements of the state {a} on other devices than elements of {b} that they act on "
                f"without a weight in between{cause}. Cut both alike, or not along this axis."
            )


def _check_params(facts: Facts, dims: Sequence[Dims], mesh: Mesh, shard: object) -> None:
    """A parameter acts on states of its own device only, but through other weights: a trace is never sent."""
    for p, state, axis in sorted(_on_first(facts, dims, mesh).strays):
        leaf = facts.step.ins[p]
        cut = f" (cut as {PartitionSpec(*dims[p])})" if any(dims[p]) else ""
        raise ArgumentError(
            f"`shard={short(shard)}`: elements of the parameter {format_path(leaf.path, 'params')}{cut} act, within a "
            f"step, on elements of the state {facts.state_name(state)} on several devices along {axis!r}: its trace "
            "would have to be sent. Cut the parameter where its outputs are cut (entries of a sparse matrix lie with "
            "their row, in the order of `etrax.align_entries`), or do not cut the state along this axis."
        )


def _stays(dep: Dep, here: np.ndarray, there: np.ndarray) -> bool:
    """Whether what an element reaches is on its own device; numbers of devices are given by element."""
    if dep.part.labels is not None:
        blocks = np.full(int(dep.part.labels.max()) + 1, -1, np.int64)
        blocks[dep.part.labels] = there
        if (blocks[dep.part.labels] != there).any():
            return False
        there = blocks
    return all(bool(((m < 0) | (look_up(there, m) == here)).all()) for m in (m.reshape(-1) for m in dep.maps))


def _device_numbers(shape: Sequence[int], dims: Dims, mesh: Mesh) -> np.ndarray:
    number = np.zeros(shape, np.int64)
    for axis in mesh.shape:
        number *= mesh.shape[axis]
        if axis in dims:
            d = dims.index(axis)
            at = np.arange(shape[d]) // (shape[d] // mesh.shape[axis])
            number = number + at.reshape([-1 if k == d else 1 for k in range(len(shape))])
    return number


def named(mesh: Mesh, tree: PyTree) -> PyTree:
    """`NamedSharding`s of a tree of dimensions."""
    is_dims = lambda x: isinstance(x, tuple) and all(a is None or isinstance(a, str) for a in x)  # noqa: E731
    return jax.tree.map(lambda d: NamedSharding(mesh, PartitionSpec(*d)), tree, is_leaf=is_dims)


class Alone(NamedTuple):
    """What an axis of the mesh does alone: leaves of a trace (None if it is another tree), the number of its devices,
    and sizes that it cuts."""

    leaves: Sequence[Any] | None
    devices: int
    sizes: frozenset[int]


def cut_sizes(whole: Facts, part: Facts, devices: int) -> frozenset[int]:
    """Sizes of dimensions of states and of weight ops' arrays that are cut, also merged with those that follow.

    Merged with one before it, a dimension that is cut is in pieces: no slice of the merged one is a device's.
    """
    pairs = [(a.aval, b.aval) for a, b in zip(whole.step.ins, part.step.ins, strict=True)]
    for a, b in zip(whole.sites, part.sites, strict=False):
        pairs += zip((a.call.out, *a.call.operands), (b.call.out, *b.call.operands), strict=False)
    found = set()
    for a, b in pairs:
        if len(a.shape) == len(b.shape):
            cut = [d for d, (n, m) in enumerate(zip(a.shape, b.shape, strict=True)) if n == m * devices != m]
            found |= {math.prod(a.shape[d:end]) for d in cut for end in range(d + 1, len(a.shape) + 1)}
    return frozenset(found)


def place_like(axes: Mapping[str, Alone], whole: Sequence[Any]) -> list[Dims] | None:
    """How leaves are cut, from their shapes where only one axis of the mesh cuts; None if they are not the same leaves,
    or if what a device has is no slice of them."""
    found = [[None] * len(leaf.shape) for leaf in whole]
    for axis, (leaves, devices, sizes) in axes.items():
        if leaves is None or len(leaves) != len(whole):
            return None
        for own, part, leaf in zip(found, leaves, whole, strict=True):
            if len(part.shape) != len(leaf.shape) or part.dtype != leaf.dtype:
                return None
            cut = [d for d, (n, m) in enumerate(zip(part.shape, leaf.shape, strict=True)) if n != m]
            if len(cut) > 1 or any(part.shape[d] * devices != leaf.shape[d] or own[d] is not None for d in cut):
                return None
            if any(leaf.shape[d] not in sizes for d in cut):
                return None
            for d in cut:
                own[d] = axis  # type: ignore[call-overload]
    return [tuple(own) for own in found]
