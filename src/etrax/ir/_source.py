"""Where in the user's code an equation was written."""

from __future__ import annotations

import os
from typing import NamedTuple

from .._compat import JaxprEqn, source_frames

# Frames of these packages are skipped in favour of the model's own line, if there is one.
_LIBRARIES = ("saiunit", "brainunit", "brainevent", "brainstate", "braintools", "brainpy", "brainpy_state", "flax", "equinox", "optax")
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OWN_MODELS = _HERE + "nn" + os.sep


class Source(NamedTuple):
    """A line of code: file, line number, function."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line} ({self.function.rpartition('.')[2]})"


def _is_library(file: str) -> bool:
    return any(f"{os.sep}{name}{os.sep}" in file for name in _LIBRARIES)


def source_of_eqn(eqn: JaxprEqn) -> Source | None:
    """The model's own line: the innermost frame that is neither JAX, nor Etrax, nor a modelling library.

    A model that is wholly a library's (a stock GRU cell) is shown with the library's line.
    """
    frames = []
    for file, line, function in source_frames(eqn):
        if file.startswith(_HERE) and not file.startswith(_OWN_MODELS):
            break  # what lies outside is the call of the compiler, not the model
        frames.append(Source(file, line, function))
    own = [f for f in frames if not _is_library(f.file)]
    return own[0] if own else (frames[0] if frames else None)
