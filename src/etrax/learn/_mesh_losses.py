"""The loss of one step on one device of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from .._compat import open_jaxpr
from ..ir import PyTree, Role, TreeDef, leaves_with_paths
from ..sharding import Dims, Local, Walk
from ._sequence import Losses

if TYPE_CHECKING:
    from ._mesh_parts import Part


def padded(spec: PartitionSpec, a: Any) -> Dims:
    return (*spec, *(None,) * (jnp.ndim(a) - len(spec)))


def whole_struct(a: Any, dims: Dims, sizes: Mapping[str, int]) -> jax.ShapeDtypeStruct:
    shape = tuple(n if axis is None else n * sizes[axis] for n, axis in zip(jnp.shape(a), dims, strict=True))
    return jax.ShapeDtypeStruct(shape, jnp.result_type(a))


class LocalLosses:
    """The loss of one step on one device: its share of a sum over devices, or the whole where all of them have it.

    `partial` are the axes along which it is a share, known once it has run; `where` is the device that runs it.
    """

    keep_outputs = False

    def __init__(self, losses: Losses, part: Part, along: PyTree, state_dims: Sequence[Dims]):
        self.losses, self.part, self.state_dims = losses, part, state_dims
        specs = jax.tree.leaves(along, is_leaf=lambda s: isinstance(s, PartitionSpec))
        self.specs, self.partial = specs, frozenset[str]()
        self.where = part.device.where()

    def __call__(self, outs: list[Array], along: PyTree) -> tuple[Array, list[Array]]:
        walk = self.part.device.walk_on_any(self.where)
        ((loss,), _) = self._partitioned(walk, lambda *given: self.losses(*given)[0], outs, along)
        self.partial = loss.place.partial
        return jnp.asarray(loss.value), []

    def _partitioned(
        self, walk: Walk, f: Callable[[list[Array], PyTree], PyTree], outs: list[Array], along: PyTree
    ) -> tuple[list[Local], TreeDef]:
        """A function of all outputs and of what runs along, on this device's."""
        device, places = self.part.device, self.part.local.outputs
        leaves, tree = jax.tree.flatten(along)
        dims = [padded(PartitionSpec(*tuple(s)[1:]), a) for s, a in zip(self.specs, leaves, strict=True)]
        whole = [whole_struct(a, d, device.sizes) for a, d in zip(leaves, dims, strict=True)]
        shown = [whole_struct(o, p.dims, device.sizes) for o, p in zip(outs, places, strict=True)]
        run = lambda outs, leaves: f(outs, jax.tree.unflatten(tree, leaves))  # noqa: E731
        closed, shape = jax.make_jaxpr(run, return_shape=True)(shown, whole)
        given = [Local(o, p, s.shape, None, True) for o, p, s in zip(outs, places, shown, strict=True)]
        given += [Local(a, device.place_of_data(d), w.shape) for a, d, w in zip(leaves, dims, whole, strict=True)]
        return walk(*open_jaxpr(closed), given), jax.tree.structure(shape)

    def read(self, f: Callable[[PyTree, PyTree], PyTree], outs: list[Array], along: PyTree) -> PyTree:
        """Numbers per sample, or per element of a state, come as this device's; others whole."""
        walk = self.part.device.walk_on_any(self.where)
        found, tree = self._partitioned(walk, lambda outs, along: self.losses.read(f, outs, along), outs, along)
        step = self.part.program.facts.step
        # A dictionary may have whole paths for keys; what comes alone is of samples, also where a state has no path.
        keys = [path for path, _ in leaves_with_paths(jax.tree.unflatten(tree, [0.0] * len(found)))]
        paths = [k[0] if len(k) == 1 and isinstance(k[0], tuple) else k or ("",) for k in keys]
        known = {leaf.path: d for leaf, d in zip(step.states, self.state_dims, strict=True)}
        samples = {d[0] for d in self.state_dims if d}
        values = []
        for path, o in zip(paths, found, strict=True):
            dims: Dims = known.get(path, (next(iter(samples)) if len(samples) == 1 else None,))
            own = (
                dims[len(dims) - len(o.shape) :] if path in known else (*dims, *(None,) * len(o.shape))[: len(o.shape)]
            )
            own = tuple(None if n == 1 else a for n, a in zip(o.shape, own, strict=True))
            values.append(walk.put(o, own, frozenset(a for a in own if a)).value)
        return jax.tree.unflatten(tree, values)

    def whole(self, loss: Array) -> Array:
        axes = tuple(a for a in self.part.device.sizes if a in self.partial)
        return lax.psum(loss, axes) if axes else loss

    def dtype(self, along: PyTree) -> jnp.dtype:
        outs = [leaf.aval for leaf in self.part.program.facts.step.select(Role.OUTPUT)]
        return jax.eval_shape(lambda o, a: self(o, jax.tree.map(lambda v: v[0], a))[0], outs, along).dtype

    def _summed(self, a: Array) -> Array:
        """What devices found of their samples of the mask, added up."""
        spec = self.specs[-1]
        return lax.psum(a, spec[1]) if len(spec) > 1 and spec[1] is not None else a

    def total(self, along: PyTree, steps: int) -> Array | int:
        if self.losses.reduction == "sum" or along[1] is None:
            return self.losses.total(along, steps)
        found = self._summed(along[1].sum())
        return jnp.where(found == 0, 1, found)

    def seen(self, along: PyTree) -> Array:
        return self._summed((along[1] != 0).sum()) > 0
