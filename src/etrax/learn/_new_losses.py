"""A loss that a loop defines anew is another function each time, and compiled each time."""

from __future__ import annotations

import os
import warnings
from collections import Counter

from ..compiler.ir import LossFunction

# So many functions from one line of code are a slip in a loop rather than a choice.
MANY = 10


class NewLosses:
    """Counts, for one learner, the losses that were compiled by the line that defines them; says it once a line."""

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
