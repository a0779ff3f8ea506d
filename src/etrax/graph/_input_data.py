"""Marks on an input: one step, or a stack of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import jax

from .._errors import ArgumentError, ArgumentTypeError

_Tree = TypeVar("_Tree")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SingleStepData:
    """An input of one step, the same as the bare data.

    >>> import jax.numpy as jnp
    >>> SingleStepData(jnp.ones(3)).first_step().shape
    (3,)
    """

    data: object

    def first_step(self) -> object:
        """The input of the first step."""
        return self.data


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MultiStepData:
    """Inputs of many steps, time along the first axis of every leaf. Compiling takes the first step as its example.

    >>> import jax.numpy as jnp
    >>> MultiStepData(jnp.ones((10, 3))).first_step().shape
    (3,)
    """

    data: object

    def first_step(self) -> object:
        """The input of the first step."""
        return jax.tree.map(lambda x: x[0], self.data)


def _is_marked(x: object) -> bool:
    return isinstance(x, SingleStepData | MultiStepData)


def first_steps(tree: _Tree) -> _Tree:
    """Put the input of one step, the first, in place of every mark."""
    return jax.tree.map(lambda x: x.first_step() if _is_marked(x) else x, tree, is_leaf=_is_marked)


def unmarked(tree: _Tree) -> tuple[_Tree, bool]:
    """Take the marks off, and say whether the data are those of many steps; all or none of them must be."""
    many = [isinstance(x, MultiStepData) for x in jax.tree.leaves(tree, is_leaf=_is_marked)]
    if any(many) and not all(many):
        raise ArgumentError("some inputs are `etrax.MultiStepData` and some are not: mark all of them, or none.")
    return jax.tree.map(lambda x: x.data if _is_marked(x) else x, tree, is_leaf=_is_marked), any(many)


def single_steps(tree: _Tree) -> _Tree:
    """Take the marks off arguments of one step; a stack of steps is refused."""
    if any(isinstance(x, MultiStepData) for x in jax.tree.leaves(tree, is_leaf=_is_marked)):
        raise ArgumentTypeError(
            "this runs one step, but an argument is `MultiStepData`: loop over its steps (`jax.lax.scan`, "
            "`brainstate.transform.for_loop`), and pass one step at a time."
        )
    return unmarked(tree)[0]
