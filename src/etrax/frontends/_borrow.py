"""Run a model on other values than its states hold, and leave the states as they were."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

# States can be shared (the global random state is in every model that draws numbers), so two threads that trace at
# once take turns on the states they share, and on those only.
_LOCKS: WeakKeyDictionary[Any, threading.RLock] = WeakKeyDictionary()
_LOCKS_GUARD = threading.Lock()
# Random states are guarded by their own library while a key is split. That lock is the one to take for them: with a
# second one, a thread could hold either and wait for the other.
_RANDOM_LOCK = "_KEY_RMW_LOCK"


def _random_lock(state: Any) -> Any | None:
    split = getattr(type(state), "split_key", None)
    return getattr(split, "__globals__", {}).get(_RANDOM_LOCK)


def _lock_of(state: Any) -> Any:
    shared = _random_lock(state)
    if shared is not None:
        return shared
    with _LOCKS_GUARD:
        return _LOCKS.setdefault(state, threading.RLock())


def _turn(state: Any) -> tuple[bool, int]:
    """One order for all threads, random states last, so that none waits for another for ever."""
    return _random_lock(state) is not None, id(state)


class Loan:
    """States whose values, and modules whose attributes, are put back when the loan ends.

    Attributes matter too: modules keep things there between the parts of a step (inputs by name, a bound conductance),
    and a step that fails half-way, or that creates an attribute, would leave values of a finished trace behind.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        self._kept: dict[int, tuple[Any, Any, Any]] = {}
        self._locks: list[Any] = []
        self._attributes = [(vars(m), dict(vars(m))) for m in modules]
        inside = [v for _, kept in self._attributes for v in kept.values() if isinstance(v, (dict, list, set))]
        self._containers = [(v, v.copy()) for v in inside]

    def take(self, state: Any) -> None:
        """Remember the value of a state, once, and keep other threads off it."""
        if id(state) in self._kept:
            return
        lock = _lock_of(state)
        lock.acquire()
        self._locks.append(lock)
        self._kept[id(state)] = (state, vars(state)["_value"], vars(state).get("_been_writen"))

    def end(self) -> None:
        for now, kept in [*self._attributes, *self._containers]:
            now.clear()
            now.extend(kept) if isinstance(now, list) else now.update(kept)
        for state, value, written in self._kept.values():
            vars(state).update(_value=value, _been_writen=written)
        self._kept.clear()
        while self._locks:
            self._locks.pop().release()


@contextlib.contextmanager
def borrowed(states: Sequence[Any], modules: Sequence[Any]) -> Iterator[Loan]:
    """Within it, states may hold anything; afterwards they hold what they held, also when it fails."""
    loan = Loan(modules)
    try:
        for state in sorted(states, key=_turn):
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
