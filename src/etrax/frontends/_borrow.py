"""Run a model on other values than its states hold, and leave the model as it was.

A state that is borrowed has a value of its own on the thread that borrowed it, and its true value on every other
thread. No thread therefore waits for another, whatever the step does, and none sees the values of a trace that is
another's.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from ..compiler.ir import Path


class State(Protocol):
    """A `brainstate.State`: reading and writing `value` tells its hooks and the transformations around."""

    value: Any
    _value: Any


class Module(Protocol):
    """A `brainstate.nn.Module`: its states and inner modules by path."""

    def states(self) -> Mapping[Path, State]: ...
    def nodes(self) -> Mapping[Path, object]: ...
    def __call__(self, *args: object, **kwargs: object) -> Any: ...


class _Borrowed(threading.local):
    """By `id` of a state, the attributes that this thread sees in place of the state's own."""

    def __init__(self) -> None:
        self.views: dict[int, dict[str, object]] = {}


@dataclass
class _Lent:
    """An object that some thread has borrowed: what it was before the first did, and how many have it now."""

    thing: object
    before: Any
    count: int = 0


_BORROWED = _Borrowed()
_STATES: dict[int, _Lent] = {}
_MODULES: dict[int, _Lent] = {}
# Held while an object is entered in these tables or taken out, never while a model runs.
_GUARD = threading.Lock()
_OWN = ("_value", "_been_writen")


@cache
def _with_views(kind: type) -> type:
    """A class like another, whose values are those of the thread's view where it has one."""

    def viewed(name: str) -> property:
        def attributes(state: object) -> dict[str, object]:
            view = _BORROWED.views.get(id(state))
            return vars(state) if view is None else view

        return property(lambda s: attributes(s).get(name), lambda s, value: attributes(s).__setitem__(name, value))

    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind)(kind.__name__, (kind,), {name: viewed(name) for name in _OWN} | named)


def _lend_state(state: State) -> None:
    with _GUARD:
        lent = _STATES.setdefault(id(state), _Lent(state, type(state)))
        if not lent.count:
            object.__setattr__(state, "__class__", _with_views(lent.before))
        lent.count += 1


def _return_state(state: State) -> None:
    with _GUARD:
        lent = _STATES[id(state)]
        lent.count -= 1
        if not lent.count:
            object.__setattr__(state, "__class__", lent.before)
            del _STATES[id(state)]


def _lend_module(module: object) -> None:
    """Remember the attributes of a module, and what is in those that are containers."""
    with _GUARD:
        if id(module) not in _MODULES:
            inside = [v for v in vars(module).values() if isinstance(v, (dict, list, set))]
            _MODULES[id(module)] = _Lent(module, [(v, v.copy()) for v in (vars(module), *inside)])
        _MODULES[id(module)].count += 1


def _return_module(module: object) -> None:
    with _GUARD:
        lent = _MODULES[id(module)]
        lent.count -= 1
        if not lent.count:
            for now, before in lent.before:
                _restore(now, before)
            del _MODULES[id(module)]


def _restore(now: Any, before: Any) -> None:
    """Give a container its former content; one that has it is not touched, as other threads may be reading it."""
    parts = [list(c.items()) if isinstance(c, dict) else [(x, x) for x in c] for c in (now, before)]
    same = len(parts[0]) == len(parts[1]) and all(a is c and b is d for (a, b), (c, d) in zip(*parts, strict=True))
    if not same:
        now.clear()
        now.extend(before) if isinstance(now, list) else now.update(before)


class Loan:
    """States and modules that this thread runs a model with. What it does to them is forgotten when the loan ends.

    Attributes matter too: modules keep things there between the parts of a step (inputs by name, a bound conductance),
    and a step that fails half-way, or that creates an attribute, would leave values of a finished trace behind.
    """

    def __init__(self) -> None:
        self._states: dict[int, tuple[State, dict[str, object] | None]] = {}
        self._modules: list[object] = []

    def take(self, state: State) -> None:
        """Borrow a state, once."""
        if id(state) in self._states:
            return
        view: dict[str, object] = {name: getattr(state, name, None) for name in _OWN}
        _lend_state(state)
        self._states[id(state)] = (state, _BORROWED.views.get(id(state)))
        _BORROWED.views[id(state)] = view

    def take_module(self, module: object) -> None:
        _lend_module(module)
        self._modules.append(module)

    def end(self) -> None:
        for module in self._modules:
            _return_module(module)
        for state, outer in self._states.values():
            if outer is None:
                del _BORROWED.views[id(state)]
            else:
                _BORROWED.views[id(state)] = outer
            _return_state(state)
        self._modules.clear()
        self._states.clear()


@contextlib.contextmanager
def borrowed(states: Sequence[State], modules: Sequence[object]) -> Iterator[Loan]:
    """Within it, states may hold anything; afterwards they hold what they held, also when it fails."""
    loan = Loan()
    try:
        for module in modules:
            loan.take_module(module)
        for state in states:
            loan.take(state)
        with _unseen():
            yield loan
    finally:
        loan.end()


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """Within it, transformations of brainstate around the caller are not told what is read and written.

    Such a transformation swaps the value of a state for a tracer when the state is first read. If that happened to a
    borrowed state, the swap would be forgotten with the loan: later reads would find the old value, a constant to JAX.
    As many empty stacks take the places of those hidden, since states know the depth at which they were created.
    """
    traced = sys.modules["brainstate._state"].TRACE_CONTEXT
    around = traced.state_stack
    traced.state_stack = [sys.modules["brainstate"].StateTraceStack() for _ in around]
    try:
        yield
    finally:
        traced.state_stack = around


def held(state: State) -> Any:
    """The value of a state, unseen by the hooks and traces of its library."""
    return state._value
