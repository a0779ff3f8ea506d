"""Casts from complex to real numbers: legal, differentiable, and seldom meant."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import Step, equations, source_of_eqn
from ..primitives import Cause


def complex_casts(step: Step) -> tuple[Cause, ...]:
    """The places, in program order."""
    found = [
        Cause(eqn.primitive.name, source_of_eqn(eqn))
        for eqn in equations(step.jaxpr)
        if eqn.primitive.name == "convert_element_type"
        and _is_complex(eqn.invars[0])
        and not _is_complex(eqn.outvars[0])
    ]
    return tuple(dict.fromkeys(found))


def _is_complex(atom: Any) -> bool:
    return np.dtype(atom.aval.dtype).kind == "c" if hasattr(atom.aval.dtype, "kind") else False
