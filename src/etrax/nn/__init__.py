"""Cells and layers for models that learn online.

`etrax.nn.X` is a brainstate module. Those that other libraries lack are pure functions first: `etrax.nn.pure.X`, and
from the same definition `etrax.nn.nnx.X` for Flax and `etrax.nn.equinox.X` for Equinox.
"""

from importlib import import_module

from . import equinox as equinox
from . import nnx as nnx
from . import pure as pure
from . import surrogate as surrogate
from ._constraints import Dale as Dale
from ._constraints import Sparse as Sparse
from ._faces import as_brainstate as as_brainstate
from ._faces import as_equinox as as_equinox
from ._faces import as_nnx as as_nnx
from ._faces import cell_named as _cell_named
from ._neurons import spike as spike
from ._pure import PureCell as PureCell

# Cells that are brainstate modules only, by the file that holds them; loaded on use.
_MODULES = {
    "Cell": "_base",
    "CFNCell": "_gated",
    "GRUCell": "_gated",
    "MGUCell": "_gated",
    "MiniGRU": "_gated",
    "Linear": "_base",
    "LSTMCell": "_lstm",
    "MiniLSTM": "_gated",
    "URLSTMCell": "_lstm",
    "MinimalRNNCell": "_gated",
    "ValinaRNNCell": "_gated",
    "VanillaRNNCell": "_gated",
}


def __getattr__(name: str) -> type:
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return _cell_named(name, __name__, as_brainstate)


def __dir__() -> list[str]:
    others = ("Dale", "PureCell", "Sparse", "as_brainstate", "as_equinox", "as_nnx", "equinox", "nnx", "pure", "spike")
    return sorted({*_MODULES, *pure.CELLS, *others, "surrogate"})
