"""A learner on a mesh of devices: the plain program, partitioned by JAX.

The learner only says how parameters, states, trace and inputs lie; `jax.jit` partitions the program. How the trace lies
is asked of the compiler: a trace that starts as zeros inside the program comes out cut with its samples and positions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from inspect import signature
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, use_abstract_mesh

from .._arguments import format_bytes
from .._compat import is_concrete
from .._errors import ArgumentError
from .._machine import compiling_for, meshed_machine
from .._sums import watched
from ..compiler.ir import PyTree, Role, Step, format_path, leaves_with_paths
from ..learn import (
    Arguments,
    LearnerState,
    Losses,
    Memory,
    Program,
    Run,
    Shard,
    donated,
    plan,
    run_sequence,
    sum_of_squares,
)  # fmt: skip
from ..rules import Rule
from ._explicit import call_with_types
from ._processes import check_same_model, place_batch
from ._shard import Dims, layout, mesh_axes, trace_dims
from ._traffic import Traffic, read_traffic

_PLACES = {"inputs": "inputs", "state": "hidden"}
# Windows and steps of the program that the compiler is asked about: long enough that its loops stay loops.
_WINDOWS, _STEPS = 3, 3


class Shardings(NamedTuple):
    """Trees of `NamedSharding`: of parameters, states, trace, and inputs of a sequence (time first)."""

    params: PyTree
    hidden: PyTree
    trace: PyTree
    inputs: PyTree


@dataclass(frozen=True, eq=False)
class Meshed:
    """A program whose arrays lie on a mesh; `dims` says how each input leaf of the step is cut.

    `neuron` is the mesh axis along which parameters may be cut that the user did not name.
    """

    plain: Program
    mesh: Mesh
    dims: Sequence[Dims]
    neuron: str | None

    @property
    def program(self) -> Program:
        """The program whose trace lies after each window as before it."""
        return replace(self.plain, place_trace=lambda trace: _put(trace, self.shardings.trace))

    def compiling(self) -> AbstractContextManager[None]:
        """While it is open, programs are compiled for this mesh."""
        return compiling_for(meshed_machine(self.mesh))

    def named(self, *axes: Any) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    @property
    def _step(self) -> Step:
        return self.plain.facts.step

    @cached_property
    def _probe(self) -> tuple[list[NamedSharding], PyTree, Traffic]:
        """How gradients and trace come out of a short sequence if nothing is said of them, and what travels in it."""
        first, n = self._step.first_state, len(self._step.states)
        cut = [
            jax.ShapeDtypeStruct(leaf.aval.shape, leaf.aval.dtype, sharding=self.named(*d))
            for leaf, d in zip(self._step.ins[: first + n], self.dims, strict=False)
        ]
        steps = _WINDOWS * _STEPS
        inputs = [
            jax.ShapeDtypeStruct((steps, *leaf.aval.shape), leaf.aval.dtype, sharding=self.named(None, *d))
            for leaf, d in zip(self._step.ins[first + n :], self.dims[first + n :], strict=True)
        ]
        losses = Losses(self._step, sum_of_squares, "mean", lambda output: output)
        mask = None if inputs else jax.ShapeDtypeStruct((steps,), jnp.float32)
        # A rule may show targets to a function of the user's: those that most have are like the outputs.
        outputs = [leaf.aval for leaf in self._step.select(Role.OUTPUT)]
        targets = [jax.ShapeDtypeStruct((steps, *a.shape), a.dtype) for a in outputs]
        targets = jax.tree.unflatten(self._step.trees[Role.OUTPUT], targets)

        def run(params: PyTree, states: PyTree, inputs: PyTree, targets: PyTree, mask: PyTree) -> PyTree:
            with self.compiling():
                arguments, start = Arguments(params, states, inputs, mask), self.plain.transport.init()
                program = replace(self.plain, place_trace=self._place_known)
                _, grads, _, trace = run_sequence(program, arguments, start, targets, losses, _STEPS)
            return jax.tree.leaves(grads), trace

        with use_abstract_mesh(self.mesh.abstract_mesh):
            try:
                lowered = jax.jit(run).lower(cut[:first], cut[first:], inputs, targets, mask)
            except Exception:  # a function of the user's wants other targets: what is not known is not cut
                trace = jax.eval_shape(self.plain.transport.init)
                none = Traffic(Counter(), Counter(), Counter(), ())
                return [self.named()] * first, jax.tree.map(lambda _: self.named(), trace), none
            compiled = lowered.compile()
        grads, trace = compiled.output_shardings
        return grads, trace, read_traffic(compiled.as_text() or "", _STEPS)

    @cached_property
    def param_specs(self) -> list[PartitionSpec]:
        """Parameters that are not cut by the user or by their outputs lie where their gradients are made."""
        specs = [PartitionSpec(*d) for d in self.dims[: self._step.first_state]]
        if self.neuron is None or all(any(s) for s in specs):
            return specs
        chosen = []
        for spec, sharding, leaf in zip(specs, self._probe[0], self._step.select(Role.PARAM), strict=True):
            axes = [a if a == self.neuron else None for a in sharding.spec]
            fits = all(a is None or n % self.mesh.shape[a] == 0 for n, a in zip(leaf.aval.shape, axes, strict=False))
            chosen.append(spec if any(spec) or not fits else PartitionSpec(*axes))
        return chosen

    @cached_property
    def _leaves(self) -> tuple[list[NamedSharding], list[NamedSharding], list[NamedSharding]]:
        """Shardings of the leaves of parameters, states, and inputs of a sequence."""
        first, n = self._step.first_state, len(self._step.states)
        params = [NamedSharding(self.mesh, s) for s in self.param_specs]
        inputs = [self.named(None, *d) for d in self.dims[first + n :]]
        return params, [self.named(*d) for d in self.dims[first : first + n]], inputs

    @cached_property
    def shardings(self) -> Shardings:
        trees, (params, states, inputs) = self._step.trees, self._leaves
        return Shardings(
            jax.tree.unflatten(trees[Role.PARAM], params),
            self.plain.hidden_of(states),
            self._trace,
            jax.tree.unflatten(trees[Role.INPUT], inputs),
        )

    @cached_property
    def _known(self) -> dict[int, NamedSharding]:
        """Traces by position, as leaves by number: they lie with their samples and positions."""
        facts = self.plain.facts
        dims = trace_dims(facts, self.plain.transport, facts.relations, self.dims, self.mesh)
        return {i: self.named(*axes) for i, axes in dims.items()}

    @cached_property
    def _trace(self) -> PyTree:
        """What is no trace by position (random projections, influence matrices) lies as the compiler puts it.

        So do traces along mesh axes that do not cut their positions: that of a readout whose few units are whole lies
        with its data, the neurons that it reads.
        """
        leaves, tree = jax.tree.flatten(self._probe[1])
        shapes = [a.shape for a in jax.tree.leaves(jax.eval_shape(self.plain.transport.init))]
        pairs = enumerate(zip(leaves, shapes, strict=True))
        placed = [
            self._beside(self._known[i], s, n) if i in self._known else self.named(*s.spec) for i, (s, n) in pairs
        ]
        return jax.tree.unflatten(tree, placed)

    def _beside(self, by_data: NamedSharding, by_compiler: NamedSharding, shape: Sequence[int]) -> NamedSharding:
        """Cuts that are known, and those of the compiler along other axes of the mesh."""
        cuts = [*by_data.spec]
        for d, axis in enumerate(by_compiler.spec):
            fits = axis in self.mesh.shape and shape[d] % self.mesh.shape[axis] == 0
            if cuts[d] is None and fits and axis not in cuts:
                cuts[d] = axis
        return self.named(*cuts)

    def _place_known(self, trace: PyTree) -> PyTree:
        """Inside the program that the compiler is asked about: cuts that are known, others are left to it."""
        free = PartitionSpec.UNCONSTRAINED
        specs = {i: [free if axis is None else axis for axis in s.spec] for i, s in self._known.items()}
        leaves, tree = jax.tree.flatten(trace)
        return jax.tree.unflatten(
            tree, [_put(a, self.named(*specs[i])) if i in specs else a for i, a in enumerate(leaves)]
        )

    def along(self, tree: PyTree, samples: np.ndarray | None = None) -> PyTree:
        """Targets and masks are cut with the samples of the states, where their second axis is as long.

        With `samples` they hold more, of which so many are to be chosen.
        """
        first = self._step.first_state
        states = zip(self.plain.facts.states, self.dims[first:], strict=False)
        axes = {(s.aval.shape[0], d[0]) for s, d in states if d and d[0] is not None}
        size, axis = next(iter(axes)) if len(axes) == 1 else (-1, None)

        def one(a: Any) -> NamedSharding:
            shape = jnp.shape(a) if samples is None else (*jnp.shape(a)[:1], *(len(samples),) * (jnp.ndim(a) > 1))
            return self.named(None, axis) if shape[1:2] == (size,) and axis != self.neuron else self.named()

        return jax.tree.map(one, tree)

    def _along_step(self, tree: PyTree) -> PyTree:
        """Shardings of outputs or targets of one step, which have no axis of time."""
        return jax.tree.map(lambda a: self.along(jnp.asarray(a)[None]), tree)

    def opt_state(self, tree: PyTree) -> PyTree:
        """The state of an optimizer is cut as the parameter whose path its own path ends in."""
        leaves = self._step.select(Role.PARAM)
        by_path = {leaf.path: (leaf.aval.shape, s) for leaf, s in zip(leaves, self.param_specs, strict=True)}

        def one(path: tuple[Any, ...], a: Any) -> NamedSharding:
            for n in range(len(path) + 1):
                shape, spec = by_path.get(path[n:], (None, PartitionSpec()))
                if shape == jnp.shape(a):
                    return NamedSharding(self.mesh, spec)
            return self.named()

        return jax.tree.unflatten(jax.tree.structure(tree), [one(p, a) for p, a in leaves_with_paths(tree)])

    def state(self, state: LearnerState) -> LearnerState:
        """Shardings of a learner's state."""
        return LearnerState(
            self.shardings.hidden, self.shardings.trace, jax.tree.map(lambda _: self.named(), state.step)
        )

    def place(self, **values: PyTree) -> dict[str, PyTree]:
        """Values by name, each where it lies on the mesh: put there, or inside `jit` told to be there."""
        shardings = {
            "params": lambda tree: self.shardings.params,
            "grads": lambda tree: self.shardings.params,
            "opt_state": self.opt_state,
            "state": self.state,
            "inputs": self._of_inputs,
            "targets": self.along,
            "mask": self.along,
            "reset": self._of_resets,
            "initial": lambda tree: None if tree is None else self.shardings.hidden,
            "loss": lambda tree: jax.tree.map(lambda _: self.named(), tree),
            "outputs": self._along_step,
            "target": self._along_step,
        }
        return {name: _put(value, shardings[name](value)) for name, value in values.items()}

    def _of_resets(self, reset: Any) -> PyTree:
        """Flags of a sequence are cut with the lanes; those of one step, which are few, lie everywhere."""
        if reset is None:
            return None
        return self.along(reset) if jnp.ndim(reset) == 2 else jax.tree.map(lambda _: self.named(), reset)

    def _of_inputs(self, tree: PyTree) -> PyTree:
        """Shardings of the inputs of a sequence, or of one step, whose leaves have one axis less."""
        leaves, tree_def = jax.tree.flatten(tree)
        structs = self._step.select(Role.INPUT)
        dims = self.dims[len(self.dims) - len(structs) :]
        shardings = [
            self.named(*d) if jnp.ndim(a) == len(d) else self.named(None, *d) for a, d in zip(leaves, dims, strict=True)
        ]
        return jax.tree.unflatten(tree_def, shardings)

    def placed_shapes(self, *trees: PyTree) -> tuple[PyTree, ...]:
        """Shapes of leaves of parameters, states and inputs, and of a trace, each with its place on the mesh."""
        return tuple(
            jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), tree, places)
            for tree, places in zip(trees, (*self._leaves, self.shardings.trace), strict=True)
        )

    def check_devices(self, values: Mapping[str, PyTree]) -> None:
        """Arrays that are bound to devices must be on those of the mesh, all of them."""
        devices = set(self.mesh.devices.flat)
        for what, tree in values.items():
            for path, a in leaves_with_paths(tree):
                if isinstance(a, jax.Array) and is_concrete(a) and a.committed and a.sharding.device_set != devices:
                    others = ", ".join(sorted(map(str, a.sharding.device_set))[:4])
                    place = f"learner.shardings.{_PLACES.get(what, 'params')}"
                    raise ArgumentError(
                        f"`{what}` at {format_path(path, what)} is on {others}, not on the {len(devices)} devices of "
                        f"the mesh: put it there, as `jax.device_put({what}, {place})` does, or pass a numpy array."
                    )

    def compiled(self, run: Run, donate: str = "", check: bool = True) -> Callable[..., list[PyTree]]:
        """`run` under `jit`, for this mesh, of values that lie where their names say; so do its results."""
        names = list(signature(run).parameters)

        @partial(jax.jit, donate_argnums=donated(run, donate))
        @watched
        def on_mesh(*args: PyTree) -> list[PyTree]:
            with self.compiling():
                return list(self.place(**run(*args)).values())

        def placed(*args: PyTree) -> list[PyTree]:
            return on_mesh(*self.place(**dict(zip(names, args, strict=True))).values())

        def call(*args: PyTree) -> list[PyTree]:
            if check:
                self.check_devices(dict(zip(names, args, strict=True)))
            return call_with_types(self.mesh, placed, *args)

        return call

    def trace_bytes_per_device(self) -> int:
        """Bytes of the trace that one device holds."""
        shapes = jax.tree.leaves(jax.eval_shape(self.plain.transport.init))
        pairs = zip(shapes, jax.tree.leaves(self.shardings.trace), strict=True)
        return sum(int(np.prod(s.shard_shape(a.shape), dtype=np.int64)) * a.dtype.itemsize for a, s in pairs)

    def notes(self) -> list[str]:
        """What lies on a device, and what travels."""
        shape = " × ".join(f"{n} along {a!r}" for a, n in self.mesh.shape.items())
        held, total = self.trace_bytes_per_device(), self.plain.transport.nbytes
        notes = [f"on a mesh of {shape}, a device holds {format_bytes(held)} of the trace of {format_bytes(total)}"]
        traffic = self._probe[2]
        for when, sent in (("each step", traffic.step), ("each window", traffic.window), ("each call", traffic.call)):
            if sent:
                kinds = ", ".join(f"{kind} {format_bytes(n)}" for kind, n in sorted(sent.items()))
                notes.append(f"{when} a device receives {kinds} (read off the compiled program)")
        params = list(zip(self._step.select(Role.PARAM), self.param_specs, strict=True))
        if any(any(s) for _, s in params):
            uncut = ", ".join(format_path(leaf.path, "params") for leaf, s in params if not any(s))
            notes += [f"whole on every device: {uncut}"] * bool(uncut)
        return notes

    def memory(self, window: int, steps: int, donate: bool, remat: int | None = None) -> Memory:
        """The compiler plans one device; all of them take as much."""
        with self.compiling():
            planned = plan(self.program, window, steps, donate, self.placed_shapes, remat)
        n, trace = self.mesh.size, self.trace_bytes_per_device()
        inputs = sum(math.prod(a.sharding.shard_shape(a.shape)) * jnp.dtype(a.dtype).itemsize for a in planned.inputs)
        return Memory(trace * n, planned.window * n, inputs * n, planned.peak * n, n, trace)

    def place_batch(self, inputs: PyTree, targets: PyTree, mask: np.ndarray, samples: np.ndarray) -> PyTree:
        return place_batch(self, inputs, targets, mask, samples)

    def new_trace(self) -> PyTree:
        """The trace before the first step, each part of it made where it lies."""
        with use_abstract_mesh(self.mesh.abstract_mesh):
            return jax.jit(self.plain.transport.init, out_shardings=self.shardings.trace)()


