"""What a user asks of a learner besides its model and rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from .._arguments import check_flag, parse_bytes, short
from .._errors import ArgumentError

Shard = str | Mapping[str, PartitionSpec]


@dataclass(frozen=True, eq=False)
class Options:
    """How a learner of any rule is built.

    Traces are of type `trace_dtype`, by default that of the model and at least float32. With `check_finite` a learner
    watches for NaN and infinity. `memory_budget` is in bytes. With a `mesh`, `shard` says how parameters, states and
    inputs are cut over its devices.
    """

    trace_dtype: jnp.dtype | None = None
    check_finite: bool = False
    memory_budget: float | None = None
    mesh: Mesh | None = None
    shard: Shard | None = None


def checked_options(
    *, trace_dtype: object, check_finite: object, memory_budget: object, mesh: object, shard: object
) -> Options:
    """Options as users write them, or an error that says what was expected."""
    dtype, budget = check_trace_dtype(trace_dtype), parse_bytes("memory_budget", memory_budget)
    finite = check_flag("check_finite", check_finite)
    if mesh is None and shard is None:
        return Options(dtype, finite, budget)
    from ..mesh import checked_mesh

    on_mesh, cut = checked_mesh(mesh, shard)
    if finite:
        raise ArgumentError("`check_finite=True` runs on one device: find the step there, without `mesh`.")
    return Options(dtype, finite, budget, on_mesh, cut)


def check_trace_dtype(dtype: object) -> jnp.dtype | None:
    """A floating-point type, or None."""
    if dtype is None:
        return None
    try:
        asked = jnp.dtype(dtype)  # type: ignore[arg-type]
    except Exception:  # numpy asks the object for whatever it may hold
        asked = None
    if asked is None or not jnp.issubdtype(asked, jnp.floating):
        raise ArgumentError(
            f"`trace_dtype` is {short(dtype)}; expected a floating-point type such as `jnp.bfloat16`, or None."
        )
    return asked
