"""A NIR graph as a step that Etrax compiles, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import ArgumentError, EtraxError
from ..compiler.ir import PyTree
from ._graph import Flat, Graph, Name, flat, kind_of, schedule, shown
from ._nodes import KINDS, Context, Kind, Shape, State, Values, shortest_delay
from ._simulator import Simulator, Spike
from ._values import MOST, check_settings, check_shape, numbers_of

Result = TypeVar("Result")
LAST = "last"  # the state that holds the output of the step before


class Step:
    """`step(params, hidden, *inputs) -> (hidden, output)` of a graph; arrays may have a batch axis in front.

    `graph` is the NIR graph that was read, `inputs` and `outputs` the names of its ends: the inputs are passed in this
    order; the output is an array, or a dictionary by name if there are several. `late` lists the edges that carry the
    output of the step before, which open the cycles of the graph.
    """

    def __init__(self, graph: Graph, simulator: Simulator, spike: Spike, fields: Collection[str], dtype: jnp.dtype):
        self.graph, self.simulator, self._dtype, self._flat = graph, simulator, dtype, flat(graph)
        nodes = self._flat.nodes
        self._ends = {kind: self._flat.of_kind(kind) for kind in ("Input", "Output")}
        for kind, names in self._ends.items():
            if not names:
                raise ArgumentError(
                    f"the graph has no node of kind {kind}, so it does not say where data goes in and out."
                )
        self.inputs, self.outputs = ([name for (name,) in names] for names in self._ends.values())
        for name, node in nodes.items():
            _at(name, node, check_settings, node)
        self._numbers = {name: _at(name, node, numbers_of, node, dtype) for name, node in nodes.items()}
        self._trained = {name: [k for k in numbers if k in fields] for name, numbers in self._numbers.items()}
        context = {name: Context(node, simulator, spike) for name, node in nodes.items()}
        self._past = {name for name in nodes if _at(name, nodes[name], shortest_delay, context[name]) >= 1}
        self._order, self.late = schedule(self._flat, self._past)
        self._context = _with_shapes(self._flat, context, self._numbers, dtype)

    def _kind(self, name: Name) -> Kind:
        return KINDS[kind_of(self._flat.nodes[name])]

    def params(self) -> PyTree:
        """The numbers that are trained, as nested dictionaries by subgraph, node and field."""
        return _nested({name: {k: self._numbers[name][k] for k in fields} for name, fields in self._trained.items()})

    def hidden(self, batch_size: int | None) -> PyTree:
        """States before the first step: membranes at their leak, all else at zero."""
        lead = () if batch_size is None else (batch_size,)
        states: dict[Name, State] = {}
        for name in self._order:
            shapes = self._kind(name).states(self._context[name])
            if any(source == name for source, _ in self.late):
                shapes = shapes | {LAST: self._context[name].shape}
            rest = {"v": self._numbers[name].get("v_leak", 0)}
            states[name] = {k: jnp.zeros((*lead, *s), self._dtype) + rest.get(k, 0) for k, s in shapes.items()}
        return _nested(states)

    def __call__(self, params: PyTree, hidden: PyTree, *inputs: jax.Array) -> tuple[PyTree, PyTree]:
        if len(inputs) != len(self.inputs):
            raise ArgumentError(
                f"the graph takes {len(self.inputs)} inputs ({', '.join(self.inputs)}), not {len(inputs)}."
            )
        arrays = {name: jnp.asarray(x, self._dtype) for name, x in zip(self._ends["Input"], inputs, strict=True)}
        states = {name: dict(_inner(hidden, name)) for name in self._order}
        out: dict[Name, jax.Array] = {}
        new: dict[Name, State] = {}

        def run(name: Name, x: jax.Array) -> tuple[State, jax.Array]:
            values = {**self._numbers[name], **{k: _inner(params, name)[k] for k in self._trained[name]}}
            return self._kind(name).step(self._context[name], values, states[name], x)

        def read(name: Name) -> jax.Array:
            edges = [(source, name) for source in self._flat.into[name]]
            parts = [states[edge[0]][LAST] if edge in self.late else out[edge[0]] for edge in edges]
            return sum(parts[1:], parts[0])

        for name in self._order:
            if name in self._past:  # its output does not depend on its input of this step
                _, out[name] = run(name, next(iter(states[name].values())))
            else:
                new[name], out[name] = run(name, arrays[name] if name in arrays else read(name))
        for name in self._past:
            new[name], _ = run(name, read(name))
        for source, _ in self.late:
            new[source][LAST] = out[source]
        outputs = [out[name] for name in self._ends["Output"]]
        output = outputs[0] if len(outputs) == 1 else dict(zip(self.outputs, outputs, strict=True))
        return _nested({name: new[name] for name in self._order}), output


def _at(name: Name, node: object, work: Callable[..., Result], *args: object) -> Result:
    """`work(*args)`, whose errors say at which node they came up."""
    where = f"node {shown(name)} ({kind_of(node)})"
    try:
        return work(*args)
    except EtraxError as error:
        raise type(error)(f"{where}: {error}") from error
    except Exception as error:  # what jax says of shapes that do not fit
        raise ArgumentError(f"{where} does not fit its input: {str(error).splitlines()[0]}") from error


def _with_shapes(
    graph: Flat, contexts: Mapping[Name, Context], numbers: Mapping[Name, Values], dtype: jnp.dtype
) -> dict[Name, Context]:
    """Every node with the shape of its input, found from the graph's inputs on; arrays that do not fit are refused."""
    reached: dict[Name, tuple[Shape, Name | None]] = {}  # the shape of a node's input, and the node that gave it
    room = MOST
    todo = [(name, None, _declared(name, contexts[name].node)) for name in graph.of_kind("Input")]
    while todo:
        name, source, shape = todo.pop()
        if name in reached:
            before, first = reached[name]
            if before != shape:
                raise ArgumentError(
                    f"node {shown(name)} gets {list(before)} from {shown(first or ())}, but {list(shape)} from "
                    f"{shown(source or ())}."
                )
            continue
        reached[name] = shape, source
        node = contexts[name].node
        room -= _at(name, node, _count_states, replace(contexts[name], shape=shape), room)
        y = _at(name, node, _shape_behind, replace(contexts[name], shape=shape), numbers[name], dtype)
        todo += [(target, name, y) for start, target in graph.edges if start == name]
    for name in graph.nodes:
        if name not in reached:
            raise ArgumentError(f"no input of the graph reaches node {shown(name)}.")
    return {name: replace(contexts[name], shape=shape) for name, (shape, _) in reached.items()}


