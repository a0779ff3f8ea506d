"""The programs of a mesh's devices, run under `jax.shard_map`, each on its slices of the arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec, use_abstract_mesh

from .._compat import open_jaxpr, same_program, shape_struct
from .._errors import CompilationError
from ..ir import PyTree, interpret
from ..sharding import Device, LocalStep
from ._mesh_losses import padded
from ._program import Program


class Part(NamedTuple):
    """One device: where it is, its step, and the learner's program over that step."""

    device: Device
    local: LocalStep
    program: Program


def run_parts(
    mesh: Mesh, sizes: Mapping[str, int], parts: Sequence[Part], run: Callable[..., PyTree], args: PyTree, ins: PyTree,
    outs: PyTree,
) -> PyTree:  # fmt: skip
    """Run each device's part on its slices. Programs of devices may differ in constants (which entries of a sparse
    matrix they have): these are then cut over the mesh like any array."""
    if len(parts) == 1:
        return _mapped(mesh, partial(run, parts[0]), ins, outs)(*args)
    flat, tree = jax.tree.flatten(args)
    specs = jax.tree.leaves(ins, is_leaf=lambda s: isinstance(s, PartitionSpec))
    structs = [parts[0].device.struct(shape_struct(a), padded(s, a)) for a, s in zip(flat, specs, strict=True)]
    env, shapes, found = list(sizes.items()), [], []
    for part in parts:
        trace = lambda leaves, part=part: run(part, *jax.tree.unflatten(tree, leaves))  # noqa: E731
        closed, shape = jax.make_jaxpr(trace, axis_env=env, return_shape=True)(structs)
        found.append(open_jaxpr(closed))
        shapes.append(shape)
    jaxpr = found[0][0]
    if not all(same_program(jaxpr, other) for other, _ in found[1:]):
        raise CompilationError(
            "the devices of this mesh would run different programs: constants of the model (connections, masks) "
            "are of another kind on some of them. Order connections by the row that they are added to, with "
            "equally many for each device (`etrax.align_entries`)."
        )
    columns = list(zip(*(consts for _, consts in found), strict=True))
    differ = [i for i, c in enumerate(columns) if not all(np.array_equal(c[0], other) for other in c[1:])]
    stacked = [np.stack([np.asarray(v) for v in columns[i]]) for i in differ]

    def local(stacks: list[Array], leaves: list[Array]) -> PyTree:
        consts = [c[0] for c in columns]
        for i, s in zip(differ, stacks, strict=True):
            consts[i] = s[0]
        return jax.tree.unflatten(jax.tree.structure(shapes[0]), interpret(jaxpr, consts, leaves, lambda *_: None))

    own = [PartitionSpec(tuple(sizes))] * len(stacked)
    mapped = _mapped(mesh, local, (own, specs), outs)
    return mapped(stacked, flat)


def _mapped(mesh: Mesh, local: Callable[..., PyTree], ins: PyTree, outs: PyTree) -> Callable[..., PyTree]:
    """`jax.shard_map`, also where the user has set a mesh whose axes are of another type."""
    mapped = jax.shard_map(local, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)

    def call(*args: PyTree) -> PyTree:
        with use_abstract_mesh(mesh.abstract_mesh):
            return mapped(*args)

    return call
