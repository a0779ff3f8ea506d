"""A compiled model, whatever rule it learns by."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace

import jax
import numpy as np

from .._compat import is_live
from ..compiler.analysis import Facts
from ..compiler.ir import Bound, PyTree


class Model:
    """What is known of a model, the way between its own values and plain arrays, and the model at another batch size.

    `at_batch` raises for a model whose states and inputs have no batch axis in common.
    """

    def __init__(self, facts: Facts, bound: Bound, at_batch: Callable[[int], Model]):
        self.facts, self.bound, self.at_batch = facts, bound, at_batch
        self._values: tuple[PyTree, PyTree] | None = None
        self.initial()  # parameters and states are those of this moment

    def with_lanes(self, lanes: int) -> Model:
        """This model, with its present values, with lanes that may restart on their own."""
        other = copy(self)
        other.facts = replace(self.facts, lanes=lanes)
        return other

    def initial(self) -> tuple[PyTree, PyTree]:
        """Parameters and states that the model was compiled with.

        Values of a trace that has ended since are read again: they stand for nothing any more.
        """
        values = self._values
        if values is None or not is_live(values):
            params, hidden, other = self.bound.read()
            # Copies: who changes an array or a dictionary in place afterwards does not change the learner.
            self._values = values = jax.tree.map(_copied, (params, self.bound.join(hidden, other)))
        return values


def _copied(leaf: PyTree) -> PyTree:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
