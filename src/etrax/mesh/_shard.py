"""From what a user asks for (patterns over paths, or a word) to the mesh axis that cuts each dimension of a leaf."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from .._arguments import check_whole, short
from .._errors import ArgumentError, ArgumentTypeError
from ..compiler.analysis import Facts, OpNode, Relation
from ..compiler.ir import Leaf, Role, format_path
from ..compiler.opened import fixed_examples, param_grads
from ..learn import Shard
from ..runtime import Transport, site_math

# The mesh axis that cuts each dimension of an array; None where it is not cut.
Dims = tuple[str | None, ...]

ROOTS = {Role.PARAM: "params", Role.HIDDEN: "hidden", Role.OTHER: "hidden", Role.INPUT: "inputs"}
WORDS = ("batch", "neuron", "batch+neuron")
# Names of mesh axes that say what they cut.
_AXIS_NAMES = {
    "batch": ("batch", "data", "sample", "samples"),
    "neuron": ("neuron", "neurons", "model", "unit", "units"),
}


def checked_mesh(mesh: object, shard: object) -> tuple[Mesh, Shard]:
    """A mesh and a layout over it, or an error that says what they are instead."""
    if not isinstance(mesh, Mesh):
        what = "was not given" if mesh is None else f"is a {type(mesh).__name__}"
        raise ArgumentTypeError(
            f"`mesh` {what}: with `shard`, pass a `jax.sharding.Mesh`, as `jax.make_mesh` makes it."
        )
    if isinstance(shard, str) and shard in WORDS:
        return mesh, shard
    if not isinstance(shard, Mapping) or not all(
        isinstance(k, str) and isinstance(v, PartitionSpec) for k, v in shard.items()
    ):
        raise ArgumentTypeError(
            f"`shard` is {short(shard)}; expected {', '.join(map(repr, WORDS))}, or a dictionary from patterns over "
            "paths to `PartitionSpec`s: {'params/w': P(None, 'neuron'), 'hidden/.*': P('batch', 'neuron')}."
        )
    return mesh, shard


def layout(facts: Facts, mesh: Mesh, shard: Shard) -> list[Dims]:
    """Per input leaf of the step, the axis of the mesh that cuts each of its dimensions."""
    leaves = facts.step.ins
    if isinstance(shard, str):
        dims = _by_word(facts, mesh, shard)
    else:
        dims = _by_pattern(leaves, mesh, shard)
        _cut_inputs(leaves, dims)
    for leaf, axes in zip(leaves, dims, strict=True):
        _check_divides(leaf, axes, mesh)
    return dims


def _by_pattern(leaves: Sequence[Leaf], mesh: Mesh, shard: Mapping[str, PartitionSpec]) -> list[Dims]:
    names = ["/".join(map(str, (ROOTS[leaf.role], *leaf.path))) for leaf in leaves]
    dims: list[Dims] = [(None,) * len(leaf.aval.shape) for leaf in leaves]
    for pattern, spec in shard.items():
        try:
            matching = [i for i, n in enumerate(names) if re.fullmatch(pattern, n) or re.fullmatch(pattern, n + "/")]
        except re.error as error:
            raise ArgumentError(f"`shard`: {pattern!r} is no regular expression: {error}.") from error
        if not matching:
            some = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            raise ArgumentError(f"`shard`: the pattern {pattern!r} matches no path. There are: {some}.")
        for i in matching:
            dims[i] = _dims(leaves[i], pattern, spec, mesh)
    return dims


def _dims(leaf: Leaf, pattern: str, spec: PartitionSpec, mesh: Mesh) -> Dims:
    rank = len(leaf.aval.shape)
    if len(spec) > rank:
        raise ArgumentError(
            f"`shard`: {pattern!r} gives {spec} to {format_path(leaf.path, ROOTS[leaf.role])}, which has {rank} axes "
            f"(shape {list(leaf.aval.shape)}). Inputs are those of one step, without the axis of time."
        )
    dims = []
    for entry in (*spec, *(None,) * (rank - len(spec))):
        if isinstance(entry, tuple) and len(entry) > 1:
            raise ArgumentError(f"`shard`: {pattern!r} cuts one axis along several of the mesh, {entry}: use one.")
        axis = entry[0] if isinstance(entry, tuple) and entry else entry or None
        if axis is not None and axis not in mesh.shape:
            raise ArgumentError(f"`shard`: {pattern!r} names the axis {axis!r}; the mesh has {list(mesh.shape)}.")
        dims.append(axis)
    return tuple(dims)


def _cut_inputs(leaves: Sequence[Leaf], dims: list[Dims]) -> None:
    """Inputs that were not named are cut as the samples of the states are."""
    states = [(leaf, d) for leaf, d in zip(leaves, dims, strict=True) if leaf.role in (Role.HIDDEN, Role.OTHER)]
    firsts = {(leaf.aval.shape[0], d[0]) for leaf, d in states if len(d) > 1 and d[0] is not None}
    for i, leaf in enumerate(leaves):
        if leaf.role is Role.INPUT and not any(dims[i]) and len(firsts) == 1:
            size, axis = next(iter(firsts))
            if leaf.aval.shape[:1] == (size,):
                dims[i] = (axis, *dims[i][1:])


def mesh_axes(mesh: Mesh, word: str) -> tuple[str | None, str | None]:
    """The mesh axes of samples and of neurons that a word asks for: by their names, else in this order."""
    names = list(mesh.shape)
    asked = word.split("+")
    if len(names) < len(asked):
        raise ArgumentError(f"`shard={word!r}` needs a mesh of {len(asked)} axes; this one has {names}.")
    named = {w: next((n for n in names if n in alike), None) for w, alike in _AXIS_NAMES.items() if w in asked}
    rest = iter([n for n in names if n not in named.values()])
    axes = {w: n if n is not None else next(rest) for w, n in named.items()}
    return axes.get("batch"), axes.get("neuron")


def _by_word(facts: Facts, mesh: Mesh, word: str) -> list[Dims]:
    batch, neuron = mesh_axes(mesh, word)
    step, dims = facts.step, []
    states = [leaf for leaf in step.states if leaf.aval.shape]
    samples = {leaf.aval.shape[0] for leaf in states if len(leaf.aval.shape) > (1 if neuron else 0)}
    if batch and len(samples) != 1:
        raise ArgumentError(
            f"`shard={word!r}` needs states whose first axis is the batch; here these are {sorted(samples)}. "
            "Say by patterns what is cut: `shard={'hidden/.*': P('batch'), 'inputs/.*': P('batch')}`."
        )
    for leaf in step.ins:
        axes: list[str | None] = [None] * len(leaf.aval.shape)
        if leaf.role is not Role.PARAM and batch and leaf.aval.shape[:1] == (next(iter(samples)),):
            axes[0] = batch
        if leaf.role in (Role.HIDDEN, Role.OTHER) and neuron and axes and axes[-1] is None:
            axes[-1] = neuron if leaf.aval.shape[-1] % mesh.shape[neuron] == 0 and _learns(facts, leaf) else None
        dims.append(tuple(axes))
    if neuron:
        if not any(neuron in d for d in dims):
            sizes = sorted({leaf.aval.shape[-1] for leaf in states})
            raise ArgumentError(
                f"`shard={word!r}`: the mesh has {mesh.shape[neuron]} devices along {neuron!r}, which divides the last "
                f"axis of no state (sizes {sizes}). Use a number of neurons that is a multiple of it, or another mesh."
            )
        _cut_params(facts, dims, mesh.shape[neuron], neuron)
    return dims


def _learns(facts: Facts, leaf: Leaf) -> bool:
    """Whether a leaf belongs to a hidden group: keys and counters do not, and are not cut."""
    return any(facts.states[i] is leaf for g in facts.groups for i in g.leaves)


def _cut_params(facts: Facts, dims: list[Dims], count: int, neuron: str) -> None:
    """Cut each parameter along the axis whose slices act on the neurons of one device each, if it has such an axis.

    Parameters that reach no cut state (readouts) stay whole here; `Meshed` cuts them where their gradients are made.
    """
    for p, devices in _devices_of_params(facts, dims, count, neuron).items():
        d = _cut_axis(devices, count)
        if d is not None:
            dims[p] = tuple(neuron if k == d else None for k in range(devices.ndim))
    for j, site in enumerate(facts.sites):
        # An op that reaches its states through other ops (a reset gate) is cut along its outputs.
        columns = site.rule.columns(site.call)
        if columns is None or columns.new or len(site.params) != 1 or not facts.remembers(OpNode(j)):
            continue
        (p,), shape = site.params, site.call.w.shape
        if not any(dims[p]) and facts.step.ins[p].aval.shape == shape and shape[columns.weight] % count == 0:
            dims[p] = tuple(neuron if k == len(shape) + columns.weight else None for k in range(len(shape)))


@jax.ensure_compile_time_eval()
def _devices_of_params(facts: Facts, dims: Sequence[Dims], count: int, neuron: str) -> dict[int, np.ndarray]:
    """Per parameter, the device along `neuron` that holds all positions an element acts on within a step.

    NaN is an element that acts on none; parameters of which an element acts on several devices are left out. The mean
    of the device's number over those positions, and of its square, are gradients: those of the numbers themselves.
    """
    step = facts.step
    params = [jnp.ones(leaf.aval.shape, leaf.aval.dtype) for leaf in step.select(Role.PARAM)]
    fixed = fixed_examples(step, facts.sites)
    sums: list[dict[int, Array]] = [{}, {}, {}]
    for r in facts.relations:
        numbers = _devices_of_outputs(facts, r, dims, count, neuron)
        if numbers is None:
            continue
        site, there = facts.sites[r.site], ~np.isnan(numbers)
        data = [jnp.ones(a.shape, a.dtype) for a in site_math.data_structs(site)]
        for power, of_site in enumerate(sums):
            bar = jnp.asarray(np.where(there, numbers, 0) ** power * there, site.call.out.dtype)
            bar = jnp.broadcast_to(site_math.beside_loops(site, bar)[None], (1, *site.y_shape))
            grad = site_math.grad(site, fixed[r.site], data, bar)
            of_site[r.site] = of_site[r.site] + grad if r.site in of_site else grad
    if not sums[0]:
        return {}
    grads = [param_grads(facts.step, facts.sites, params, of_site) for of_site in sums]
    one, mean, square = ([np.real(np.asarray(g)).astype(np.float64) for g in leaves] for leaves in grads)
    devices = {}
    for p, (n, a, b) in enumerate(zip(one, mean, square, strict=True)):
        with np.errstate(all="ignore"):
            a, b = a / np.where(n == 0, np.nan, n), b / np.where(n == 0, np.nan, n)
        if not (np.abs(b - a**2) > 1e-3).any() and not np.isnan(a).all():
            devices[p] = np.round(a)
    return devices


def _devices_of_outputs(
    facts: Facts, relation: Relation, dims: Sequence[Dims], count: int, axis: str
) -> np.ndarray | None:
    """The number along a mesh axis of the device that holds the position of each output of a relation's op.

    NaN is an output that reaches no position; None, that the group is not cut along the axis, or that an output reaches
    several positions (a mean of units), which may be on several devices.
    """
    if not relation.representable:
        return None
    group, first = facts.group(relation.group), facts.step.first_state
    numbers = np.zeros(group.num_positions)
    for i, place in zip(group.leaves, group.place, strict=True):
        axes, shape = dims[first + i], facts.states[i].aval.shape
        if axis not in axes:
            return None
        numbers[place.reshape(-1)] = np.broadcast_to(_chunks(shape, axes.index(axis), count), shape).reshape(-1)
    places = relation.places
    return np.where(places >= 0, numbers[np.maximum(places, 0)], np.nan)


def _chunks(shape: Sequence[int], axis: int, count: int) -> np.ndarray:
    """Which of `count` equal slices along an axis an element is in, broadcastable to the shape."""
    return (np.arange(shape[axis]) * count // shape[axis]).reshape([-1 if k == axis else 1 for k in range(len(shape))])


def _cut_axis(devices: np.ndarray, count: int) -> int | None:
    """The axis whose equal slices are those of the devices, if there is one; NaN fits everywhere."""
    for d, n in enumerate(devices.shape):
        if n and n % count == 0 and np.all(np.isnan(devices) | (devices == _chunks(devices.shape, d, count))):
            return d
    return None


@jax.ensure_compile_time_eval()
def trace_dims(
    facts: Facts, transport: Transport[Any], relations: Sequence[Relation], dims: Sequence[Dims], mesh: Mesh
) -> dict[int, Dims]:
    """How the leaves of a trace lie, by number: with the samples and the positions that their entries act on.

    Only leaves of the shape of an op's trace, or of its output, are known here.
    """
    leaves, tree = jax.tree.flatten(jax.eval_shape(transport.init))
    by_site = transport.parts(jax.tree.unflatten(tree, list(range(len(leaves)))))
    fixed, cut, samples_first = fixed_examples(facts.step, facts.sites), {}, transport.samples_first()
    for r in relations:
        site = facts.sites[r.site] if r.copies is None else r.copies.site
        order = (1, 0) if r.site in samples_first else (0, 1)  # in which the first two axes are slots and samples
        for axis, count in mesh.shape.items():
            numbers = _devices_of_outputs(facts, r, dims, count, axis)
            if numbers is None:
                continue
            spread = np.asarray(site_math.spread(site, fixed[r.site], jnp.asarray(numbers)))
            for i in by_site.get(r.site, ()):
                shape = leaves[i].shape
                shape = (*(shape[n] for n in order), *shape[2:]) if len(shape) > 1 else shape
                for like, at in ((site_math.trace_shape(site), spread), (numbers.shape, numbers)):
                    d, lead = _cut_axis(at, count), len(shape) - len(like)
                    if d is not None and lead >= 0 and shape[lead:] == like:
                        axes = list(cut.get(i, (None,) * len(shape)))
                        axes[order[lead + d] if lead + d < 2 else lead + d] = axis
                        cut[i] = tuple(axes)
                        break
    return cut


def _check_divides(leaf: Leaf, dims: Dims, mesh: Mesh) -> None:
    for d, (n, axis) in enumerate(zip(leaf.aval.shape, dims, strict=True)):
        if axis is not None and n % mesh.shape[axis]:
            raise ArgumentError(
                f"`shard` cuts axis {d} of {format_path(leaf.path, ROOTS[leaf.role])} (shape {list(leaf.aval.shape)}) "
                f"along {axis!r}, which has {mesh.shape[axis]} devices: they do not divide {n}. Make it a multiple of "
                f"{mesh.shape[axis]} ({n + -n % mesh.shape[axis]} is the next), or use another mesh."
            )


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
    aligned = np.full((parts, int(counts.max(initial=0))), -1)
    for part, (n, end) in enumerate(zip(counts, np.cumsum(counts), strict=True)):
        aligned[part, :n] = order[end - n : end]
    return aligned.reshape(-1)
