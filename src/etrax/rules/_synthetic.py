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
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._arguments import check_decay, check_number
from .._compat import common_dtype
from ..analysis import Facts
from ..engine import Transport, WindowData, bytes_of, live_sites, sample_rows
from ._rule import Rule
from ._verdicts import Kind, Verdict, unless_trivial


class Rows(NamedTuple):
    """Hidden leaves as one real matrix (samples, state scalars); a complex leaf gives its real and imaginary parts."""

    facts: Facts
    leaves: tuple[int, ...]
    samples: int

    @property
    def width(self) -> int:
        avals = [self.facts.states[i].aval for i in self.leaves]
        return sum(a.size // self.samples * (2 if _is_complex(a.dtype) else 1) for a in avals)

    def read(self, states: Mapping[int, Any]) -> Any:
        """States, or cotangents by JAX's convention (Re, −Im), as a matrix."""
        found = []
        for i in self.leaves:
            flat = states[i].reshape(self.samples, -1)
            found += [flat.real, -flat.imag] if _is_complex(flat.dtype) else [flat]
        return jnp.concatenate([a.astype(common_dtype(a.dtype, jnp.float32)) for a in found], -1)

    def write(self, matrix: Any) -> dict[int, Any]:
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


def synthetic_transport(
    facts: Facts, rate: float, discount: float, sites: frozenset[int] | None = None, trace_dtype: Any = None
) -> Transport:
    """No trace: the matrix M is what is carried."""
    leaves = tuple(sorted(facts.group_of_leaf))
    if not leaves:
        return Transport(tuple, None, lambda trace, g, window: {}, lambda trace, window: trace, 0)
    rows = Rows(facts, leaves, sample_rows(facts, leaves))
    kinds = [jnp.finfo(facts.states[i].aval.dtype).dtype for i in leaves]
    dtype = trace_dtype or common_dtype(jnp.float32, *kinds)

    def init() -> Any:
        return jnp.zeros((rows.width, rows.width + 1), dtype)

    def estimate(matrix: Any, states: Sequence[Any]) -> tuple[Any, Any]:
        seen = rows.read({i: states[i] for i in leaves}).astype(dtype)
        seen = jnp.concatenate([seen, jnp.ones((rows.samples, 1), dtype)], -1)
        return seen @ matrix.T, seen

    def ahead(matrix: Any, states: Sequence[Any]) -> dict[int, Any]:
        return rows.write(discount * estimate(matrix, states)[0])

    def move(matrix: Any, window: WindowData) -> Any:
        if window.entry_bar is None:
            return matrix
        guess, seen = estimate(matrix, window.ends[0])
        found = rows.read({i: window.entry_bar[i] for i in leaves}).astype(dtype)
        error = (guess - found) / (seen**2).sum(-1, keepdims=True)
        return matrix - rate * (error.T @ seen) / rows.samples

    reached = frozenset(live_sites(facts) if sites is None else sites)
    return Transport(
        init,
        None,
        lambda trace, g, window: {},
        move,
        bytes_of(init),
        ahead=ahead,
        hears=reached,
        learned=lambda trace: trace,
        renew=lambda fresh, learned: learned,
    )


def _is_complex(dtype: Any) -> bool:
    return bool(np.issubdtype(dtype, np.complexfloating))


def synthetic(rate: float = 0.1, discount: float = 1.0) -> Rule:
    """Truncated BPTT with learned future credit at the window's exit; `rate` (0 to 2) is that of normalised LMS.

    >>> print(synthetic())
    synthetic(rate=0.1, discount=1.0)
    """
    rate = check_number("synthetic", "rate", rate, 0, 2, "between 0 and 2, where its learning is stable", ends="()")
    discount = check_decay("synthetic", "discount", discount, closed=True)

    def transport(facts: Facts, sites: frozenset[int] | None = None, trace_dtype: Any = None) -> Transport:
        return synthetic_transport(facts, rate, discount, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        trivial = unless_trivial(facts, param)
        if trivial is not None:
            return trivial
        return Verdict(
            Kind.APPROXIMATE, "no trace is carried; what it does to later windows is credited by a learned estimate"
        )

    options = {"rate": rate, "discount": discount}
    return Rule("synthetic", transport, verdict, options=options)
