"""Several processes with one mesh: each reads its own samples, and all must have compiled the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from .._errors import CompilationError
from ..compiler.ir import PyTree, format_path
from ..learn import Program, digest_of_step
from ..rules import Rule
from ._shard import Dims

if TYPE_CHECKING:
    from ._mesh import Meshed


def place_batch(
    on_mesh: Meshed, inputs: PyTree, targets: PyTree, mask: np.ndarray, samples: np.ndarray
) -> tuple[PyTree, ...]:
    """Some samples of inputs and targets (time, sample, …), and the mask of these, on the mesh.

    A process reads what its own devices need and nothing else, so that arrays may be files mapped to memory.
    """

    def one(a: Any, place: NamedSharding) -> jax.Array:
        shape = a.shape if a.ndim == 1 else (a.shape[0], len(samples), *a.shape[2:])

        def part(at: tuple[slice, ...] | None) -> np.ndarray:
            assert at is not None, "every device of the mesh holds a part"
            return np.asarray(a[at] if a.ndim == 1 else a[:, samples[at[1]]][(at[0], slice(None), *at[2:])])

        return jax.make_array_from_callback(shape, place, part)

    shown = on_mesh.along(targets, samples)
    placed = jax.tree.map(one, (inputs, targets), (on_mesh.shardings.inputs, shown))
    place = on_mesh.along(mask)
    return *placed, jax.make_array_from_callback(mask.shape, place, lambda at: mask[at])


def check_same_model(program: Program, rule: Rule, mesh: Mesh, dims: Sequence[Dims]) -> None:
    """All processes must have compiled the same: they would wait for each other for ever otherwise."""
    from jax.experimental.multihost_utils import process_allgather

    step = program.facts.step
    said = {
        "the rule": str(rule),
        "the mesh": str((dict(mesh.shape), [d.id for d in mesh.devices.flat])),
        "`shard`": str(dims),
        **{f"{a.role.value} {format_path(a.path)}": f"{a.aval.dtype}{list(a.aval.shape)}" for a in step.ins},
        "the step": digest_of_step(step),
    }
    names = hashlib.sha256(str(list(said)).encode()).digest()[:4]
    digests = {name: hashlib.sha256(text.encode()).digest()[:4] for name, text in said.items()}
    of_all = hashlib.sha256(b"".join(digests.values())).digest()[:4]
    # As many numbers in all processes, whatever their models are: the names of the leaves, all of it, and then each.
    first = process_allgather(np.frombuffer(names + of_all, np.int32))
    if (first == first[0]).all():
        return
    which = "leaves of parameters, states or inputs"
    if (first[:, 0] == first[0, 0]).all():
        each = process_allgather(np.frombuffer(b"".join(digests.values()), np.int32))
        which = ", ".join(name for name, column in zip(digests, each.T, strict=True) if (column != column[0]).any())
    raise CompilationError(
        f"the {jax.process_count()} processes compile different models: they differ in {which} (here, process "
        f"{jax.process_index()}: {said.get(which, 'see the model')[:200]}). Start all of them with the same program "
        "and the same arguments."
    )
