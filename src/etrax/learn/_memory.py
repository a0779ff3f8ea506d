"""What a learner will need in memory, before anything is allocated: its program is compiled for shapes alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._arguments import format_bytes
from .._errors import ArgumentError
from ..compiler.ir import PyTree, Role
from ._checks import check_window
from ._program import Arguments, Program
from ._sequence import Losses


class Memory(NamedTuple):
    """Bytes: of the trace that is carried, of the buffers of a window, and of everything at once.

    `peak` counts parameters, state, inputs, gradients and buffers; of the sequence only `inputs` grow with its length.
    """

    trace: int
    window: int
    inputs: int
    peak: int
    devices: int = 1
    trace_per_device: int = 0

    @property
    def per_device(self) -> Memory:
        """Bytes on one of the devices of a mesh."""
        n = self.devices
        return Memory(self.trace_per_device, self.window // n, self.inputs // n, self.peak // n) if n > 1 else self

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {format_bytes(n)}" for name, n in zip(self._fields[:4], self, strict=False))
        return f"Memory({shown})" if self.devices == 1 else f"Memory({shown}) on {self.devices} devices"


class Plan(NamedTuple):
    """What the compiler has planned for a gradient: bytes of a window's buffers, of everything, and the inputs."""

    window: int
    peak: int
    inputs: Sequence[jax.ShapeDtypeStruct]


def plan(
    program: Program, window: int, steps: int, donate: bool, place: Callable[..., tuple[PyTree, ...]] | None = None,
    remat: int | None = None,
) -> Plan:  # fmt: skip
    """Compile one gradient over `steps` steps for shapes alone, and read what the compiler has planned.

    `place` says how parameters, states, inputs and trace lie on a mesh; the plan is then that of one device.
    """
    facts, k = program.facts, check_window(window)
    step = facts.step
    losses = Losses(step, sum_of_squares, "mean", lambda output: output)

    @partial(jax.jit, donate_argnums=(1, 4) if donate else ())
    def run(params: PyTree, states: PyTree, inputs: PyTree, mask: PyTree, trace: PyTree) -> PyTree:
        return program.gradient(Arguments(params, states, inputs, mask), trace, None, losses, k, remat)

    params = [_struct(leaf.aval) for leaf in step.select(Role.PARAM)]
    states = [_struct(leaf.aval) for leaf in facts.states]
    inputs = [jax.ShapeDtypeStruct((steps, *leaf.aval.shape), leaf.aval.dtype) for leaf in step.select(Role.INPUT)]
    trace = jax.eval_shape(program.transport.init)
    # Where the step takes no inputs, something else must say how many steps there are.
    mask = None if inputs else jax.ShapeDtypeStruct((steps,), jnp.float32)
    if place is not None:
        params, states, inputs, trace = place(params, states, inputs, trace)
    planned = run.lower(params, states, inputs, mask, trace).compile().memory_analysis()
    if planned is None:
        raise ArgumentError("this JAX backend does not say how much memory a program needs.")
    peak = planned.argument_size_in_bytes + planned.output_size_in_bytes + planned.temp_size_in_bytes
    return Plan(planned.temp_size_in_bytes, peak - planned.alias_size_in_bytes, inputs)


def predict(program: Program, window: int, steps: int, donate: bool = False, remat: int | None = None) -> Memory:
    """Bytes that one gradient over `steps` steps takes."""
    planned = plan(program, window, steps, donate, remat=remat)
    sizes = [a.size * jnp.dtype(a.dtype).itemsize for a in planned.inputs if hasattr(a.dtype, "itemsize")]
    return Memory(program.transport.nbytes, planned.window, sum(sizes), planned.peak)


def sum_of_squares(output: PyTree, target: PyTree) -> jax.Array:
    """A loss of any output: its memory and its traffic are those of the outputs, whatever it is."""
    leaves = [a for a in jax.tree.leaves(output) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return sum((jnp.abs(a).astype(jnp.float32) ** 2).sum() for a in leaves) + jnp.zeros(())


# Longer windows gain little time and cost memory: than the first unless the trace is large, than the second always.
# The same on every device: how long a window is changes what an approximate rule computes.
LONGEST, LONGEST_OF_ALL = 64, 1024


def fitting_window(program: Program, budget: float) -> int:
    """The longest window that pays and whose peak stays within a budget in bytes (without the inputs).

    A trace is moved once a window, which takes the time of about as many steps as have buffers of its size. A window
    has 64 steps, or so many that their buffers are as large as the trace: neither time nor memory is then mostly its.
    """
    few, many = (predict(program, k, 2 * k) for k in (4, 8))
    per_step = max((many.peak - many.inputs) - (few.peak - few.inputs), 0) / 4
    base = few.peak - few.inputs - 4 * per_step
    if base + per_step > budget:
        raise ArgumentError(
            f"`window='auto'` finds no window within {format_bytes(budget)}: one step takes "
            f"{format_bytes(base + per_step)}, of which the trace of {program.rule} is "
            f"{format_bytes(program.transport.nbytes)}."
        )
    k = LONGEST
    while k < LONGEST_OF_ALL and k * per_step <= program.transport.nbytes:
        k *= 2
    while k > 1 and base + k * per_step > budget:
        k //= 2
    return k


def default_budget() -> float:
    """Half of the device's memory."""
    stats = jax.devices()[0].memory_stats() or {}
    return (stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / 2


def _struct(aval: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
