"""Marks on an input: one step, or a stack of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from .._errors import ArgumentTypeError


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class SingleStepData:
    """An input of one step, the same as the bare data.

    >>> import jax.numpy as jnp
    >>> SingleStepData(jnp.ones(3)).first_step().shape
    (3,)
    """

    data: Any

    def first_step(self) -> Any:
        """The input of the first step."""
        return self.data

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.data,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Any:
        return cls(*children)


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class MultiStepData:
    """Inputs of many steps, time along the first axis of every leaf. Compiling takes the first step as its example.

    >>> import jax.numpy as jnp
    >>> MultiStepData(jnp.ones((10, 3))).first_step().shape
    (3,)
    """

    data: Any

    def first_step(self) -> Any:
        """The input of the first step."""
        return jax.tree.map(lambda x: x[0], self.data)

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.data,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Any:
        return cls(*children)


def example_of(x: Any) -> Any:
    """One step of an argument, marked or not."""
    return x.first_step() if isinstance(x, (SingleStepData, MultiStepData)) else x


def single_step_of(x: Any) -> Any:
    """The data of an argument of one step; a stack of steps is refused."""
    if isinstance(x, MultiStepData):
        raise ArgumentTypeError(
            "this runs one step, but an argument is `MultiStepData`: loop over its steps (`jax.lax.scan`, "
            "`brainstate.transform.for_loop`), and pass one step at a time."
        )
    return x.data if isinstance(x, SingleStepData) else x
