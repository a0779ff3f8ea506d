"""Chains of equations with parameters, written as one weight op each: see `_series.py` and `_rows.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from ..._compat import JaxprEqn, Literal, Var, without_dead_code
from ..ir import Step, check_step, without_calls
from ._chain import as_call, data_variables
from ._rows import Rows, find_rows
from ._series import Series, find_series
from ._sites import WeightSite, find_sites

# Equations that can be one weight op, whose weight is a function of several parameters.
Chain: TypeAlias = Series | Rows


class Chains(NamedTuple):
    """A step in which scales act last where that makes no difference, and its chains."""

    step: Step
    every: tuple[Chain, ...]


def find_chains(step: Step, sites: Sequence[WeightSite]) -> Chains:
    """Linear maps in series, and functions of rows that are looked up."""
    ordered = _with_scales_last(step, sites)
    sites = sites if ordered is step else find_sites(ordered)
    return Chains(ordered, (*find_series(ordered, sites), *find_rows(ordered, sites)))


def with_chains(step: Step, chains: Sequence[Chain]) -> Step:
    """The step with these chains as one weight op each, and without what is not read any more."""
    written: dict[int, JaxprEqn] = {}
    for chain in chains:  # rows come last: what they replace is behind products that they hold
        written.update(chain.equations)
    return _rewritten(step, written)


def _rewritten(step: Step, written: Mapping[int, JaxprEqn]) -> Step:
    """The step with calls in place of some equations, written out."""
    eqns = [written.get(n, eqn) for n, eqn in enumerate(step.jaxpr.eqns)]
    jaxpr, consts = without_calls(step.jaxpr.replace(eqns=eqns), step.consts)
    return check_step(replace(step, jaxpr=without_dead_code(jaxpr), consts=consts))


def _with_scales_last(step: Step, sites: Sequence[WeightSite]) -> Step:
    """Products d·(r·s) of data d and r with a parameter s as (d·r)·s, in which s is a scale of data.

    Norms are often written so: the scale is multiplied with the inverse deviation first.
    """
    data, scaled = data_variables(step), {s.at[0] for s in sites if len(s.at) == 1}
    factors: dict[Var, tuple[Var, Var]] = {}  # of r·s: r and s
    written: dict[int, JaxprEqn] = {}
    for n, eqn in enumerate(step.jaxpr.eqns):
        if eqn.primitive.name != "mul" or any(isinstance(v, Literal) for v in eqn.invars):
            continue
        moving = [v for v in eqn.invars if v in data]
        if len(moving) == 1 and n in scaled:
            (scale,) = (v for v in eqn.invars if v not in data)
            factors[eqn.outvars[0]] = moving[0], scale
        held = [v for v in moving if v in factors]
        if len(moving) == 2 and moving[0] is not moving[1] and len(held) == 1:
            (other,) = (v for v in moving if v not in factors)
            written[n] = as_call(eqn, [other, *factors[held[0]]], lambda d, r, s: (d * r) * s)
    if not written:
        return step
    step = _rewritten(step, written)
    return _with_scales_last(step, find_sites(step))  # a scale may have been between several factors
