"""How large a thing must be before another way to compute it pays: one record for each kind of device.

Nothing in a `Machine` changes what is computed, only in which order. The numbers for a CPU were measured on two cores
(AVX2, float32) by `benchmarks/run.py`; those for accelerators follow from how XLA works there, and say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf

import jax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclass(frozen=True)
class Machine:
    """Thresholds by which the engine chooses between equivalent programs.

    The defaults are those of a device that XLA already serves well: nothing is unrolled or looped by hand.
    """

    # Bytes of a trace from which on a sum of products over few steps or samples is written out term by term. On a CPU,
    # XLA contracts a (16, 512, 256) trace with a learning signal in 1.54 ms, and in 0.25 ms if the sum is written out.
    unrolled_product_bytes: float = inf
    # For plain sums: pairs of (bytes of the result, most terms that are written out). A reduction costs a CPU 10 ns for
    # each number; 64 written-out terms of small arrays cost more than that to compile.
    unrolled_sums: tuple[tuple[int, int], ...] = ()
    # Most samples or steps whose products are written out.
    unrolled_terms: int = 64
    # Most steps of a window whose outer products are written out, to be added in the pass that moves the trace.
    fused_steps: int = 0
    # Bytes from which on several traces of one op are held as one array and moved sample by sample, within the cache;
    # and bytes from which on they are read sample by sample as well.
    stack_bytes: float = inf
    long_stack_bytes: float = inf
    # Bytes of a trace and steps of a window from which on it is moved some samples at a time; and how many samples.
    grouped_trace_bytes: float = inf
    grouped_steps: int = 7
    grouped_samples: int = 4
    # Whether steps and samples may be merged into one axis for the gradient of a weight, so that the product needs no
    # transposed operand. An axis of samples that is cut over devices must stay an axis of its own.
    merges_steps: bool = True
    # Whether sparse products are computed by sums of gathered entries rather than by scattering, and whether traces of
    # their entries are moved one sample after the other.
    gathers_entries: bool = False
    # Samples that are read together from one pass over the indices of a sparse matrix.
    entries_together: int = 4
    # Numbers in the gradient of a weight up to which XLA copies the trace sooner than it would order reads and writes.
    copied_size: int = 1024
    # A product of more rows than this gains nothing from being joined over the steps of a window: reading its weight no
    # longer dominates.
    joined_rows: int = 32
    # The devices that arrays are cut over, if there are several.
    mesh: Mesh | None = None

    def whole_along(self, a: Array, axis: int) -> Array:
        """An array that all of is wanted along an axis: on a mesh it is gathered there once, before it is read.

        XLA would otherwise gather what is read of it, which for the entries of a sparse matrix is much larger.
        """
        if self.mesh is None:
            return a
        spec = [PartitionSpec.UNCONSTRAINED] * a.ndim
        spec[axis] = None
        return jax.lax.with_sharding_constraint(a, NamedSharding(self.mesh, PartitionSpec(*spec)))


CPU = Machine(
    unrolled_product_bytes=2**12,
    unrolled_sums=((2**8, 60), (2**14, 64)),
    fused_steps=10,
    stack_bytes=2**20,
    long_stack_bytes=2**25,
    grouped_trace_bytes=2**24,
    gathers_entries=True,
)
# A GPU or TPU reduces and contracts at the speed of its memory, and a loop over samples would leave most of it idle.
# Reading a weight costs more of a step there, so that more rows are joined.
ACCELERATOR = Machine(joined_rows=512)


def meshed_machine(mesh: Mesh) -> Machine:
    """For arrays that are cut over several devices, whatever these are: what is written out by sample, looped over
    samples or merged with the axis of samples would be sent between devices."""
    return Machine(merges_steps=False, mesh=mesh)


_override: ContextVar[Machine | None] = ContextVar("machine", default=None)


def machine() -> Machine:
    """The machine that is compiled for: the one in force, by default that of JAX's default platform."""
    chosen = _override.get()
    return chosen if chosen is not None else CPU if jax.default_backend() == "cpu" else ACCELERATOR


@contextmanager
def compiling_for(target: Machine) -> Iterator[None]:
    """Compile for this machine while the context is open."""
    token = _override.set(target)
    try:
        yield
    finally:
        _override.reset(token)
