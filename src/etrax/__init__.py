"""Etrax turns any one-step JAX model into an online learner."""

from __future__ import annotations

from typing import Any

from ._compile import compile as compile
from ._errors import CompilationError as CompilationError
from ._errors import EtraxError as EtraxError
from ._errors import NotSupportedError as NotSupportedError
from .learn import Learner as Learner
from .learn import LearnerState as LearnerState
from .learn import Rule as Rule
from .learn import d_rtrl as d_rtrl
from .learn import e_prop as e_prop
from .learn import pp_prop as pp_prop
from .learn import rflo as rflo
from .learn import rtrl as rtrl
from .learn import tbptt as tbptt
from .ops import OpRule as OpRule
from .ops import register_weight_op as register_weight_op

__version__ = "0.1.0"

_LAZY = {"testing"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'etrax' has no attribute {name!r}")
