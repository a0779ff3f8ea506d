"""A step with states of its own for what leaky layers remember of their data.

A leaky layer r' = κ r + f (u·V) with one leak κ and one factor f for all of its positions commutes with its own weight
op: r = r̃·V, where r̃ is its data, filtered,

    r̃' = κ r̃ + f u

r̃ has the shape of the data u, so that it lives at the positions of the layer below. Where the layer has several states
at a position, κ is a matrix, f a vector, and r̃ one array per state. κ and f come as inputs, and may differ along axes
that the data and the layer share (samples). Where they differ between the columns of V, each column has filtered data:
the step has those of the first one, and `LeakyStates` say how many they stand for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import jax
import numpy as np
from jax import Array, lax

from ..._compat import JaxprEqn, Var, build_jaxpr, open_jaxpr
from ..ir import Leaf, Role, Step, check_step
from ..opened import WeightSite


class Filter(NamedTuple):
    """The weight op of a leaky layer, and which of its states at a position act on which (to, from).

    `varies` are the axes of the data along which κ and f differ; there are so many `leaks` and `factors` beside these.
    """

    site: WeightSite
    links: np.ndarray
    varies: tuple[int, ...] = ()
    leaks: int = 1
    factors: int = 1


def with_filters(step: Step, filters: Sequence[Filter]) -> Step:
    """The step with filtered data as hidden states behind its own.

    They are outputs, too: a leaky state of which the step itself reads nothing is one that counts.
    Its last inputs are the rates, two arrays per filter: κ (S, S, leaks, …) and f (S, factors, …). Behind these axes
    stand those of the data, of length one unless the rates vary along them. The step reads the first leak and factor.
    """
    jaxpr, eqns = step.jaxpr, list(step.jaxpr.eqns)
    states, rates, new = [], [], []
    for n, (site, links, varies, leaks, factors) in enumerate(filters):
        data = eqns[site.at[0]].invars[site.rule.varying(site.call)[0]]
        u = jax.ShapeDtypeStruct(data.aval.shape, data.aval.dtype)
        lengths = [size if axis in varies else 1 for axis, size in enumerate(u.shape)]
        kappa = jax.ShapeDtypeStruct((len(links), len(links), leaks, *lengths), u.dtype)
        factor = jax.ShapeDtypeStruct((len(links), factors, *lengths), u.dtype)
        body, _ = open_jaxpr(jax.make_jaxpr(_filtered(links))(u, [u] * len(links), kappa, factor))
        read_data, *old, read_kappa, read_factor = body.invars
        eqns += [eqn.replace(invars=[data if v is read_data else v for v in eqn.invars]) for eqn in body.eqns]
        states += [(v, Leaf(Role.HIDDEN, ("filtered data", n, s), u)) for s, v in enumerate(old)]
        rates.append((read_kappa, Leaf(Role.INPUT, ("leaks", n), kappa)))
        rates.append((read_factor, Leaf(Role.INPUT, ("factors", n), factor)))
        new += list(body.outvars)
    return widened(step, eqns, jaxpr.outvars, states, new, rates, shown=True)


def widened(
    step: Step, eqns: Sequence[JaxprEqn], outvars: Sequence[Var], states: Sequence[tuple[Var, Leaf]],
    new: Sequence[Var], inputs: Sequence[tuple[Var, Leaf]], shown: bool = False,
) -> Step:  # fmt: skip
    """A step with hidden states behind its own, whose new values are `new`, and with inputs behind its own.

    `outvars` are the results of the step without them. States that are `shown` are outputs, as the step finds them.
    """
    first, consts = len(step.select(Role.HIDDEN)), len(step.consts)
    last = step.first_state + first
    invars = list(step.jaxpr.invars)
    invars[consts + last : consts + last] = [v for v, _ in states]
    read = [v for v, _ in states] if shown else []
    results = [*outvars[:first], *new, *outvars[first:], *read]
    wider = build_jaxpr([*invars, *(v for v, _ in inputs)], results, eqns, step.jaxpr)
    added = [leaf for _, leaf in states]
    ins = (*step.ins[:last], *added, *step.ins[last:], *(leaf for _, leaf in inputs))
    outs = (*step.outs[:first], *added, *step.outs[first:])
    outs += tuple(replace(leaf, role=Role.OUTPUT) for leaf in added) if shown else ()
    counts = Counter(leaf.role for leaf in (*ins, *(leaf for leaf in outs if leaf.role is Role.OUTPUT)))
    # Nobody asks for this step's trees but as lists of their leaves.
    trees = {role: jax.tree.structure([0] * counts[role]) for role in step.trees}
    return check_step(replace(step, jaxpr=wider, ins=ins, outs=outs, trees=trees))


def _filtered(links: np.ndarray) -> Callable[[Array, Sequence[Array], Array, Array], list[Array]]:
    def run(u: Array, old: Sequence[Array], leaks: Array, factors: Array) -> list[Array]:
        def times(rate: Array, at: Sequence[int], a: Array) -> Array:
            for n in (*at, 0):
                rate = lax.index_in_dim(rate, n, 0, keepdims=False)
            axes = [axis for axis, n in enumerate(rate.shape) if n == a.shape[axis]]
            return lax.mul(lax.broadcast_in_dim(rate.reshape([rate.shape[k] for k in axes]), a.shape, axes), a)

        new = []
        for s, row in enumerate(links):
            terms = [times(factors, (s,), u), *(times(leaks, (s, t), old[t]) for t in range(len(old)) if row[t])]
            new.append(reduce(lax.add, terms))
        return new

    return run
