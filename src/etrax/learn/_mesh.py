"""A learner on a mesh of devices: each runs the program of its own part of the step, under `shard_map`.

Samples and neurons are cut as `sharding` lays them out. The step of one device is analysed and given its transport like
any other: a trace lives with its sample and its postsynaptic position, and moves without a word to other devices.
What travels: what the step of a device asks of others (activity of cut layers, sums over them), and gradients, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, use_abstract_mesh
from jax.typing import DTypeLike

from .._arguments import format_bytes
from .._compat import is_concrete
from .._errors import ArgumentError, CompilationError
from ..analysis import analyse, find_visible
from ..engine import evolve
from ..ir import PyTree, Role, format_path, leaves_with_paths
from ..rules import Rule
from ..sharding import (
    Alone,
    Device,
    Dims,
    Shardings,
    cut_sizes,
    layout,
    local_step,
    place_like,
    travels,
)
from ._checks import Optimizer
from ._mesh_losses import LocalLosses
from ._mesh_optimizer import cut_like_params, update_slices
from ._mesh_parts import Part, run_parts
from ._processes import check_same_model
from ._program import Arguments, Program
from ._sequence import Losses, run_sequence, train_sequence

# Rules whose traces are of positions, and so can be cut with them.
_CUT = frozenset({"tbptt", "d_rtrl", "pp_prop", "e_prop", "ottt", "rflo", "three_factor"})

_PLACES = {"inputs": "inputs", "state": "hidden"}


def can_be_cut(rule: Rule, by_neuron: bool) -> bool:
    """Whether a rule, and those that it is made of, keep their traces by position.

    A random feedback matrix is drawn for all neurons at once, and one that follows the readout learns from all samples.
    """
    if rule.members:
        return all(can_be_cut(r, by_neuron) for r in rule.members)
    whole = "feedback_rate" in rule.options or (by_neuron and "feedback" in rule.options)
    return rule.name in _CUT and not whole


def _has_signals(rule: Rule) -> bool:
    """Whether a rule, or one that it is made of, has signals that act on what is read of the states."""
    return rule.name == "three_factor" or "feedback" in rule.options or any(map(_has_signals, rule.members or ()))


@dataclass(frozen=True, eq=False)
class Meshed:
    """A program over whole arrays, cut over a mesh; `dims` says how each input leaf of the step is."""

    program: Program
    rule: Rule
    trace_dtype: DTypeLike | None
    mesh: Mesh
    dims: Sequence[Dims]

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Axes of the mesh that cut anything."""
        return {a: n for a, n in self.mesh.shape.items() if any(a in d for d in self.dims)}

    @cached_property
    def parts(self) -> list[Part]:
        """One part for each device along the axes that cut, or one for all if they run the same program."""
        places = [dict(zip(self.sizes, at, strict=True)) for at in product(*map(range, self.sizes.values()))]
        first = self._part(places[0], self.sizes, self.dims)
        rest = places[1:] if first.local.differs else []
        return [first, *(self._part(at, self.sizes, self.dims) for at in rest)]

    def _part(self, at: Mapping[str, int], sizes: Mapping[str, int], dims: Sequence[Dims]) -> Part:
        device = Device(sizes, at)
        local = local_step(self.program.facts, dims, device)
        facts = analyse(local.step)
        transport = self.rule.transport(facts, None, self.trace_dtype)
        if _has_signals(self.rule) and find_visible(facts).who_reads() != self._who_reads:
            raise CompilationError(
                f"the learning signals of {self.rule} act on what weights and outputs read of the states, and on one "
                "device of this mesh that is something else than in the whole model. Give each device more samples and "
                "neurons, or cut the batch only (`shard='batch'`)."
            )
        program = replace(self.program, facts=facts, transport=transport, by_values=not local.differs)
        return Part(device, local, program)

    @cached_property
    def _who_reads(self) -> object:
        return find_visible(self.program.facts).who_reads()

    @cached_property
    def trace_dims(self) -> list[Dims]:
        """How the leaves of the trace are cut: read off the traces of devices along one axis at a time."""
        whole, tree = jax.tree.flatten(jax.eval_shape(self.program.transport.init))
        alone: dict[str, Alone] = {}
        for axis, n in self.sizes.items():
            part = self.parts[0]
            if len(self.sizes) > 1:
                dims = [tuple(a if a == axis else None for a in own) for own in self.dims]
                part = self._part({axis: 0}, {axis: n}, dims)
            found, own = jax.tree.flatten(jax.eval_shape(part.program.transport.init))
            sizes = cut_sizes(self.program.facts, part.program.facts, n)
            alone[axis] = Alone(found if own == tree else None, n, sizes)
        dims = place_like(alone, whole)
        if dims is not None:
            found = jax.tree.leaves(jax.eval_shape(self.parts[0].program.transport.init))
            device = self.parts[0].device
            fits = [device.shape(a.shape, d) == b.shape for a, d, b in zip(whole, dims, found, strict=True)]
            if all(fits):
                return dims
        raise CompilationError(
            f"the trace of {self.rule} on one device of this mesh is of another form than that of the whole model: "
            "it cannot be cut over the devices. Give each device more samples and neurons, cut parameters where their "
            "outputs are cut, or cut the batch only (`shard='batch'`)."
        )

    @cached_property
    def shardings(self) -> Shardings:
        program, step = self.program, self.program.facts.step
        named = [NamedSharding(self.mesh, PartitionSpec(*d)) for d in self.dims]
        first, n = step.first_state, len(step.states)
        inputs = [NamedSharding(self.mesh, PartitionSpec(None, *d)) for d in self.dims[first + n :]]
        tree = jax.tree.structure(jax.eval_shape(program.transport.init))
        trace = [NamedSharding(self.mesh, PartitionSpec(*d)) for d in self.trace_dims]
        return Shardings(
            jax.tree.unflatten(step.trees[Role.PARAM], named[:first]),
            program.hidden_of(named[first : first + n]),
            jax.tree.unflatten(tree, trace),
            jax.tree.unflatten(step.trees[Role.INPUT], inputs),
        )

    @property
    def _param_specs(self) -> list[PartitionSpec]:
        return [PartitionSpec(*d) for d in self.dims[: self.program.facts.step.first_state]]

    @property
    def _state_dims(self) -> Sequence[Dims]:
        first = self.program.facts.step.first_state
        return self.dims[first : first + len(self.program.facts.states)]

    @property
    def _state_specs(self) -> list[PartitionSpec]:
        return [PartitionSpec(*d) for d in self._state_dims]

    @property
    def _trace_specs(self) -> PyTree:
        tree = jax.tree.structure(jax.eval_shape(self.program.transport.init))
        return jax.tree.unflatten(tree, [PartitionSpec(*d) for d in self.trace_dims])

    def _input_specs(self) -> list[PartitionSpec]:
        n = self.program.facts.step.first_state + len(self.program.facts.states)
        return [PartitionSpec(None, *d) for d in self.dims[n:]]

    def along_specs(self, along: PyTree, samples: np.ndarray | None = None) -> PyTree:
        """Targets and masks are cut with the samples of the states, where their second axis is as long.

        With `samples` they hold more, of which so many are to be chosen.
        """
        first = self.program.facts.step.first_state
        states = zip(self.program.facts.states, self.dims[first:], strict=False)
        axes = {(s.aval.shape[0], d[0]) for s, d in states if len(d) > 1 and d[0] is not None}
        size, axis = next(iter(axes)) if len(axes) == 1 else (-1, None)

        def one(a: Any) -> PartitionSpec:
            shape = jnp.shape(a) if samples is None else (*jnp.shape(a)[:1], *(len(samples),) * (jnp.ndim(a) > 1))
            return PartitionSpec(None, axis) if shape[1:2] == (size,) else PartitionSpec()

        return jax.tree.map(one, along)

    def run_sequence(
        self, given: Arguments, trace: PyTree, targets: PyTree, losses: Losses, k: int
    ) -> tuple[Array, PyTree, list[Array], PyTree]:
        """`run_sequence` on the mesh."""
        along = self.along_specs((targets, given.weight))

        def run(part: Part, params: Any, states: Any, inputs: Any, trace: Any, extra: Any) -> PyTree:
            targets, weight = extra
            own = LocalLosses(losses, part, along, self._state_dims)
            program = self._collecting(part, own, None)
            return run_sequence(program, Arguments(params, states, inputs, weight), trace, targets, own, k)  # type: ignore[arg-type]

        ins = (self._param_specs, self._state_specs, self._input_specs(), self._trace_specs, along)
        grads = jax.tree.unflatten(self.program.facts.step.trees[Role.PARAM], self._param_specs)
        outs = (PartitionSpec(), grads, self._state_specs, self._trace_specs)
        args = (given.params, given.states, given.inputs, trace, (targets, given.weight))
        return run_parts(self.mesh, self.sizes, self.parts, run, args, ins, outs)

    def train_sequence(
        self, optimizer: Optimizer, given: Arguments, start: PyTree, targets: PyTree, losses: Losses, k: int
    ) -> tuple[PyTree, Array]:
        """`train_sequence` on the mesh."""
        along = self.along_specs((targets, given.weight))
        _, opt_state, _ = start
        step = self.program.facts.step
        param_specs = jax.tree.unflatten(step.trees[Role.PARAM], self._param_specs)
        opt_specs = cut_like_params(self.program.facts.step, self.dims, opt_state)

        def run(part: Part, start: Any, states: Any, inputs: Any, extra: Any) -> PyTree:
            targets, weight = extra
            own = LocalLosses(losses, part, along, self._state_dims)
            program = self._collecting(part, own, opt_specs)
            own_given = Arguments(program.params(start[0]), states, inputs, weight)
            end, found, _ = train_sequence(program, optimizer, own_given, start, targets, own, k)  # type: ignore[arg-type]
            return end, found

        specs = (param_specs, opt_specs, self._trace_specs)
        ins = (specs, self._state_specs, self._input_specs(), along)
        outs = ((param_specs, opt_specs, self._state_specs, self._trace_specs), PartitionSpec())
        return run_parts(
            self.mesh,
            self.sizes,
            self.parts,
            run,
            (start, given.states, given.inputs, (targets, given.weight)),
            ins,
            outs,
        )

    def evolve(self, params: PyTree, states: PyTree, trace: PyTree, inputs: PyTree) -> tuple[Any, PyTree, Any]:
        """`evolve` on the mesh, over inputs with an axis of time."""

        def run(part: Part, params: Any, states: Any, trace: Any, inputs: Any) -> PyTree:
            facts = part.program.facts
            w = part.program.prepared(params)
            return evolve(facts, part.program.transport, params, w, states, trace, inputs)

        outputs = [PartitionSpec(None, *p.dims) for p in self.parts[0].local.outputs]
        ins = (self._param_specs, self._state_specs, self._trace_specs, self._input_specs())
        outs = (self._state_specs, self._trace_specs, outputs)
        return run_parts(self.mesh, self.sizes, self.parts, run, (params, states, trace, inputs), ins, outs)

    def place(self, params: PyTree, opt_state: PyTree) -> tuple[PyTree, PyTree]:
        """Parameters and the state of their optimizer, where they live on the mesh."""
        specs = cut_like_params(self.program.facts.step, self.dims, opt_state)
        return jax.device_put((params, opt_state), (self.shardings.params, self.named(specs)))

    def named(self, specs: PyTree) -> PyTree:
        is_spec = lambda s: isinstance(s, PartitionSpec)  # noqa: E731
        return jax.tree.map(lambda s: NamedSharding(self.mesh, s), specs, is_leaf=is_spec)

    def placed(self, params: PyTree, states: PyTree, inputs: PyTree, trace: PyTree) -> tuple[PyTree, ...]:
        """Shapes of what a sequence is given, each with its place on the mesh."""
        specs = (self._param_specs, self._state_specs, self._input_specs(), self._trace_specs)

        def one(a: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(self.mesh, spec))

        return tuple(jax.tree.map(one, tree, s) for tree, s in zip((params, states, inputs, trace), specs, strict=True))

    def check_devices(self, given: Mapping[str, PyTree]) -> None:
        """Arrays that are bound to devices must be on those of the mesh, all of them."""
        own = set(self.mesh.devices.flat)
        for what, tree in given.items():
            for path, a in leaves_with_paths(tree):
                if isinstance(a, jax.Array) and is_concrete(a) and a.committed and a.sharding.device_set != own:
                    found = ", ".join(sorted(map(str, a.sharding.device_set))[:4])
                    place = f"learner.shardings.{_PLACES.get(what, 'params')}"
                    raise ArgumentError(
                        f"`{what}` at {format_path(path, what)} is on {found}, not on the {len(own)} devices of the "
                        f"mesh: put it there, as `jax.device_put({what}, {place})` does, or pass a numpy array."
                    )

    def called(self, run: Callable[..., PyTree], *args: PyTree) -> PyTree:
        """What `run` gives. If shardings are part of types where it is called, or of what it is given (axes of the kind
        that `jax.make_mesh` makes), they are of what it gives, so that both can be mixed."""
        types = self._explicit_types(args)
        if types is None:
            return run(*args)
        if not is_concrete(args):
            raise ArgumentError(
                "a learner on a mesh is called inside `jax.jit` under `jax.set_mesh` with explicit axes, where each "
                "operation must say how its result is cut. Make the mesh with `jax.make_mesh(shape, names, axis_types="
                "(jax.sharding.AxisType.Auto,) * len(names))`, or call the learner outside `jit`."
            )
        theirs = Mesh(self.mesh.devices, self.mesh.axis_names, axis_types=types)

        def on(mesh: Mesh, tree: PyTree) -> PyTree:
            cut = lambda a: isinstance(a, jax.Array) and isinstance(a.sharding, NamedSharding)  # noqa: E731
            return jax.tree.map(
                lambda a: jax.device_put(a, NamedSharding(mesh, a.sharding.spec)) if cut(a) else a, tree
            )

        with use_abstract_mesh(self.mesh.abstract_mesh):
            return on(theirs, run(*on(self.mesh, args)))

    def _explicit_types(self, args: PyTree) -> tuple[AxisType, ...] | None:
        """Types of the axes of a mesh like this one, in force or of an array, if any is explicit."""
        own = [
            a.sharding.mesh for a in jax.tree.leaves(args) if isinstance(getattr(a, "sharding", None), NamedSharding)
        ]
        for mesh in (jax.sharding.get_abstract_mesh(), *own):
            if AxisType.Explicit in mesh.axis_types and dict(mesh.shape) == dict(self.mesh.shape):
                return mesh.axis_types
        return None

    def notes(self) -> list[str]:
        """What lies on a device, and what travels."""
        shape = " × ".join(f"{n} along {a!r}" for a, n in self.mesh.shape.items())
        if not self.sizes:
            return [f"on a mesh of {shape}, {self.rule} is not cut: every device computes and holds everything"]
        part = self.parts[0]
        trace, total = part.program.transport.nbytes, self.program.transport.nbytes
        found = [f"on a mesh of {shape}, a device holds {format_bytes(trace)} of the trace of {format_bytes(total)}"]
        for way in travels(part.local.step):
            bits = " (zeros and ones as bits)" if way.bits else ""
            found.append(
                f"each step sends {format_bytes(way.sent)}{bits} along {way.axis!r}, and {format_bytes(way.back)} of "
                "gradients back"
            )
        params = list(zip(self.program.facts.step.select(Role.PARAM), self.dims, strict=False))
        if any(any(d) for _, d in params):
            whole = ", ".join(format_path(leaf.path, "params") for leaf, d in params if not any(d))
            found += [f"whole on every device: {whole}"] * bool(whole)
        shared = [part.device.struct(leaf.aval, d) for leaf, d in params if set(self.sizes) - set(d)]
        size = sum(math.prod(a.shape) * a.dtype.itemsize for a in shared)
        found.append(f"each call (each window of `train`) adds up {format_bytes(size)} of gradients over devices")
        return found

    def init_trace(self) -> PyTree:
        """The trace before the first step, each part of it made where it lives."""
        return jax.jit(self.program.transport.init, out_shardings=self.shardings.trace)()

    def _collecting(self, part: Part, losses: LocalLosses, opt_specs: PyTree) -> Program:
        """The program of a device that adds up its share of the loss and of gradients with all others'."""
        axes = [tuple(a for a in self.sizes if a not in d) for d in self.dims[: self.program.facts.step.first_state]]

        def collect(loss: Array, grads: PyTree) -> tuple[Array, PyTree]:
            leaves, tree = jax.tree.flatten(grads)
            found = [loss, *leaves]
            over = [tuple(a for a in self.sizes if a in losses.partial), *axes]
            for some in dict.fromkeys(over):
                which = [i for i, a in enumerate(over) if a == some]
                if some:
                    for i, v in zip(which, lax.psum([found[i] for i in which], some), strict=True):
                        found[i] = v
            return found[0], jax.tree.unflatten(tree, found[1:])

        def update(optimizer: Optimizer, grads: PyTree, opt_state: PyTree, params: PyTree) -> tuple[PyTree, PyTree]:
            walk, dims = part.device.walk_on_any(losses.where), self.dims[: self.program.facts.step.first_state]
            return update_slices(walk, dims, optimizer, opt_specs, grads, opt_state, params)

        any_cut = any(a for d in self.dims[: self.program.facts.step.first_state] for a in d)
        program = replace(part.program, collect=collect)
        return replace(program, update=update) if any_cut else program


def meshed(program: Program, rule: Rule, trace_dtype: DTypeLike | None, mesh: Mesh, shard: Any) -> Meshed:
    """A learner's program on a mesh; a rule whose trace cannot be cut has everything on every device."""
    # Axes whose shardings are part of types, which `jax.make_mesh` gives, would ask as much of all that is passed in.
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)
    dims = layout(program.facts, mesh, shard)
    if jax.process_count() > 1:
        check_same_model(program, rule, mesh, dims)
    if not can_be_cut(rule, any(a for d in dims[: program.facts.step.first_state] for a in d)):
        dims = [(None,) * len(d) for d in dims]
    return Meshed(program, rule, trace_dtype, mesh, dims)
