"""Synthetic gradients: truncated BPTT whose windows end in a learned estimate of what later losses owe to the state.

    g = ∂L/∂θ |h_0 fixed + γ ŝ(h_K) · ∂h_K/∂θ        ŝ(h) = M [h; 1]

M is trained alongside, on what each window finds at its own entry: ŝ(h_0) → ∂L/∂h_0 + γ ŝ(h_K) · ∂h_K/∂h_0. No trace is
carried, so memory is that of M, (H × (H + 1)) for H state scalars of a sample, whatever the number of parameters. M is
zero at first: the rule begins as truncated BPTT. The stream is taken to go on after every window. A new sequence
begins with `learner.init(learned=learner.learned(state))`, so that M goes on learning.

M acts on each sample, the same for all. It learns by normalised least mean squares, which is stable at any scale of
states and losses; s is what the window found at its entry,

    M ← M − η mean over samples of (ŝ(h_0) − s) ⊗ [h_0; 1] / (1 + |h_0|²)        (docs/mathematics.md, 7)

Jaderberg, Czarnecki, Osindero, Vinyals, Graves, Silver and Kavukcuoglu, "Decoupled neural interfaces using synthetic
gradients", ICML, 2017.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from .._arguments import check_decay, check_number
from .._compat import common_dtype
from ..compiler.analysis import Facts, is_steep, sample_rows
from ..runtime import Future, Persistent, Transport, WindowData, live_sites
from ._rule import Rule
from ._series import in_series
from ._verdicts import Kind, Verdict, trivial_verdict


class Rows(NamedTuple):
    """Hidden leaves as one real matrix (samples, state scalars); a complex leaf gives its real and imaginary parts."""

    facts: Facts
    leaves: tuple[int, ...]
    samples: int

    @property
    def width(self) -> int:
        avals = [self.facts.states[i].aval for i in self.leaves]
        return sum(a.size // self.samples * (2 if _is_complex(a.dtype) else 1) for a in avals)

    def read(self, states: Mapping[int, Array]) -> Array:
        """States, or cotangents by JAX's convention (Re, −Im), as a matrix."""
        parts = []
        for i in self.leaves:
            flat = states[i].reshape(self.samples, -1)
            # Minus the imaginary part makes JAX's cotangent (Re, −Im) the gradient by both parts.
            parts += [flat.real, -flat.imag] if _is_complex(flat.dtype) else [flat]
        return jnp.concatenate([a.astype(common_dtype(a.dtype, jnp.float32)) for a in parts], -1)

    def write(self, matrix: Array) -> dict[int, Array]:
        """The inverse of `read`."""
        out, at = {}, 0
        for i in self.leaves:
            aval = self.facts.states[i].aval
            n = aval.size // self.samples
            value = matrix[:, at : at + n]
            at += n
            if _is_complex(aval.dtype):
                value = lax.complex(value, -matrix[:, at : at + n])
                at += n
            out[i] = value.reshape(aval.shape).astype(aval.dtype)
        return out


class LearnedFuture(NamedTuple):
    """M, (H, H + 1), or None for a model without states."""

    matrix: Array | None


def synthetic_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None, *, rate: float,
    discount: float,
) -> Transport[LearnedFuture]:  # fmt: skip
    """No trace: the matrix M is what is carried."""
    leaves = tuple(sorted(facts.group_of_leaf))
    if not leaves:
        return Transport(lambda: LearnedFuture(None), lambda trace, g, window: {}, lambda trace, window: trace)
    rows = Rows(facts, leaves, sample_rows(facts, leaves))
    kinds = [jnp.finfo(facts.states[i].aval.dtype).dtype for i in leaves]
    dtype = trace_dtype or common_dtype(jnp.float32, *kinds)

    def init() -> LearnedFuture:
        return LearnedFuture(jnp.zeros((rows.width, rows.width + 1), dtype))

    def estimate(trace: LearnedFuture, states: Sequence[Array]) -> tuple[Array, Array]:
        assert trace.matrix is not None
        features = rows.read({i: states[i] for i in leaves}).astype(dtype)
        # A running maximum starts at −∞, which M would turn into NaN: it counts as zero. NaN itself stays visible.
        features = jnp.where(jnp.isinf(features), 0, features)
        features = jnp.concatenate([features, jnp.ones((rows.samples, 1), dtype)], -1)
        return features @ trace.matrix.T, features

    def at_exit(trace: LearnedFuture, states: Sequence[Array]) -> dict[int, Array]:
        return rows.write(discount * estimate(trace, states)[0])

    def move(trace: LearnedFuture, window: WindowData) -> LearnedFuture:
        if window.entry_bar is None or trace.matrix is None:
            return trace
        guess, features = estimate(trace, window.entry_states)
        entry_bars = rows.read({i: window.entry_bar[i] for i in leaves}).astype(dtype)
        error = (guess - entry_bars) / (features**2).sum(-1, keepdims=True)
        if is_steep(facts):  # a slope that is infinite at a state of zero is nothing to learn from
            error = jnp.where(jnp.isfinite(entry_bars), error, 0)
        return LearnedFuture(trace.matrix - rate * (error.T @ features) / rows.samples)

    return Transport(
        init,
        lambda trace, g, window: {},
        move,
        future=Future(at_exit, frozenset(live_sites(facts) if sites is None else sites)),
        persistent=Persistent(lambda trace: trace.matrix, lambda fresh, matrix: LearnedFuture(matrix)),
    )


def _is_complex(dtype: np.dtype) -> bool:
    return bool(np.issubdtype(dtype, np.complexfloating))


def synthetic(rate: float = 0.1, discount: float = 1.0) -> Rule:
    """Truncated BPTT with a learned estimate of the credit that comes after the window.

    - `rate`: how fast the estimate learns (normalised LMS), from 0 to 2.
    - `discount`: the factor of the estimated credit, from 0 to 1.

    >>> print(synthetic())
    synthetic(rate=0.1, discount=1.0)
    """
    rate = check_number("synthetic", "rate", rate, 0, 2, "between 0 and 2, where its learning is stable", ends="()")
    discount = check_decay("synthetic", "discount", discount, closed=True)

    options = {"rate": rate, "discount": discount}
    transport = partial(synthetic_transport, **options)
    return Rule(
        "synthetic", transport, _by_estimate, options, estimates_future=True, needs_loss=True, facts_for=in_series
    )


def _by_estimate(facts: Facts, param: int) -> Verdict:
    trivial = trivial_verdict(facts, param)
    if trivial is not None:
        return trivial
    return Verdict(
        Kind.APPROXIMATE, "no trace is carried; what it does to later windows is credited by a learned estimate"
    )
