"""The order in which the equations of a loop over steps can run: recurrences in loops, the rest for all steps at once.

What is on a cycle of the step's graph (`_step_graph.py`) runs step by step. A product with a weight that is on none can
run for all steps of a window at once, which reads the weight once for them all:

    x ──►  X W₁  ──►  loop of layer 1  ──►  Z W₂  ──►  loop of layer 2  ──►  …
          all steps                       all steps

Such products are what a loop is split for. Everything else goes where least has to
be kept between the parts: into the loop that it reads from or that reads it, or before or after it where it makes less
of more.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..._compat import INLINED, Jaxpr, JaxprEqn, Var, bodies_of
from ..._machine import machine
from ..primitives import record_of
from ._step_graph import StepGraph

PRODUCT = "dot_general"
CALLS = INLINED | {"custom_jvp_call", "custom_vjp_call"}


@dataclass(frozen=True)
class Part:
    """Equations that run together, by number, in the order of the step; `states` are those that a loop carries.

    A part that is no loop runs for all steps at once.
    """

    loop: bool
    equations: tuple[int, ...]
    states: tuple[int, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """`once` are the equations that give the same at every step, `parts` the others, in order."""

    once: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def is_one_loop(self) -> bool:
        return len(self.parts) == 1 and self.parts[0].loop and not self.once


def schedule(jaxpr: Jaxpr, num_consts: int, num_carry: int) -> Schedule:
    """When to run the equations of a loop's body, whose inputs are constants, states and slices."""
    one_loop = Schedule((), (Part(True, tuple(range(len(jaxpr.eqns))), tuple(range(num_carry))),))
    if jaxpr.effects or not any(eqn.primitive.name == PRODUCT for eqn in jaxpr.eqns):
        return one_loop  # what a step does to the world outside it is done in the order of the steps
    graph = StepGraph.of(jaxpr, num_consts, num_carry)
    place = _settled(graph)
    if all(place[n] == 1 for n in graph.live & graph.varying if n not in graph.states):
        return one_loop
    return _parts(graph, place)


def _settled(graph: StepGraph) -> list[int]:
    """Where nodes run: at 0, 2, 4, … for all steps at once, at 1, 3, 5, … in a loop.

    First as early as can be; then what is light goes where least is kept for it.
    """
    place = [0] * len(graph.before)
    for nodes in graph.components:
        if graph.varying.issuperset(nodes):
            at = max((place[m] for n in nodes for m in graph.before[n]), default=0)
            for n in nodes:
                place[n] = _earliest(graph, n, at)
    for nodes in reversed(graph.components):
        if graph.component[nodes[0]] < 0:
            place[nodes[0]] = _latest(graph, nodes[0], place)
    for n in graph.states:
        if n not in graph.live:  # nobody reads it: it is held where it is made
            place[n] = max((place[m] for m in graph.before[n]), default=0)
    return place


def _earliest(graph: StepGraph, n: int, at: int) -> int:
    """The first place for a node, given the last one of what it reads."""
    cyclic = graph.component[n] >= 0
    if not cyclic and (n in graph.states or is_light(graph.equations[n])):
        return at
    joined = not cyclic and is_joined(graph, n)
    return at + (at % 2 != (0 if joined else 1))


def _latest(graph: StepGraph, n: int, place: Sequence[int]) -> int:
    """A later place for what is light, where less has to be kept between the parts for it; else the same."""
    at, readers = place[n], {place[m] for m in graph.after[n] if m in graph.live}
    is_output = not graph.outputs.isdisjoint(graph.given(n))
    if n in graph.states or not is_light(graph.equations[n]):
        return readers.pop() if n in graph.states and len(readers) == 1 and at % 2 == 0 else at
    size = sum(map(_bytes, graph.given(n)))
    if at % 2 == 0 and not is_output and len(readers) == 1 and min(readers) % 2:
        (loop,) = readers
        more = [v for v in _changing(graph, n) if not _read_by_others(graph, v, n, [loop], place)]
        return loop if sum(map(_bytes, more)) <= size else at
    if at % 2 and at not in readers:
        later = range(at + 1, max(place) + 1)
        more = [v for v in _changing(graph, n) if graph.maker.get(v) is not None and place[graph.maker[v]] == at]
        more = [v for v in more if v not in graph.outputs and not _read_by_others(graph, v, n, later, place)]
        return at + 1 if sum(map(_bytes, more)) < size else at
    return at


