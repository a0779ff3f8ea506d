"""What is measured besides accuracy and time: memory of a gradient, and how far it points where BPTT's does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

import etrax

from .data import Digits
from .runs import Method, Settings, loss

# Sequences so many times as long as the longest word.
LENGTHS = (1, 8)


class Cosine(NamedTuple):
    """Over the parameters of the model."""

    mean: float
    least: float


def compiled(
    programs: Sequence[jax.stages.Lowered], tell: Callable[[int, int], None] = lambda done, of: None
) -> list[jax.stages.Compiled]:
    """Several programs, compiled side by side on the cores that there are; `tell` hears of each that is done."""
    out = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for one in pool.map(lambda one: one.compile(), programs):
            out.append(one)
            tell(len(out), len(programs))
    return out


def gradient(method: Method, settings: Settings, digits: Digits, times: int = 1) -> jax.stages.Lowered:
    """`f(params, inputs, targets, mask) -> grads` of a batch of sequences `times` as long as the digits, to compile.

    Hidden state and trace begin inside, so the memory that it needs besides its arguments and results holds them.
    """

    def run(params: Any, x: Any, y: Any, mask: Any) -> Any:
        if method.is_bptt:
            return etrax.testing.bptt(method.learner, loss)(params, method.learner.hidden, x, y, mask)[1]
        online = method.learner.value_and_grad(loss, window=settings.window)
        return online(params, method.learner.init(params), x, y, mask)[0][1]

    arrays, lead = digits.train[:3], (times * digits.steps, settings.batch)
    shapes = [jax.ShapeDtypeStruct((*lead, *a.shape[2:]), a.dtype) for a in arrays]
    return jax.jit(run).lower(method.learner.params, *shapes)


def planned_bytes(compiled: jax.stages.Compiled) -> int:
    """What the compiler plans to hold besides arguments and results. Nothing is run."""
    plan = compiled.memory_analysis()
    if plan is None:
        raise RuntimeError("`memory_analysis` says nothing on this device: run with `JAX_PLATFORMS=cpu`.")
    return int(plan.temp_size_in_bytes)


def cosine(found: Any, want: Any) -> Cosine:
    """Between two gradients, parameter by parameter; 0 where one of them is zero."""

    def one(a: Any, b: Any) -> float:
        a, b = (np.asarray(v, np.float64).ravel() for v in (a, b))
        size = float(np.linalg.norm(a) * np.linalg.norm(b))
        return float(a @ b) / size if size else 0.0

    each = jax.tree.leaves(jax.tree.map(one, found, want))
    return Cosine(float(np.mean(each)), min(each))


def peak_resident() -> str:
    """The most memory that this process has held."""
    try:
        import resource
    except ImportError:  # Windows
        return "not known"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f"{peak / (1e6 if sys.platform == 'darwin' else 1e3):,.0f} MB"
