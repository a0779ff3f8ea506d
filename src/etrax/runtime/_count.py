"""The number of steps that a stream has taken, as an int32 that stops at its end."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

# A stream of a thousand steps a second reaches it on its 25th day.
LAST_STEP = int(np.iinfo(np.int32).max)


def count_on(step: Array, more: Array | int) -> Array:
    """`step + more`, which stays at `LAST_STEP` once it is there: a count that wrapped would look like no count at all.

    A negative count is one that has wrapped (of a state that was saved before counts stopped).
    """
    return jnp.where((step < 0) | (step > LAST_STEP - more), LAST_STEP, step + more).astype(jnp.int32)