def _changing(graph: StepGraph, n: int) -> list[Var]:
    """The variables that a node reads and that change from step to step."""
    return [v for v in dict.fromkeys(graph.read(n)) if graph.varies(v)]


def _read_by_others(graph: StepGraph, v: Var, n: int, at: Container[int], place: Sequence[int]) -> bool:
    """Whether a node at one of some places reads a variable too."""
    maker = graph.maker.get(v)
    others = graph.after[maker] if maker is not None else graph.readers_of_slices.get(v, ())
    return any(m != n and m in graph.live and place[m] in at and v in graph.read(m) for m in others)


def _bytes(v: Var) -> int:
    return math.prod(v.aval.shape) * getattr(v.aval.dtype, "itemsize", 8)


def is_joined(graph: StepGraph, n: int) -> bool:
    """Whether an equation is the product of something with a fixed weight, and is worth joining over steps."""
    eqn = graph.equations[n]
    data = [i for i, v in enumerate(eqn.invars) if graph.varies(v)]
    if eqn.primitive.name != PRODUCT or len(data) != 1:
        return False
    return n not in graph.recurrent or rows_of(eqn, data[0]) <= machine().joined_rows


def is_light(eqn: JaxprEqn) -> bool:
    """Whether an equation, and all inside it, costs about what it reads and writes, for one step or for all at once."""
    name = eqn.primitive.name
    if name in CALLS:
        return all(is_light(inner) for body in bodies_of(eqn) for inner in body.eqns)
    record = record_of(name)
    return record.light or (record.elementwise and not bodies_of(eqn))


def rows_of(eqn: JaxprEqn, data: int) -> int:
    """How many rows of data a product has."""
    shape = eqn.invars[data].aval.shape
    contracted, batch = (dims[data] for dims in eqn.params["dimension_numbers"])
    return math.prod(n for axis, n in enumerate(shape) if axis not in (*contracted, *batch))


def _rounds(graph: StepGraph, place: Sequence[int], at: int, numbers: Sequence[int]) -> list[tuple[int, ...]]:
    """Equations that run for all steps at once, in turn: who reads a state of the step before waits for its maker."""
    states, turn = frozenset(graph.states), {}

    def turn_of(n: int) -> int:
        if n not in turn:
            read = [m for m in graph.before[n] if place[m] == at]
            turn[n] = max((turn_of(m) + (m in states) for m in read), default=0)
        return turn[n]

    turns = sorted({turn_of(n) for n in numbers})
    return [tuple(n for n in numbers if turn[n] == t) for t in turns]


def _parts(graph: StepGraph, place: Sequence[int]) -> Schedule:
    equations = [n for n in range(len(graph.equations)) if n in graph.live]
    parts = []
    for at in range(max(place) + 1):
        numbers = tuple(n for n in equations if place[n] == at and (at % 2 or n in graph.varying))
        if at % 2 == 0:
            parts += [Part(False, some, ()) for some in _rounds(graph, place, at, numbers)]
            continue
        carried = tuple(i for i, n in enumerate(graph.states) if place[n] == at)
        if numbers or carried:
            parts.append(Part(True, numbers, carried))
    return Schedule(tuple(n for n in equations if n not in graph.varying and place[n] == 0), tuple(parts))


# Products over concatenated data. In a layer that computes [z, h] W with z from the layer below, the product is on the
# cycle of h, and z's share of it is not: [z, h] W = z W₁ + h W₂, and z W₁ can be computed for all steps at once.


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
    concatenate = graph.equations[maker]
    contracted, _ = eqn.params["dimension_numbers"]
    if concatenate.params["dimension"] not in contracted[data[0]]:
        return None
    few = rows_of(eqn, data[0]) <= machine().joined_rows

    def is_ahead(v: object) -> bool:
        source = graph.maker.get(v)
        return source is None or (graph.component[source] != cycle and (few or source not in graph.recurrent))

    ahead = tuple(is_ahead(v) for v in concatenate.invars)
    return Parted(maker, data[0], ahead) if any(ahead) else None
