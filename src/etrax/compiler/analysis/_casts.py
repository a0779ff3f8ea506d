"""Casts from complex to real numbers: legal, differentiable, and seldom meant."""

from __future__ import annotations

from ..._compat import is_complex
from ..ir import Step, equations, source_of_eqn
from ..primitives import Cause


def complex_casts(step: Step) -> tuple[Cause, ...]:
    """The places, in program order."""
    found = [
        Cause(eqn.primitive.name, source_of_eqn(eqn))
        for eqn in equations(step.jaxpr)
        if eqn.primitive.name == "convert_element_type"
        and is_complex(eqn.invars[0].aval)
        and not is_complex(eqn.outvars[0].aval)
    ]
    return tuple(dict.fromkeys(found))
