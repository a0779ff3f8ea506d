"""Axes of the kind that `jax.make_mesh` makes, whose shardings are part of types, beside a learner on a mesh."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, use_abstract_mesh

from .._compat import is_concrete
from .._errors import ArgumentError
from ..compiler.ir import PyTree


def call_with_types(mesh: Mesh, run: Callable[..., PyTree], *args: PyTree) -> PyTree:
    """What `run` gives on a mesh whose own axes say nothing in types.

    If shardings are part of types where it is called, or of what it is given, they are of what it gives, so that both
    can be mixed.
    """
    types = _explicit_types(mesh, args)
    if types is None:
        return run(*args)
    if not is_concrete(args):
        raise ArgumentError(
            "a learner on a mesh is called inside `jax.jit` under `jax.set_mesh` with explicit axes, where each "
            "operation must say how its result is cut. Make the mesh with `jax.make_mesh(shape, names, axis_types="
            "(jax.sharding.AxisType.Auto,) * len(names))`, or call the learner outside `jit`."
        )
    callers_mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=types)

    def moved_to(target: Mesh, tree: PyTree) -> PyTree:
        def move(a: object) -> object:
            if not isinstance(a, jax.Array) or not isinstance(a.sharding, NamedSharding):
                return a
            return jax.device_put(a, NamedSharding(target, a.sharding.spec))

        return jax.tree.map(move, tree)

    with use_abstract_mesh(mesh.abstract_mesh):
        return moved_to(callers_mesh, run(*moved_to(mesh, args)))


def _explicit_types(mesh: Mesh, args: PyTree) -> tuple[AxisType, ...] | None:
    """Types of the axes of a mesh like this one, in force or of an array, if any is explicit."""
    meshes = [a.sharding.mesh for a in jax.tree.leaves(args) if isinstance(getattr(a, "sharding", None), NamedSharding)]
    for other in (jax.sharding.get_abstract_mesh(), *meshes):
        if AxisType.Explicit in other.axis_types and dict(other.shape) == dict(mesh.shape):
            return other.axis_types
    return None
