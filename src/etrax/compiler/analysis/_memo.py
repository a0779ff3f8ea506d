"""Results that are remembered as long as the facts they were computed from."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from ._facts import Facts

P = ParamSpec("P")
R = TypeVar("R")


def memoised(function: Callable[Concatenate[Facts, P], R]) -> Callable[Concatenate[Facts, P], R]:
    """Compute `function(facts, ...)` once for each set of arguments.

    The results are stored on the facts themselves. A global cache would keep dead models, and the constants that their
    steps close over, in memory.
    """

    @wraps(function)
    def remembered(facts: Facts, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (function, args, tuple(sorted(kwargs.items())))
        if key not in facts.memo:
            facts.memo[key] = function(facts, *args, **kwargs)
        return facts.memo[key]  # type: ignore[return-value]

    return remembered
