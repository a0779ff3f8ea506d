"""Where in the user's code an equation was written."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ..._compat import PLUMBING, JaxprEqn, is_in, is_installed, library_files, source_frames
from ..._errors import visible

# Files of a library that say nothing about the model.
_PLUMBING_FILES = ("_module.py", "_node.py")
OWN_FILES = (
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
)  # of the package `etrax`
# Folders of Etrax whose functions are called inside of a model: cells, and the operations of another library.
OWN_MODELS = tuple(OWN_FILES + folder + os.sep for folder in ("nn", "compat"))


@dataclass(frozen=True)
class Source:
    """A line of code: file, line number, function; and the (file, function) that were running, innermost first."""

    file: str
    line: int
    function: str
    frames: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        file = _cell_of(self.file) or os.path.basename(self.file)
        return visible(f"{file}:{self.line} ({self.function.rpartition('.')[2]})")


def _cell_of(file: str) -> str:
    """The cell of a notebook that a file stands for, as `In[3]`: Jupyter compiles cells under names of its own."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    number = getattr(getattr(shell, "compile", None), "_filename_map", {}).get(file)
    return "" if number is None else f"In[{number}]"


def source_of_eqn(eqn: JaxprEqn) -> Source | None:
    """The model's own line: the innermost frame that is neither JAX, nor Etrax, nor an installed library.

    A model that is wholly a library's (a stock GRU cell) is shown with the outermost line of the library's model.
    """
    return _source(source_frames(eqn), library_files())


@lru_cache(maxsize=4096)
def _source(all_frames: tuple[tuple[str, int, str], ...], _libraries: tuple[str | None, ...]) -> Source | None:
    """The line to show of a stack of frames; which of them are a library's depends on where libraries are."""
    frames = []
    for file, line, function in all_frames:
        if file.startswith(OWN_FILES) and not file.startswith(OWN_MODELS):
            break  # what lies outside is the call of the compiler, not the model
        if not is_in(file, PLUMBING):
            frames.append(Source(file, line, function))
    library = [f for f in frames if is_installed(f.file) or f.file.startswith(OWN_MODELS)]
    in_model = [f for f in frames if f not in library]
    shown = in_model[:1] or [f for f in library if os.path.basename(f.file) not in _PLUMBING_FILES][-1:]
    return replace(shown[0], frames=tuple((f.file, f.function) for f in frames)) if shown else None
