"""Values of a brainstate module's states made anew, in the state objects that the module has.

`brainstate.nn.init_all_states` puts new state objects into a module. A function that brainstate compiled before holds
the old ones and would go on with their values; and an object that is made inside a transformation is of no use after
it. New values are therefore written into the old objects, which go back to where they were.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ._borrow import Module, State


def renew_states(module: Module, *args: object, **kwargs: object) -> set[tuple[Any, ...]]:
    """Run `brainstate.nn.init_all_states`; every path of the module that had a state has the same object afterwards.

    The answer are the paths whose states were made or given values anew. If it fails, the module holds the states and
    values that it held before.
    """
    old = dict(module.states())
    before = {path: state._value for path, state in old.items()}
    try:
        sys.modules["brainstate"].nn.init_all_states(module, *args, **kwargs)
    except BaseException:
        _put_back(module, old)
        for path, state in old.items():
            if state._value is not before[path]:
                state.value = before[path]
        raise
    new_states = {path: state for path, state in module.states().items() if path in old and state is not old[path]}
    _put_back(module, old)
    for path, state in new_states.items():
        old[path].value = state.value
    return set(new_states) | {path for path, state in old.items() if state._value is not before[path]}


def _put_back(module: Module, old: Mapping[tuple[Any, ...], State]) -> None:
    """Wherever the module holds a new state of a path, it holds the old one again."""
    old_of = {id(now): old[path] for path, now in module.states().items() if path in old and now is not old[path]}
    for node in module.nodes().values():
        vars(node).update(_replaced(dict(vars(node)), old_of))


def _replaced(value: Any, old_of: Mapping[int, State]) -> Any:
    """The value with old states for new ones, also inside of plain containers, which are changed in their place."""
    if id(value) in old_of:
        return old_of[id(value)]
    if type(value) is tuple:
        parts = tuple(_replaced(v, old_of) for v in value)
        return parts if any(a is not b for a, b in zip(parts, value, strict=True)) else value
    if isinstance(value, dict | list):
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            if (other := _replaced(inner, old_of)) is not inner:
                value[key] = other
    return value