def _put(tree: PyTree, shardings: PyTree) -> PyTree:
    """Arrays where they belong; those of other processes are made of what each process holds of them."""

    def one(a: Any, sharding: NamedSharding) -> Any:
        if not is_concrete(a):
            return jax.lax.with_sharding_constraint(a, sharding)
        if isinstance(a, jax.Array) and a.committed:
            return jax.device_put(a, sharding)
        if jax.process_count() > 1:
            value = np.asarray(a)
            return jax.make_array_from_callback(value.shape, sharding, lambda at: value[at])
        return jax.device_put(a, sharding)

    return jax.tree.map(one, tree, shardings)


def meshed(program: Program, rule: Rule, mesh: Mesh, shard: Shard) -> Meshed:
    """A learner's program on a mesh."""
    # Axes whose shardings are part of types, which `jax.make_mesh` gives, would ask as much of all that is passed in.
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)
    dims = layout(program.facts, mesh, shard)
    if jax.process_count() > 1:
        check_same_model(program, rule, mesh, dims)
    transport, init = program.transport, program.transport.init

    def init_on_mesh() -> PyTree:
        """The form of a trace depends on what it is compiled for."""
        with compiling_for(meshed_machine(mesh)):
            return init()

    plain = replace(program, transport=replace(transport, init=init_on_mesh))
    return Meshed(plain, mesh, dims, mesh_axes(mesh, shard)[1] if isinstance(shard, str) else None)
