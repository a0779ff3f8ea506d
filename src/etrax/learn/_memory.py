"""What a learner will need in memory, before anything is allocated: its program is compiled for shapes alone."""

from __future__ import annotations

import os
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._arguments import format_bytes
from .._compat import is_inexact
from .._errors import ArgumentError
from ..ir import PyTree, Role
from ._checks import check_window
from ._program import Arguments, Program
from ._sequence import Losses, run_sequence


class Memory(NamedTuple):
    """Bytes: of the trace that is carried, of the buffers of a window, and of everything at once.

    `peak` counts parameters, state, inputs, gradients and buffers; of the sequence only `inputs` grow with its length.
    """

    trace: int
    window: int
    inputs: int
    peak: int

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {format_bytes(n)}" for name, n in zip(self._fields, self, strict=True))
        return f"Memory({shown})"


def predict(program: Program, window: int, steps: int, donate: bool = False) -> Memory:
    """Compile one gradient over `steps` steps for shapes alone, and read what the compiler has planned."""
    facts, k = program.facts, check_window(window)
    step = facts.step
    losses = Losses(step, _any_loss, "mean", lambda output: output)

    @partial(jax.jit, donate_argnums=(1, 4) if donate else ())
    def run(params: PyTree, states: PyTree, inputs: PyTree, mask: PyTree, trace: PyTree) -> PyTree:
        return run_sequence(program, Arguments(params, states, inputs, mask), trace, None, losses, k)

    params = [_struct(leaf.aval) for leaf in step.select(Role.PARAM)]
    states = [_struct(leaf.aval) for leaf in facts.states]
    inputs = [jax.ShapeDtypeStruct((steps, *leaf.aval.shape), leaf.aval.dtype) for leaf in step.select(Role.INPUT)]
    trace = jax.eval_shape(program.transport.init)
    # Where the step takes no inputs, something else must say how many steps there are.
    mask = None if inputs else jax.ShapeDtypeStruct((steps,), jnp.float32)
    compiled = run.lower(params, states, inputs, mask, trace).compile()
    found = compiled.memory_analysis()
    if found is None:
        raise ArgumentError("this JAX backend does not say how much memory a program needs.")
    whole = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    seen = sum(a.size * jnp.dtype(a.dtype).itemsize for a in inputs if hasattr(a.dtype, "itemsize"))
    return Memory(program.transport.nbytes, found.temp_size_in_bytes, seen, whole - found.alias_size_in_bytes)


# Windows longer than this gain little time and cost memory.
LONGEST = 64


def fitting_window(program: Program, budget: float) -> int:
    """The longest window, up to 64 steps, whose peak stays within a budget in bytes (without the inputs)."""
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
    while k > 1 and base + k * per_step > budget:
        k //= 2
    return k


def default_budget() -> float:
    """Half of the device's memory."""
    stats = jax.devices()[0].memory_stats() or {}
    return (stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / 2


def _any_loss(output: PyTree, target: PyTree) -> jax.Array:
    """The memory of a loss is that of the outputs, whatever it is."""
    leaves = [a for a in jax.tree.leaves(output) if is_inexact(a)]
    return sum((jnp.abs(a).astype(jnp.float32) ** 2).sum() for a in leaves) + jnp.zeros(())


def _struct(aval: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
