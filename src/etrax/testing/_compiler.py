"""Whether the compiler under JAX gives the numbers of the program that it is given."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np

_FLAG = "XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type=-LIBRARY_FUSION_TYPE_REDUCE"


def sums_go_wrong() -> bool:
    """Whether a sum over the last axis that is spread again comes out wrong, as it does in jaxlib 0.10.2 on a CPU.

    It is what the derivative of a norm does for many cotangents. Whole numbers: nothing is rounded.
    """
    rng = np.random.default_rng(0)
    x, c = (rng.integers(0, 4, shape).astype(np.float32) for shape in ((256, 20, 16), (20, 16)))

    def spread(x: np.ndarray, c: np.ndarray) -> np.ndarray:
        return c * (c * x).sum(-1)[..., None]

    return bool((np.asarray(jax.jit(spread)(x, c)) != spread(x, c)).any())


@cache
def compiler_fault() -> str | None:
    """What is known to be wrong with the compiler of this process, and the remedy; None if nothing is found.

    >>> import etrax
    >>> fault = etrax.testing.compiler_fault()
    >>> fault is None or "XLA_FLAGS" in fault
    True
    """
    if not sums_go_wrong():
        return None
    return (
        "The CPU compiler of this jaxlib computes some sums of float32 wrongly, in any JAX program (a product summed "
        "over its last axis and spread again, of more than 32,768 numbers, as in the derivative of a norm). Start "
        f"Python with `{_FLAG}`, which turns that part of it off."
    )
