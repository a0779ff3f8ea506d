"""Products with the stored entries of a sparse matrix, by reads alone: nothing is scattered, no array is as large as
entries times samples.

Entry e has row r(e) and column c(e); arrays have samples first, so that one sample's numbers lie close together.

    y[f, i] = Σ_{e: r(e) = i} w[e] u[f, c(e)]        g[e] = Σ_f u[f, c(e)] y[f, r(e)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..._compat import common_dtype, is_concrete
from ..._machine import machine
from ._base import BlockRow, Product, WithWeight

# The values of entries, in the order in which the product reads them, and its derivative by the data.
_Weights: TypeAlias = tuple[list[Array], list[Array]]


class Entries(NamedTuple):
    """Rows and columns of the stored entries, and which of them count: a padded one lies outside of the matrix."""

    rows: Array | np.ndarray
    cols: Array | np.ndarray
    counts: Array | np.ndarray | None

    def keep(self, values: Array) -> Array:
        """Values per entry, zero for padding."""
        return values if self.counts is None else jnp.where(self.counts, values, 0)


def entries_of(rows: Array | np.ndarray, cols: Array | np.ndarray, shape: tuple[int, int]) -> Entries:
    """Entries by their indices, which are arrays or, inside a compiled program, unknown."""
    # A padded entry is read at place zero, and what is read there does not count.
    if not is_concrete((rows, cols)):
        counts = (rows >= 0) & (rows < shape[0]) & (cols >= 0) & (cols < shape[1])
        return Entries(jnp.where(counts, rows, 0), jnp.where(counts, cols, 0), counts)
    rows, cols = np.asarray(rows), np.asarray(cols)
    counts = (rows >= 0) & (rows < shape[0]) & (cols >= 0) & (cols < shape[1])
    return Entries(rows, cols, None) if counts.all() else Entries(rows * counts, cols * counts, counts)


def by_entry(at: Entries, u: Array, y: Array) -> Array:
    """Σ_k g[e] over steps, for u (k, f, columns) and y (k, f, rows)."""
    u = machine().whole_along(u, 2)
    zero = jnp.zeros(at.rows.shape, _wide(u, y))
    return at.keep(_added(_merged([u, y]), lambda u, y: u[..., at.cols] * y[..., at.rows], zero))


def by_trace(at: Entries, trace: Array, y: Array) -> Array:
    """Σ_f trace[f, e] y[f, r(e)], for y (f, rows)."""
    zero = jnp.zeros(at.rows.shape, _wide(trace, y))
    return at.keep(_added(_merged([trace[None], y[None]]), lambda t, y: t * y[..., at.rows], zero))


def _wide(*arrays: Array) -> np.dtype:
    """Sums over samples are of at least float32."""
    return common_dtype(jnp.float32, *(a.dtype for a in arrays))


def _merged(arrays: Sequence[Array]) -> list[Array]:
    """(k, f, …) as one axis of rows to be added up one by one, or, where all samples are added at once, as they are."""
    return [a.reshape(-1, a.shape[-1]) for a in arrays] if machine().loops_over_samples else list(arrays)


def _added(arrays: Sequence[Array], term: Callable[..., Array], total: Array) -> Array:
    """total + the sum of `term` over the first axis, a few at a time; a second axis of samples is summed at once."""
    if arrays[0].ndim > 2:
        return lax.scan(lambda sums, row: (sums + term(*row).sum(0).astype(total.dtype), None), total, arrays)[0]
    n, together = arrays[0].shape[0], machine().samples_together

    def add_few(total: Array, few: Sequence[Array]) -> tuple[Array, None]:
        for i in range(few[0].shape[0]):
            total = total + term(*(a[i] for a in few)).astype(total.dtype)
        return total, None

    looped = n - n % together
    if looped > together:
        few = [a[:looped].reshape(-1, together, *a.shape[1:]) for a in arrays]
        total, _ = lax.scan(add_few, total, few)
    else:
        looped = 0  # a loop of one round is none
    return add_few(total, [a[looped:] for a in arrays])[0]


def on_traces(
    at: Entries, block: Sequence[BlockRow], traces: Sequence[Array], u: Array, c: Sequence[Array]
) -> tuple[Array, ...]:
    """Σ_t block[s][t][f, r(e)] traces[t][f, e] + Σ_k u[k, f, c(e)] c[s][k, f, r(e)] for every s.

    One sample after the other, in place of the traces.
    """
    if not traces[0].shape[0]:
        return tuple(traces)
    if not machine().loops_over_samples:
        return _on_all_traces(at, block, traces, u, c)

    def move(f: Array, traces: tuple[Array, ...]) -> tuple[Array, ...]:
        old = [_at(t, f) for t in traces]
        new = []
        for s, row in enumerate(block):
            carried = [_at(p, f)[at.rows] * old[t] for t, p in enumerate(row) if p is not None]
            start = sum(carried, jnp.zeros_like(old[s], common_dtype(old[s].dtype, c[s].dtype)))
            # Steps are added to what is carried: no array of steps times entries is made.
            steps = [_at(u, f, 1), _at(c[s], f, 1)]
            new.append(at.keep(_added(steps, lambda a, b: a[at.cols] * b[at.rows], start)))
        return tuple(
            lax.dynamic_update_index_in_dim(t, row.astype(t.dtype), f, 0) for t, row in zip(traces, new, strict=True)
        )

    return lax.fori_loop(0, traces[0].shape[0], move, tuple(traces))


def _on_all_traces(
    at: Entries, block: Sequence[BlockRow], traces: Sequence[Array], u: Array, c: Sequence[Array]
) -> tuple[Array, ...]:
    """`on_traces` for all samples at once, which keeps a large device busy, or several that samples lie on."""
    u = machine().whole_along(u, 2)

    def add(total: Array, step: tuple[Array, Array]) -> tuple[Array, None]:
        return total + step[0][:, at.cols] * step[1][:, at.rows], None

    new = []
    for s, row in enumerate(block):
        carried = [p[:, at.rows] * traces[t] for t, p in enumerate(row) if p is not None]
        start = sum(carried, jnp.zeros_like(traces[s], common_dtype(traces[s].dtype, c[s].dtype, u.dtype)))
        new.append(at.keep(lax.scan(add, start, (u, c[s]))[0]).astype(traces[s].dtype))
    return tuple(new)


def _at(a: Array, f: Array, axis: int = 0) -> Array:
    """Element f along an axis."""
    return lax.dynamic_index_in_dim(a, f, axis, keepdims=False)


class Round(NamedTuple):
    """Sums of equally many numbers: per size, which numbers (size, sums)."""

    which: list[np.ndarray]

    def __call__(self, values: Array, weights: Sequence[Array] | None) -> Array:
        """(f, numbers) → (f, sums); weights, if there are some, are (size, sums) for each size."""
        sums = []
        for b, at in enumerate(self.which):
            terms = (values[:, row] for row in at)
            if weights is not None:
                terms = (w * v for w, v in zip(weights[b], terms, strict=True))
            sums.append(sum(terms))
        return jnp.concatenate(sums, 1)


class Sums(NamedTuple):
    """Sums by row: rounds of short sums, and where the sum of each row is (-1: a row without entries)."""

    entries: list[np.ndarray]
    rounds: list[Round]
    place: np.ndarray

    def weights(self, w: Array) -> list[Array]:
        """The entries' values in the order of the first round."""
        return [w[e] for e in self.entries]

    def __call__(self, weights: Sequence[Array], values: Array) -> Array:
        """Σ_e w[e] values[f, source of e] for every row.

        A few samples at a time, in a loop: what the values are made of is then not computed again at every read.
        """
        n = values.shape[0]
        if not self.rounds:
            return jnp.zeros((n, self.place.size), values.dtype)
        # The largest number that divides the samples and leaves a loop of two rounds: XLA would unroll one.
        few = next(k for k in range(min(machine().samples_together, max(n // 2, 1)), 0, -1) if n % k == 0)
        sums = lax.map(lambda some: self._sums(weights, some), values.reshape(-1, few, values.shape[1]))
        return sums.reshape(n, -1)

    def _sums(self, weights: Sequence[Array], values: Array) -> Array:
        values = self.rounds[0](values, weights)
        for r in self.rounds[1:]:
            values = r(values, None)
        rows = values[:, np.maximum(self.place, 0)]
        return rows if (self.place >= 0).all() else jnp.where(self.place >= 0, rows, 0)


def plan_sums(rows: np.ndarray, sources: np.ndarray, n: int) -> Sums:
    """How to add up entries by row, for n rows: entry e reads number sources[e].

    The first round adds entries in chunks, the next ones add the chunks of a row, until each row is one number.
    """
    rounds, entries, read = [], [], sources
    while rows.size:
        number, chunk_row, chunks = _chunks(rows)
        rounds.append(Round([read[e] for e in chunks]))
        entries = entries or [e.astype(np.int32) for e in chunks]
        rows, read = chunk_row, np.arange(number, dtype=np.int32)
        if np.unique(rows).size == rows.size:
            break
    place = np.full(n, -1, np.int32)
    place[rows] = np.arange(rows.size)
    return Sums(entries, rounds, place)


def _chunks(rows: np.ndarray) -> tuple[int, np.ndarray, list[np.ndarray]]:
    """Split rows into chunks of at most `entries_in_a_sum`: how many chunks, the row of each, the entries per size."""
    by = np.argsort(rows, kind="stable")
    ordered = rows[by]
    # The number of each entry within its row; every so many a chunk begins, and ends where the next one begins.
    rank = np.arange(rows.size) - np.searchsorted(ordered, ordered)
    first = np.flatnonzero(rank % machine().entries_in_a_sum == 0)
    size = np.diff(np.append(first, rows.size))
    chunks, chunk_row = [], []
    for s in np.unique(size):
        start = first[size == s]
        chunks.append(by[start[None, :] + np.arange(s)[:, None]])  # (size, chunks): entry i of each chunk in row i
        chunk_row.append(ordered[start])
    return first.size, np.concatenate(chunk_row), chunks


def plan_on_mesh(at: Entries, shape: tuple[int, int]) -> WithWeight:
    """w → (u → y), u (f, columns) and y (f, rows): activity is gathered from all devices, then read at the entries."""

    def with_weight(w: Array) -> Product:
        values = at.keep(w)

        def product(u: Array) -> Array:
            read = machine().whole_along(u, 1)[:, at.cols] * values
            return jax.ops.segment_sum(read.T, at.rows, shape[0]).T

        return product

    return with_weight


def plan_product(at: Entries, shape: tuple[int, int]) -> WithWeight:
    """w → (u → y), u (f, columns) and y (f, rows), with a derivative by reads alone as well."""
    counts = slice(None) if at.counts is None else np.flatnonzero(at.counts)
    rows, cols = np.asarray(at.rows)[counts], np.asarray(at.cols)[counts].astype(np.int32)
    if rows.size * machine().dense_share >= shape[0] * shape[1]:
        return lambda w: lambda u: u @ jnp.zeros(shape[::-1], w.dtype).at[cols, rows].add(w[counts])
    forth, back = plan_sums(rows, cols, shape[0]), plan_sums(cols, rows.astype(np.int32), shape[1])

    @jax.custom_vjp
    def product(weights: _Weights, u: Array) -> Array:
        return forth(weights[0], u)

    def pull(saved: tuple[_Weights, Array], g: Array) -> tuple[tuple[list[Array], None], Array]:
        (forward, backward), u = saved
        # The weights' share is dead code unless somebody differentiates the learner that holds the product.
        return (jax.vjp(lambda w: forth(w, u), forward)[1](g)[0], None), back(backward, g)

    product.defvjp(lambda weights, u: (forth(weights[0], u), (weights, u)), pull)

    def with_weight(w: Array) -> Product:
        weights = forth.weights(w[counts]), back.weights(w[counts])
        return lambda u: product(weights, u)

    return with_weight
