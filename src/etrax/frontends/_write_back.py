"""Trained values back into the module that they came from."""

from __future__ import annotations

from typing import Any

import jax

from .._errors import ArgumentError, ArgumentTypeError
from ..compiler.ir import PyTree, format_path, leaves_with_paths
from ._brainstate import is_brainstate_module
from ._equinox import is_equinox_module
from ._flax import is_nnx_module
from ._units import attach, conform


def write_back(module: Any, params: PyTree = None, state: Any = None) -> Any:
    """Put trained parameters, and the states that they ended in, into the module that was compiled.

    `params` are as every function of the learner returns them, `state` is a `LearnerState` or its `hidden`. Modules of
    brainstate and NNX are changed in place and returned; Equinox's cannot change: the new one is returned, and states,
    which it does not hold, are not taken. Everything is checked before anything is written.

    >>> import etrax, jax, jax.numpy as jnp
    >>> from flax import nnx
    >>> cell = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))
    >>> learner = etrax.compile(cell, "d_rtrl", jnp.ones(3), hidden=jnp.zeros(4))
    >>> _ = etrax.write_back(cell, jax.tree.map(jnp.zeros_like, learner.params))
    >>> float(abs(cell.dense_i.kernel[...]).sum())
    0.0
    """
    hidden = getattr(state, "hidden", state)
    if is_brainstate_module(module):
        return _into_brainstate(module, params, hidden)
    if is_nnx_module(module):
        return _into_nnx(module, params, hidden)
    if is_equinox_module(module):
        return _into_equinox(module, params, hidden)
    raise ArgumentTypeError(
        f"`module` is a {type(module).__name__}; pass a module of brainstate, NNX or Equinox. A plain function has no "
        "values to write to: its parameters are the tree that you hold."
    )


def _into_equinox(module: Any, params: PyTree, hidden: PyTree) -> Any:
    import equinox as eqx

    if hidden is not None:
        raise ArgumentError(
            "`state` was given for an Equinox module, which holds none: call `etrax.write_back(module, params)`, and "
            "keep the state as it is."
        )
    if params is None:
        return module
    _check_leaves("params", params, eqx.filter(module, eqx.is_array))
    return eqx.combine(params, module)


def _into_nnx(module: Any, params: PyTree, hidden: PyTree) -> Any:
    from flax import nnx

    if isinstance(hidden, dict) and hidden.keys() == {"carry", "variables"}:
        hidden = hidden["variables"]
    now = nnx.state(module)
    for what, tree in (("params", params), ("state", hidden)):
        if tree is not None:
            if not isinstance(tree, nnx.State):
                raise ArgumentTypeError(
                    f"`{what}` is a {type(tree).__name__}; pass the `nnx.State` that the learner returned."
                )
            _check_leaves(what, tree, now)
    for tree in (params, hidden):
        if tree is not None:
            nnx.update(module, jax.tree.map(lambda a: a, tree))
    return module


def _into_brainstate(module: Any, params: PyTree, hidden: PyTree) -> Any:
    found: list[tuple[Any, Any]] = []
    for what, tree in (("params", params), ("state", hidden)):
        values = dict(leaves_with_paths({} if tree is None else tree))
        taken: set[Any] = set()
        for path, own in module.states().items():
            inner = [(*path, *rest) for rest, _ in leaves_with_paths(own.value)]
            if not all(p in values for p in inner):
                continue
            taken.update(inner)
            value = attach(jax.tree.structure(own.value), [values[p] for p in inner])
            conform(what, path, own.value, value)
            _check_leaves(what, value, own.value, path)
            found.append((own, value))
        for path in values.keys() - taken:
            raise ArgumentError(f"`{what}` has {format_path(path)}, but the module has no state there.")
    for own, value in found:
        own.value = value
    return module


def _check_leaves(what: str, given: PyTree, own: PyTree, root: tuple[Any, ...] = ()) -> None:
    """Every value given has a place of its shape in the module."""
    places = dict(leaves_with_paths(own))
    for path, value in leaves_with_paths(given):
        if path not in places:
            raise ArgumentError(f"`{what}` has {format_path((*root, *path))}, but the module has nothing there.")
        if jax.numpy.shape(value) != jax.numpy.shape(places[path]):
            raise ArgumentError(
                f"`{what}` has {format_path((*root, *path))} of shape {list(jax.numpy.shape(value))}, but the module's "
                f"is {list(jax.numpy.shape(places[path]))}."
            )
