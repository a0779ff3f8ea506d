"""Types that have no better name in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

# A tree of arrays in the containers of whoever made it: parameters, states, inputs, targets, outputs.
PyTree: TypeAlias = Any
LossFunction: TypeAlias = Callable[[PyTree, PyTree], Any]
# The structure of a tree without its leaves; what JAX calls it is not a type to pyright.
TreeDef: TypeAlias = Any
