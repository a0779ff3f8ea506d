"""What modelling libraries put into trees: quantities, variables around a value, keys that are descriptions."""

from __future__ import annotations

import re

from ..compiler.ir import Objects, add_library

# What brainpy.state calls a part that it makes from a description: class, arguments, options.
_MADE = re.compile(r"\(<class '(?:\w+\.)*(\w+)'>, \([^()]*\), \{(.*?)\}\)")
_OPTION = re.compile(r"'(\w+)': (?:'([^']*)'|([^,]+))")


def is_quantity(x: object) -> bool:
    """A quantity of brainunit or saiunit: its path is that of the number that it holds."""
    return type(x).__name__ == "Quantity" and hasattr(x, "mantissa")


def is_variable(x: object) -> bool:
    """A `flax.nnx.Variable`, which is a tree around one value."""
    return any(c.__name__ == "Variable" and c.__module__.startswith("flax.nnx") for c in type(x).__mro__)


def shortened(text: str, brief: bool) -> str:
    """Descriptions as calls; options that are objects (initialisers) are the first to be left out.

    >>> shortened("(<class 'brainpy.state.Expon'>, (100,), {'tau': '10 ms'})", False)
    'Expon(tau=10 ms)'
    """

    def call(match: re.Match[str]) -> str:
        options = [(name, text or value) for name, text, value in _OPTION.findall(match[2])]
        return f"{match[1]}({', '.join(f'{n}={v}' for n, v in options if not brief or '(' not in v)})"

    return _MADE.sub(call, text)


add_library(Objects(holds_number=is_quantity))
add_library(Objects("flax.nnx", wraps_value=is_variable))
add_library(Objects(shorten=shortened))
