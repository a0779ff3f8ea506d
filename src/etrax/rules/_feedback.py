"""Feedback matrices: a fixed or a slowly following map from output errors to the activity of hidden groups.

    s[p] = Σ_o e[o] B[o, p]          e = ∂ℓ/∂o          B: (outputs × positions) of one sample, the same for all samples

One matrix per output leaf and hidden group. What an output shows of a group without a weight op in between takes its
own error: there is nothing to feed back. So the cost of a spike, in a model whose output has its spikes beside the
readout, is a cost of that spike. An adaptive matrix follows the weights of a readout,

    B ← (1 − δ) B − η mean_t Σ_samples e_t ⊗ z_t

z being the activity: what gradient descent of rate η and weight decay δ does to a readout, once per window.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import common_dtype
from ..compiler.analysis import Facts, Group, Visible, find_visible
from ..compiler.ir import Role
from ._source import Moment, Source


class Pair(NamedTuple):
    """An output leaf and a group, each as index arrays (samples, elements of one sample); `shown` are elements of the
    output that show the group: nothing of them is fed back."""

    output: int
    group: int
    outputs: np.ndarray
    positions: np.ndarray
    shown: np.ndarray
    complex: bool
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return self.outputs.shape[1] * (2 if self.complex else 1), self.positions.shape[1]


def feedback_source(facts: Facts, key: Array, rate: float | None = None, decay: float = 0.0) -> Source:
    """Random feedback from a key; adaptive with a `rate`."""
    visible = find_visible(facts)
    direct = frozenset(g.index for g in facts.groups if visible.shown_by_outputs(g.index))
    pairs = _pairs(facts, direct, visible)
    with jax.ensure_compile_time_eval():
        start = [np.asarray(_draw(key, n, p.shape), p.dtype) for n, p in enumerate(pairs)]

    def signal(trained: list[Array], moment: Moment) -> tuple[dict[int, Array], tuple]:
        matrices = trained if rate is not None else start
        signals = {g.index: jnp.zeros(g.num_positions) for g in facts.groups if g.index not in direct}
        errors = [_by_sample(moment.errors[p.output], p) for p in pairs]
        for p, e, b in zip(pairs, errors, matrices, strict=True):
            signals[p.group] = (
                signals[p.group].at[p.positions].add((e @ jnp.asarray(b, e.dtype)).astype(signals[p.group].dtype))
            )
        activity = [moment.activity[p.group][p.positions] for p in pairs]
        return signals, (errors, activity) if rate is not None else ()

    def move(trained: list[Array], memos: tuple[list[Array], list[Array]]) -> list[Array]:
        if rate is None:
            return trained
        grads = [jnp.einsum("kbo,kbp->op", e, z.astype(e.dtype)) / e.shape[0] for e, z in zip(*memos, strict=True)]
        return [(1 - decay) * b - rate * g.astype(b.dtype) for b, g in zip(trained, grads, strict=True)]

    init = (lambda: [jnp.asarray(b) for b in start]) if rate is not None else tuple
    return Source(signal, direct, init, move, beside=True)


def _draw(key: Array, number: int, shape: tuple[int, int]) -> Array:
    """Draw a matrix as a readout of that many inputs is drawn; its numbers are equal in any precision of the model."""
    return jax.random.normal(jax.random.fold_in(key, number), shape, jnp.float32) / max(shape[1], 1) ** 0.5


def _by_sample(error: Array, p: Pair) -> Array:
    flat = jnp.where(p.shown, 0, error).reshape(-1)[p.outputs] if p.shown.any() else error.reshape(-1)[p.outputs]
    return (
        jnp.concatenate([flat.real, -flat.imag], -1)
        if p.complex
        else flat.astype(common_dtype(flat.dtype, jnp.float32))
    )


def _pairs(facts: Facts, direct: frozenset[int], visible: Visible) -> list[Pair]:
    pairs = []
    for group in (g for g in facts.groups if g.index not in direct):
        for k, leaf in enumerate(facts.step.select(Role.OUTPUT)):
            shown = visible.outputs[group.index].get(k, np.full(leaf.aval.shape, -1)) >= 0
            if jnp.issubdtype(leaf.aval.dtype, jnp.inexact) and not shown.all():
                outputs, positions = _samples(facts, group, leaf.aval)
                complex_valued = jnp.issubdtype(leaf.aval.dtype, jnp.complexfloating)
                real = jnp.finfo(common_dtype(leaf.aval.dtype, jnp.float32)).dtype
                pairs.append(Pair(k, group.index, outputs, positions, shown, complex_valued, real))
    return pairs


def _samples(facts: Facts, group: Group, output: jax.ShapeDtypeStruct) -> tuple[np.ndarray, np.ndarray]:
    """Elements of the output and positions of the group by sample: along their first axis, or as one sample."""
    sample = sample_of_position(facts, group)
    n = 0 if sample is None else int(sample.max()) + 1
    if sample is None or not output.shape or output.shape[0] != n:
        return np.arange(output.size).reshape(1, -1), np.arange(group.num_positions).reshape(1, -1)
    return np.arange(output.size).reshape(n, -1), np.argsort(sample, kind="stable").reshape(n, -1)


def sample_of_position(facts: Facts, group: Group) -> np.ndarray | None:
    """Which entry of the first axis a position belongs to; None where states have no axis beside that."""
    shapes = [facts.states[i].aval.shape for i in group.leaves]
    if any(len(s) < 2 for s in shapes) or len({s[0] for s in shapes}) != 1:
        return None
    rows = np.full(group.num_positions, -1, np.int64)
    for place, shape in zip(group.place, shapes, strict=True):
        row = np.broadcast_to(np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)), shape)
        if ((rows[place] >= 0) & (rows[place] != row)).any():
            return None
        rows[place] = row
        if (rows[place] != row).any():  # a position with members in two rows
            return None
    counts = np.bincount(rows[rows >= 0], minlength=shapes[0][0])
    return rows if (rows >= 0).all() and counts.min() == counts.max() else None
