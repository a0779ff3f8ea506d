"""What this machine can do: float32 operations per second in a matrix product, bytes per second from memory."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Machine(NamedTuple):
    """Best of several runs; a fraction of these is what a rival is judged by."""

    flops: float
    bandwidth: float
    about: dict[str, str]


def _best(run: Callable[..., Any], *args: Any, times: int) -> float:
    jax.block_until_ready(run(*args))
    found = []
    for _ in range(times):
        start = time.perf_counter()
        jax.block_until_ready(run(*args))
        found.append(time.perf_counter() - start)
    return min(found)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def measure_machine(side: int = 2048, elements: int = 1 << 25, times: int = 20) -> Machine:
    """A square product, and a ← b + 2 c over arrays much larger than the caches (two read, one written)."""
    a = jnp.ones((side, side), jnp.float32)
    product = _best(jax.jit(jnp.matmul), a, a, times=times)
    b = jnp.ones(elements, jnp.float32)
    # Donated, the result has pages already: what is measured is the memory, not the operating system.
    triad = jax.jit(lambda b, c: c + 2 * b, donate_argnums=1)
    c, found = jnp.zeros(elements, jnp.float32), []
    for _ in range(times + 1):
        start = time.perf_counter()
        c = jax.block_until_ready(triad(b, c))
        found.append(time.perf_counter() - start)
    about = {
        "python": platform.python_version(), "jax": jax.__version__, "processor": platform.machine(),
        "cores": str(os.cpu_count()), "braintrace": _version("braintrace"),
    }  # fmt: skip
    return Machine(2 * side**3 / product, 12 * elements / min(found[1:]), about)