def _declared(name: Name, node: object) -> Shape:
    shape = (getattr(node, "input_type", None) or {}).get("input")
    if shape is None:
        raise ArgumentError(f"node {shown(name)} (Input) does not say the shape of its input.")
    return _at(name, node, check_shape, "its input", np.ravel(shape).tolist())


def _count_states(context: Context, room: int) -> int:
    """How many numbers the states of a node hold: a small file may ask for long delays of wide inputs."""
    shapes = KINDS[kind_of(context.node)].states(context).values()
    count = sum(math.prod(shape) for shape in shapes)
    if count > room:
        raise ArgumentError(
            f"its states hold {count:,} numbers; expected no more than {MOST:,} in the states of all nodes together."
        )
    return count


def _shape_behind(context: Context, numbers: Values, dtype: jnp.dtype) -> Shape:
    kind = KINDS[kind_of(context.node)]
    states = {k: jax.ShapeDtypeStruct(s, dtype) for k, s in kind.states(context).items()}
    x = jax.ShapeDtypeStruct(context.shape, dtype)
    new, y = jax.eval_shape(lambda p, s, x: kind.step(context, p, s, x), numbers, states, x)
    same = not kind.pointwise or y.shape == context.shape
    if not same or any(new[k].shape != a.shape for k, a in states.items()):
        shapes = ", ".join(f"`{k}` {list(a.shape)}" for k, a in numbers.items())
        raise ArgumentError(f"its input has shape {list(context.shape)}, which does not fit {shapes}.")
    return check_shape("what it gives", y.shape)


def _nested(flat: Mapping[Name, Mapping[str, jax.Array]]) -> dict[str, PyTree]:
    """Dictionaries within dictionaries, by the parts of the names; nodes that hold nothing are left out."""
    tree: dict[str, PyTree] = {}
    for name, values in flat.items():
        if values:
            inner = tree
            for part in name:
                inner = inner.setdefault(part, {})
            inner.update(values)
    return tree


def _inner(tree: PyTree, name: Name) -> Mapping[str, jax.Array]:
    """What a nested tree holds of a node."""
    for part in name:
        tree = tree.get(part, {})
    return tree
