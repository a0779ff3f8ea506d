"""Parameters after an update, and a projection that puts them back where they are allowed to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from .._arguments import check_arrays
from .._compat import shape_struct
from .._errors import ArgumentError, EtraxError
from ..compiler.ir import PyTree, describe, explain, explained, format_path, leaves_with_paths
from ._checks import Optimizer, with_loss_value


@dataclass(frozen=True)
class Projected:
    """An optimizer whose updates end at `project(params)`; elsewhere it is one as optax makes them."""

    optimizer: Optimizer
    project: Callable[[PyTree], PyTree]

    def init(self, params: PyTree) -> PyTree:
        return self.optimizer.init(params)

    def update(self, grads: PyTree, state: PyTree, params: PyTree = None, **more: object) -> tuple[PyTree, PyTree]:
        if params is None:
            raise ArgumentError("an optimizer with a projection needs the parameters: `update(grads, state, params)`.")
        loss = more.get("value")
        inner = self.optimizer if loss is None else with_loss_value(self.optimizer, loss)  # type: ignore[arg-type]
        updates, state = inner.update(grads, state, params)
        new = self.projected(_moved(params, updates))
        return jax.tree.map(lambda a, b: a - b, new, params), state

    def projected(self, params: PyTree) -> PyTree:
        """What `project` makes of parameters, which must look as they did."""
        try:
            new = self.project(params)
        except EtraxError:
            raise
        except Exception as error:  # the user's code may raise anything
            text = f"{explain('`project`', error, {'params': params})}\nIt is called after every update."
            raise explained(ArgumentError, error, text) from error
        check_arrays("project(params)", new)
        before, after = (jax.tree.map(shape_struct, tree) for tree in (params, new))
        if before != after:
            raise ArgumentError(
                f"`project` returned {describe(new, 'params')}; expected parameters like those that it was given, "
                f"{describe(params, 'params')}."
            )
        return new


def updated(
    optimizer: Optimizer, loss: jax.Array, grads: PyTree, opt_state: PyTree, params: PyTree
) -> tuple[PyTree, PyTree]:
    """New parameters and the new state of the optimizer; a projection has the last word, to the last bit."""
    inner = optimizer.optimizer if isinstance(optimizer, Projected) else optimizer
    updates, new_state = with_loss_value(inner, loss).update(grads, opt_state, params)
    _check_same_types(opt_state, new_state)
    new = _moved(params, updates)
    return optimizer.projected(new) if isinstance(optimizer, Projected) else new, new_state


def _check_same_types(opt_state: PyTree, new_state: PyTree) -> None:
    """An update must leave the types of the optimizer's state as they are: the next one runs the same program."""
    if jax.tree.structure(opt_state) != jax.tree.structure(new_state):
        return  # JAX says what differs
    pairs = zip(leaves_with_paths(opt_state), jax.tree.leaves(new_state), strict=True)
    for path, before, after in ((path, shape_struct(a).dtype, shape_struct(b).dtype) for (path, a), b in pairs):
        if before != after:
            raise ArgumentError(
                f"the optimizer turns {format_path(path, 'opt_state')} of its state from {before} into {after}. "
                "A parameter that is to learn has to hold floating-point numbers (`2.0`, not `2`); one that is not "
                "belongs outside of the parameters. Otherwise make the optimizer keep the types of its state."
            )


def _moved(params: PyTree, updates: PyTree) -> PyTree:
    return jax.tree.map(lambda a, u: (a + u).astype(jnp.asarray(a).dtype), params, updates)
