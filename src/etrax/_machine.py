"""How large a thing must be before another way to compute it pays: one record for each kind of device.

Nothing in a `Machine` changes what is computed, what a trace holds or what a report says, only in which order numbers
are added and how arrays lie. So the bounds that decide what a rule carries (`rules/_d_rtrl.py`), how long a window is
(`learn/_memory.py`) and how far the analysis looks (`compiler/`) are no fields of it: a model means the same on every
device. The numbers for a CPU were measured on two cores (AVX2, float32) by `benchmarks/run.py`; those for accelerators
follow from how XLA works there, and say so.
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
    """Thresholds by which the runtime chooses between equivalent programs.

    The defaults are those of a device that XLA already serves well: nothing is unrolled or looped by hand. Fields under
    "compile time" bound the size of a program, which XLA takes as long to compile for one device as for another.
    """

    # --- Sums and products over samples and steps ---
    # Bytes of a trace from which on a sum of products over few steps or samples is written out term by term. On a CPU,
    # XLA contracts a (16, 512, 256) trace with a learning signal in 1.54 ms, and in 0.25 ms if the sum is written out.
    unrolled_product_bytes: float = inf
    # For plain sums: pairs of (bytes of the result, most terms that are written out). A reduction costs a CPU 10 ns for
    # each number; 64 written-out terms of small arrays cost more than that to compile.
    unrolled_sums: tuple[tuple[int, int], ...] = ()
    # Most samples or steps whose products are written out in one expression.
    unrolled_terms: int = 64
    # Most steps of a window whose outer products are written out, to be added in the pass that moves the trace.
    fused_steps: int = 0
    # Whether blocks that are made of parameters (λ of a linear recurrence) are written down before a trace is moved by
    # them over one step. XLA would compute cosines again for each entry of the trace: an LRU of 192 units on 64 inputs
    # with 16 samples takes a CPU 1.03 ms a step, and 0.17 ms with blocks written down.
    writes_blocks: bool = False
    # Whether steps and samples may be merged into one axis for the gradient of a weight, so that the product needs no
    # transposed operand. An axis of samples that is cut over devices must stay an axis of its own.
    merges_steps: bool = True
    # Rows of data from which on they are turned and stored before that product, where they are no narrower than the
    # outputs. Over 1,024 rows, a gradient of (512, 256) takes a core 1.20 ms with data that were turned and 1.73 ms
    # without, one of (256, 10) 0.12 and 0.28 ms; one of (256, 768) gains nothing.
    turned_rows: float = inf

    # --- Traces that are larger than the cache ---
    # Bytes from which on several traces of one op are held as one array and moved sample by sample, within the cache;
    # and bytes from which on they are read sample by sample as well.
    stack_bytes: float = inf
    long_stack_bytes: float = inf
    # Bytes of a trace and steps of a window from which on it is moved one sample after the other; and how many times
    # smaller the other traces that are read with it must be, to stay in the cache beside it. Two traces of (16, 256,
    # 768) over 64 steps take a CPU 9.9 ms a window in one pass each, and 7.1 ms by sample.
    by_sample_bytes: float = inf
    by_sample_steps: int = 7
    by_sample_others: int = 8
    # Numbers in the gradient of a weight up to which its trace is not ordered to be read before it is moved in place:
    # XLA copies a small trace sooner than a sum over the gradient, which the order takes, is made.
    copied_size: int = 1024

    # --- Sparse matrices ---
    # Whether sparse products are computed by sums of gathered entries rather than by scattering.
    gathers_entries: bool = False
    # Whether traces of entries are moved, and read, one sample after the other, so that one sample's numbers stay in
    # the cache while the indices are read; and how many samples are read in one pass over the indices.
    loops_over_samples: bool = False
    samples_together: int = 4
    # Entries of a row that are added up in one expression; longer rows are added in several rounds.
    entries_in_a_sum: int = 16
    # A matrix with more entries than one in so many is multiplied as a dense one. With 2048² places and eight samples,
    # a product with every 8th entry takes a CPU 1.81 ms by gathering and 0.65 ms as a dense one, with every 16th 0.79
    # and 0.61 ms, with every 64th 0.26 and 0.80 ms; the dense matrix also takes so many times the memory.
    dense_share: int = 16

    # --- Influence on the layers above (`d_rtrl(depth=...)`) ---
    # Rows that are pulled and moved at once: their buffers are in memory beside the trace.
    rows_at_once: int = 32
    # Rows that act on another one, up to which it is moved row by row; with more, by a product of matrices.
    few_sources: int = 4

    # --- Loops over steps ---
    # A product of more rows than this gains nothing from being joined over the steps of a window: reading its weight no
    # longer dominates.
    joined_rows: int = 32
    # Windows whose rows make one product where the gradients of many are added up. That of 16 samples and a weight of
    # (512, 256) takes a CPU 77 µs a window, since the sum is read and written each time, and 35 in eights.
    windows_together: int = 1

    # --- Compile time ---
    # Products of blocks that one step of the suffix products may have entry by entry, S³ for full blocks. With more,
    # blocks are arrays with axes of states. Five states run in 13.8 ms by entries and 20.0 ms as arrays (21 and 8 s to
    # compile), six in 9.2 and 8.0 ms (42 and 13 s).
    unrolled_block_terms: int = 128
    # States at a position up to which powers of blocks that do not change are written out entry by entry. With three
    # states that runs in 1.04 instead of 1.20 ms, but takes 14.4 instead of 9.2 s to compile; four gain nothing.
    unrolled_power_states: int = 2
    # Pulls of a step that are made one by one: XLA then sees which of their numbers are zero. More are made as one with
    # a leading axis, for each is compiled as a whole backward step.
    separate_pulls: int = 8

    # The devices that arrays are cut over, if there are several.
    mesh: Mesh | None = None

    def whole_along(self, a: Array, axis: int) -> Array:
        """An array that all of is wanted along an axis: on a mesh it is gathered there once, before it is read.

        XLA would otherwise gather what is read of it, which for the entries of a sparse matrix is much larger.
        """
        if self.mesh is None:
            return a
        spec = [None if i == axis else PartitionSpec.UNCONSTRAINED for i in range(a.ndim)]
        return jax.lax.with_sharding_constraint(a, NamedSharding(self.mesh, PartitionSpec(*spec)))


CPU = Machine(
    turned_rows=64,
    unrolled_product_bytes=2**12,
    unrolled_sums=((2**8, 60), (2**14, 64)),
    fused_steps=10,
    windows_together=8,
    writes_blocks=True,
    stack_bytes=2**20,
    long_stack_bytes=2**25,
    by_sample_bytes=2**23,
    gathers_entries=True,
    loops_over_samples=True,
)
# A GPU reduces and contracts at the speed of its memory: XLA makes a product with one vector per sample into a fused
# multiplication and sum, and a loop over samples would leave most of the device idle.
GPU = Machine(
    # A step of a loop costs some launches of about 5 µs each, in which 512 rows times a (512, 512) weight are
    # multiplied; up to there joined steps save launches as well as reads of the weight.
    joined_rows=512,
    # The order takes three small kernels more, 15 µs at 1.5 TB/s: as long as a trace of 2¹⁸ numbers, read and written,
    # for each of ten samples.
    copied_size=2**18,
)
# A TPU runs a loop without launches, so that only reads of the weight count: 275 TFlop/s and 1.2 TB/s (v4, bfloat16)
# are 230 multiplications for each number read. Its sums, too, run at the speed of memory.
TPU = Machine(joined_rows=256)
# By the names that `jax.default_backend()` gives; another kind of device is served as XLA's own choices suit it.
MACHINES = {"cpu": CPU, "gpu": GPU, "cuda": GPU, "rocm": GPU, "tpu": TPU}


def meshed_machine(mesh: Mesh) -> Machine:
    """For arrays that are cut over several devices, whatever these are: what is written out by sample, looped over
    samples or merged with the axis of samples would be sent between devices."""
    return Machine(merges_steps=False, mesh=mesh)


_override: ContextVar[Machine | None] = ContextVar("machine", default=None)


def machine() -> Machine:
    """The machine that is compiled for: the one in force, by default that of JAX's default platform."""
    chosen = _override.get()
    return chosen if chosen is not None else MACHINES.get(jax.default_backend(), Machine())


@contextmanager
def compiling_for(target: Machine) -> Iterator[None]:
    """Compile for this machine while the context is open."""
    token = _override.set(target)
    try:
        yield
    finally:
        _override.reset(token)
