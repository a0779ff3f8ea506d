"""Warnings that a learner gives once: what its rule says of the data, and a loss that a loop defines anew each time."""

from __future__ import annotations

import os
import warnings
from collections import Counter

import jax

from .._compat import is_concrete
from ..compiler.analysis import Facts
from ..compiler.ir import LossFunction, PyTree
from ..rules import Rule, RuleWarning, without_credit


class FirstWarnings:
    """Warns of the first sequence, and of the first one whose windows are too short for the rule."""

    def __init__(self, facts: Facts, rule: Rule):
        self._facts, self._rule = facts, rule
        self._of_data = self._of_window = False  # whether it has been said

    def __call__(self, inputs: PyTree, window: int, stacklevel: int = 3) -> None:
        leaves = jax.tree.leaves(inputs)
        if not self._of_data and is_concrete(leaves):
            self._of_data = True
            for text in self._rule.warns(self._facts, leaves):
                warnings.warn(text, RuleWarning, stacklevel=stacklevel)
        if not self._of_window:
            steps = [a.shape[0] for a in leaves if getattr(a, "shape", ())]
            text = without_credit(self._facts, self._rule, min([window, *steps]))
            if text:
                self._of_window = True
                warnings.warn(text, RuleWarning, stacklevel=stacklevel)


# So many functions from one line of code are a slip in a loop rather than a choice.
MANY = 10


class NewLosses:
    """Counts, for one learner, the losses that were compiled by the line that defines them; says it once a line.

    A loss that a loop defines is another function at each turn, and is compiled each time.
    """

    def __init__(self) -> None:
        self._seen: Counter[tuple[object, ...]] = Counter()

    def tell(self, name: str, loss_fn: LossFunction, options: tuple[object, ...]) -> None:
        """`name` is the learner's function that is compiled for a loss it has not seen with these options."""
        code = getattr(loss_fn, "__code__", None)
        if code is None:
            return
        definition = (name, code, options)
        self._seen[definition] += 1
        if self._seen[definition] == MANY:
            warnings.warn(
                f"`{name}` was compiled for {MANY} different functions that are all defined at "
                f"{os.path.basename(code.co_filename)}:{code.co_firstlineno} (`{code.co_name}`). Define the loss once, "
                "before the loop: for the same function nothing is compiled again.",
                stacklevel=6,
            )
