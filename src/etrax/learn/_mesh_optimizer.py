"""An optimizer over whole parameters, on the slices of a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from .._compat import open_jaxpr
from ..ir import PyTree, Role, Step, leaves_with_paths
from ..sharding import Dims, Local, Place, Walk
from ._checks import Optimizer
from ._mesh_losses import whole_struct


def update_slices(
    walk: Walk, param_dims: Sequence[Dims], optimizer: Optimizer, opt_specs: PyTree, grads: PyTree, opt_state: PyTree,
    params: PyTree,
) -> tuple[PyTree, PyTree]:  # fmt: skip
    """Updates and new state, which may be made of all gradients (a norm of them, for one)."""
    opt_dims = [tuple(s) for s in jax.tree.leaves(opt_specs, is_leaf=lambda s: isinstance(s, PartitionSpec))]
    opt_leaves, opt_tree = jax.tree.flatten(opt_state)
    opt_dims = [(*d, *(None,) * (np.ndim(a) - len(d))) for d, a in zip(opt_dims, opt_leaves, strict=True)]
    dims = [*param_dims, *opt_dims, *param_dims]
    values = [*jax.tree.leaves(grads), *opt_leaves, *jax.tree.leaves(params)]
    whole = [whole_struct(v, d, walk.sizes) for v, d in zip(values, dims, strict=True)]
    n, m, tree = len(param_dims), len(opt_dims), jax.tree.structure(params)

    def run(*leaves: Array) -> list[Array]:
        parts = [list(leaves[:n]), list(leaves[n : n + m]), list(leaves[n + m :])]
        trees = zip((tree, opt_tree, tree), parts, strict=True)
        return jax.tree.leaves(optimizer.update(*(jax.tree.unflatten(t, p) for t, p in trees)))

    body = open_jaxpr(jax.make_jaxpr(run)(*whole))
    outs = walk(*body, [Local(v, Place(d), w.shape) for v, d, w in zip(values, dims, whole, strict=True)])
    put = [
        walk.put(o, d, frozenset(a for a in d if a)).value for o, d in zip(outs, [*param_dims, *opt_dims], strict=True)
    ]
    return jax.tree.unflatten(tree, put[:n]), jax.tree.unflatten(opt_tree, put[n:])


def cut_like_params(step: Step, dims: Sequence[Dims], opt_state: PyTree) -> PyTree:
    """The state of an optimizer is cut as the parameter whose path its own path ends in."""
    known = {leaf.path: (leaf.aval.shape, d) for leaf, d in zip(step.select(Role.PARAM), dims, strict=False)}

    def one(path: tuple[Any, ...], a: Any) -> PartitionSpec:
        for n in range(len(path) + 1):
            shape, own = known.get(path[n:], ((), ()))
            if own and shape == jnp.shape(a):
                return PartitionSpec(*own)
        return PartitionSpec()

    leaves = [one(path, a) for path, a in leaves_with_paths(opt_state)]
    return jax.tree.unflatten(jax.tree.structure(opt_state), leaves)
