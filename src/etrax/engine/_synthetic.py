"""Future credit that is learned: an estimate of what later losses owe to the state at a window's exit.

    ŝ(h) = M [h; 1] ≈ ∂(all later losses)/∂h

per sample, one matrix for all samples, zero at first. It is the cotangent of h_K in the window's reverse mode, so

    g = ∂L/∂θ |h_0 fixed + γ ŝ(h_K) · ∂h_K/∂θ

and it is trained on what the next window finds at its own entry, s = ∂L/∂h_0 + γ ŝ(h_K) · ∂h_K/∂h_0, by normalised
least mean squares, which is stable at any scale of states and losses:

    M ← M − η mean over samples of (ŝ(h_0) − s) ⊗ [h_0; 1] / (1 + |h_0|²)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._compat import common_dtype
from ..analysis import Facts
from ._samples import sample_rows
from ._transport import Transport, WindowData, bytes_of
from ._window import live_sites


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
