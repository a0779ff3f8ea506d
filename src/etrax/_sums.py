"""Sums that a compiler gets wrong, and the flag that keeps it from doing so.

The CPU compiler of jaxlib 0.10.2 computes a product that is summed over its last axis and spread again,
`c * (c * x).sum(-1)[..., None]`, wrongly for more than 32,768 numbers of float32, in any JAX program: the derivative of
a norm for many cotangents at once is of this form. One of its passes is at fault, which a flag turns off.
"""

from __future__ import annotations

import os
import warnings
from functools import cache

import jax
import jaxlib.version
import numpy as np

from ._compat import has_backends

VERSION, FAULTY = jaxlib.version.__version__, ("0.10.2",)
NAME = "--xla_cpu_experimental_ynn_fusion_type"
FLAG = f"{NAME}=-LIBRARY_FUSION_TYPE_REDUCE"


def avoid_wrong_sums() -> None:
    """Turn the pass off in a version that has the fault, before JAX reads its flags: at its first computation."""
    flags = os.environ.get("XLA_FLAGS", "")
    if VERSION in FAULTY and NAME not in flags and not has_backends():
        os.environ["XLA_FLAGS"] = f"{flags} {FLAG}".strip()


@cache
def sums_go_wrong() -> bool:
    """Whether such a sum comes out wrong here. Whole numbers: nothing is rounded."""
    if jax.default_backend() != "cpu":
        return False
    rng = np.random.default_rng(0)
    x, c = (rng.integers(0, 4, shape).astype(np.float32) for shape in ((256, 20, 16), (20, 16)))

    def spread(x: np.ndarray, c: np.ndarray) -> np.ndarray:
        return c[None] * (c[None] * x).sum(-1)[..., None]

    with jax.ensure_compile_time_eval():  # also within a function that is being traced
        return bool((np.asarray(jax.jit(spread)(x, c)) != spread(x, c)).any())


def what_is_wrong() -> str:
    return (
        f"The CPU compiler of jaxlib {VERSION} computes some sums of float32 wrongly, in any JAX program (a "
        "product summed over its last axis and spread again, of more than 32,768 numbers, as in the derivative of a "
        "norm). Import etrax before the first computation of JAX, which turns that part of it off, or start Python "
        f"with `XLA_FLAGS={FLAG}`; other versions of jaxlib are right."
    )


def warn_of_wrong_sums() -> None:
    """Say it to the caller of the caller where it was too late for the flag."""
    if VERSION in FAULTY and sums_go_wrong():
        warnings.warn(what_is_wrong(), stacklevel=3)
