"""Products over concatenated data, of which a part is known before the rest.

In a layer that computes [z, h] W with z from the layer below, the product is on the cycle of h, and z's share of it is
not: [z, h] W = z W₁ + h W₂, and z W₁ can be computed for all steps at once.
"""

from __future__ import annotations

from typing import NamedTuple

from ..._compat import Jaxpr
from ..._machine import machine
from ._schedule import PRODUCT, rows_of
from ._step_graph import StepGraph


class Parted(NamedTuple):
    """Equation `concatenation` makes operand `operand` of a product; `ahead` says which parts of it are on no cycle."""

    concatenation: int
    operand: int
    ahead: tuple[bool, ...]


def products_to_part(jaxpr: Jaxpr, num_consts: int, num_carry: int) -> dict[int, Parted]:
    """By equation of a loop's body, the products that are better computed as two."""
    names = {eqn.primitive.name for eqn in jaxpr.eqns}
    if jaxpr.effects or not {PRODUCT, "concatenate"} <= names:
        return {}
    graph = StepGraph.of(jaxpr, num_consts, num_carry)
    products = {n: _parted(graph, n) for n, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name == PRODUCT}
    return {n: parted for n, parted in products.items() if parted is not None}


def _parted(graph: StepGraph, n: int) -> Parted | None:
    eqn, cycle = graph.equations[n], graph.component[n]
    data = [i for i, v in enumerate(eqn.invars) if graph.varies(v)]
    if cycle < 0 or len(data) != 1:
        return None
    maker = graph.maker.get(eqn.invars[data[0]])
    if maker is None or maker in graph.states or graph.equations[maker].primitive.name != "concatenate":
        return None
    made = graph.equations[maker]
    contracted, _ = eqn.params["dimension_numbers"]
    if made.params["dimension"] not in contracted[data[0]]:
        return None
    few = rows_of(eqn, data[0]) <= machine().joined_rows

    def is_ahead(v: object) -> bool:
        source = graph.maker.get(v)
        return source is None or (graph.component[source] != cycle and (few or source not in graph.recurrent))

    ahead = tuple(is_ahead(v) for v in made.invars)
    return Parted(maker, data[0], ahead) if any(ahead) else None
