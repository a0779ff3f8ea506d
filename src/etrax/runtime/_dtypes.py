"""The types in which traces accumulate."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from .._compat import common_dtype
from ..compiler.analysis import Facts, Relation


def trace_dtype_of(facts: Facts, relation: Relation, asked: DTypeLike | None) -> np.dtype:
    """The type of a relation's trace."""
    return wide_dtype(facts.sites[relation.site].call.out.dtype, asked)


def wide_dtype(dtype: np.dtype, asked: DTypeLike | None = None) -> np.dtype:
    """Traces accumulate in at least float32 unless asked otherwise; complex where the op is complex."""
    if asked is not None:
        complex_op = np.issubdtype(dtype, np.complexfloating)
        return common_dtype(asked, jnp.complex64) if complex_op else jnp.dtype(asked)
    return common_dtype(dtype, jnp.float32)


def widened(u: Array, dtype: DTypeLike) -> Array:
    """Data in at least the trace's precision; indices as they are."""
    return u.astype(common_dtype(u.dtype, dtype)) if jnp.issubdtype(u.dtype, jnp.inexact) else u
