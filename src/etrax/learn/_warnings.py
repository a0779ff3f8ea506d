"""What a rule has to say of the data that it learns from, said once."""

from __future__ import annotations

import warnings

import jax

from .._compat import is_concrete
from ..compiler.analysis import Facts
from ..compiler.ir import PyTree
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
