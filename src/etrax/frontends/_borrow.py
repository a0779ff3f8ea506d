"""Run a model on other values than its states hold, and leave the states as they were."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

# States can be shared (the global random state is in every model that draws numbers, and has a lock of its own), so
# threads take turns: one model is borrowed at a time. Taken before anything of the model runs, so that no thread can
# hold a lock of the model's library and wait for this one.
_TURN = threading.RLock()


class Loan:
    """States whose values, and modules whose attributes, are put back when the loan ends.

    Attributes matter too: modules keep things there between the parts of a step (inputs by name, a bound conductance),
    and a step that fails half-way, or that creates an attribute, would leave values of a finished trace behind.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        self._kept: dict[int, tuple[Any, Any, Any]] = {}
        self._attributes = [(vars(m), dict(vars(m))) for m in modules]
        inside = [v for _, kept in self._attributes for v in kept.values() if isinstance(v, (dict, list, set))]
        self._containers = [(v, v.copy()) for v in inside]

    def take(self, state: Any) -> None:
        """Remember the value of a state, once."""
        if id(state) not in self._kept:
            self._kept[id(state)] = (state, vars(state)["_value"], vars(state).get("_been_writen"))

    def end(self) -> None:
        for now, kept in [*self._attributes, *self._containers]:
            now.clear()
            now.extend(kept) if isinstance(now, list) else now.update(kept)
        for state, value, written in self._kept.values():
            vars(state).update(_value=value, _been_writen=written)
        self._kept.clear()


@contextlib.contextmanager
def borrowed(states: Sequence[Any], modules: Sequence[Any]) -> Iterator[Loan]:
    """Within it, states may hold anything; afterwards they hold what they held, also when it fails."""
    with _TURN:
        loan = Loan(modules)
        try:
            for state in states:
                loan.take(state)
            yield loan
        finally:
            loan.end()


def put(state: Any, value: Any) -> None:
    """Give a borrowed state a value, unseen by the hooks and traces of its library."""
    vars(state)["_value"] = value


def held(state: Any) -> Any:
    """The value of a borrowed state, unseen by the hooks and traces of its library."""
    return vars(state)["_value"]
