"""Products with the stored entries of a sparse matrix, by reads alone: nothing is scattered, no array is as large as
entries times samples.

Entry e has row r(e) and column c(e); arrays have samples first, so that one sample's numbers lie close together.

    y[f, i] = Σ_{e: r(e) = i} w[e] u[f, c(e)]        g[e] = Σ_f u[f, c(e)] y[f, r(e)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..._compat import common_dtype, is_concrete
from ..._machine import machine


class Entries(NamedTuple):
    """Rows and columns of the stored entries, and which of them count: a padded one lies outside of the matrix."""

    rows: Any
    cols: Any
    counts: Any | None

    def keep(self, values: Any) -> Any:
        """Values per entry, zero for padding."""
        return values if self.counts is None else jnp.where(self.counts, values, 0)


def entries_of(rows: Any, cols: Any, shape: tuple[int, int]) -> Entries:
    """Entries by their indices, which are arrays or, inside a compiled program, unknown."""
    if not is_concrete((rows, cols)):
        counts = (rows >= 0) & (rows < shape[0]) & (cols >= 0) & (cols < shape[1])
        return Entries(jnp.where(counts, rows, 0), jnp.where(counts, cols, 0), counts)
    rows, cols = np.asarray(rows), np.asarray(cols)
    counts = (rows >= 0) & (rows < shape[0]) & (cols >= 0) & (cols < shape[1])
    return Entries(rows, cols, None) if counts.all() else Entries(rows * counts, cols * counts, counts)


def by_entry(at: Entries, u: Any, y: Any) -> Any:
    """Σ_k g[e] over steps, for u (k, f, columns) and y (k, f, rows)."""
    u = machine().whole_along(u, 2)
    zero = jnp.zeros(at.rows.shape, _wide(u, y))
    return at.keep(_added(_merged([u, y]), lambda u, y: u[..., at.cols] * y[..., at.rows], zero))


def by_trace(at: Entries, trace: Any, y: Any) -> Any:
    """Σ_f trace[f, e] y[f, r(e)], for y (f, rows)."""
    zero = jnp.zeros(at.rows.shape, _wide(trace, y))
    return at.keep(_added(_merged([trace[None], y[None]]), lambda t, y: t * y[..., at.rows], zero))


def _wide(*arrays: Any) -> Any:
    """Sums over samples are of at least float32."""
    return common_dtype(jnp.float32, *(a.dtype for a in arrays))


def _merged(arrays: Sequence[Any]) -> list[Any]:
    """(k, f, …) as one axis of rows to be added up one by one, or, where all samples are added at once, as they are."""
    return [a.reshape(-1, a.shape[-1]) for a in arrays] if machine().loops_over_samples else list(arrays)


def _added(arrays: Sequence[Any], term: Callable[..., Any], total: Any) -> Any:
    """total + the sum of `term` over the first axis, a few at a time; a second axis of samples is summed at once."""
    if arrays[0].ndim > 2:
        return lax.scan(lambda so_far, row: (so_far + term(*row).sum(0).astype(total.dtype), None), total, arrays)[0]
    n, few_samples = arrays[0].shape[0], machine().samples_together

    def some(total: Any, few: Sequence[Any]) -> tuple[Any, None]:
        for i in range(few[0].shape[0]):
            total = total + term(*(a[i] for a in few)).astype(total.dtype)
        return total, None

    whole = n - n % few_samples
    if whole > few_samples:
        few = [a[:whole].reshape(-1, few_samples, *a.shape[1:]) for a in arrays]
        total, _ = lax.scan(some, total, few)
    else:
        whole = 0
    return some(total, [a[whole:] for a in arrays])[0]


def on_traces(
    at: Entries, block: Sequence[Sequence[Any]], traces: Sequence[Any], u: Any, c: Sequence[Any]
) -> tuple[Any, ...]:
    """Σ_t block[s][t][f, r(e)] traces[t][f, e] + Σ_k u[k, f, c(e)] c[s][k, f, r(e)] for every s, sample by sample and
    in the place of the traces.
    """
    if not traces[0].shape[0]:
        return tuple(traces)
    if not machine().loops_over_samples:
        return _on_all_traces(at, block, traces, u, c)

    def fresh(seen: Any, late: Any, like: Any) -> Any:
        return at.keep(_added([seen, late], lambda a, b: a[at.cols] * b[at.rows], like))

    def one(f: Any, traces: tuple[Any, ...]) -> tuple[Any, ...]:
        old = [_at(t, f) for t in traces]
        new = []
        for s, row in enumerate(block):
            kept = [_at(p, f)[at.rows] * old[t] for t, p in enumerate(row) if p is not None]
            start = sum(kept, jnp.zeros_like(old[s], common_dtype(old[s].dtype, c[s].dtype)))
            new.append(fresh(_at(u, f, 1), _at(c[s], f, 1), start))
        return tuple(
            lax.dynamic_update_index_in_dim(t, row.astype(t.dtype), f, 0) for t, row in zip(traces, new, strict=True)
        )

    return lax.fori_loop(0, traces[0].shape[0], one, tuple(traces))


def _on_all_traces(
    at: Entries, block: Sequence[Sequence[Any]], traces: Sequence[Any], u: Any, c: Sequence[Any]
) -> tuple[Any, ...]:
    """`on_traces` for all samples at once, so that these can lie on several devices."""
    u = machine().whole_along(u, 2)

    def fresh(late: Any, start: Any) -> Any:
        step = lambda total, row: (total + row[0][:, at.cols] * row[1][:, at.rows], None)  # noqa: E731
        return lax.scan(step, start, (u, late))[0]

    new = []
    for s, row in enumerate(block):
        kept = [p[:, at.rows] * traces[t] for t, p in enumerate(row) if p is not None]
        start = sum(kept, jnp.zeros_like(traces[s], common_dtype(traces[s].dtype, c[s].dtype, u.dtype)))
        new.append(at.keep(fresh(c[s], start)).astype(traces[s].dtype))
    return tuple(new)


def _at(a: Any, f: Any, axis: int = 0) -> Any:
    return lax.dynamic_index_in_dim(a, f, axis, keepdims=False)


class Round(NamedTuple):
    """Sums of equally many numbers: per size, which numbers (size, sums)."""

    which: list[np.ndarray]

    def __call__(self, values: Any, weights: Sequence[Any] | None) -> Any:
        """(f, numbers) → (f, sums)."""
        found = []
        for b, at in enumerate(self.which):
            terms = (values[:, row] for row in at)
            if weights is not None:
                terms = (w * v for w, v in zip(weights[b], terms, strict=True))
            found.append(sum(terms))
        return jnp.concatenate(found, 1)


class Sums(NamedTuple):
    """Sums by row: rounds of short sums, and where the sum of each row is (-1: a row without entries)."""

    entries: list[np.ndarray]
    rounds: list[Round]
    place: np.ndarray

    def weights(self, w: Any) -> list[Any]:
        """The entries' values in the order of the first round."""
        return [w[e] for e in self.entries]

    def __call__(self, weights: Sequence[Any], values: Any) -> Any:
        """Σ_e w[e] values[f, source of e] for every row.

        A few samples at a time, in a loop: what the values are made of is then not computed again at every read.
        """
        n = values.shape[0]
        if not self.rounds:
            return jnp.zeros((n, self.place.size), values.dtype)
        few = next(k for k in range(min(machine().samples_together, max(n // 2, 1)), 0, -1) if n % k == 0)
        found = lax.map(lambda some: self._sums(weights, some), values.reshape(-1, few, values.shape[1]))
        return found.reshape(n, -1)

    def _sums(self, weights: Sequence[Any], values: Any) -> Any:
        values = self.rounds[0](values, weights)
        for r in self.rounds[1:]:
            values = r(values, None)
        found = values[:, np.maximum(self.place, 0)]
        return found if (self.place >= 0).all() else jnp.where(self.place >= 0, found, 0)


def plan_sums(rows: np.ndarray, sources: np.ndarray, n: int) -> Sums:
    """How to add up entries by row, for n rows."""
    rounds, entries, what = [], [], sources
    while rows.size:
        number, chunk_row, chunks = _chunks(rows)
        rounds.append(Round([what[e] for e in chunks]))
        entries = entries or [e.astype(np.int32) for e in chunks]
        rows, what = chunk_row, np.arange(number, dtype=np.int32)
        if np.unique(rows).size == rows.size:
            break
    place = np.full(n, -1, np.int32)
    place[rows] = np.arange(rows.size)
    return Sums(entries, rounds, place)


def _chunks(rows: np.ndarray) -> tuple[int, np.ndarray, list[np.ndarray]]:
    """Split rows into chunks of at most `entries_in_a_sum`: how many chunks, the row of each, the entries per size."""
    by = np.argsort(rows, kind="stable")
    ordered = rows[by]
    rank = np.arange(rows.size) - np.searchsorted(ordered, ordered)
    first = np.flatnonzero(rank % machine().entries_in_a_sum == 0)
    size = np.diff(np.append(first, rows.size))
    chunks, chunk_row = [], []
    for s in np.unique(size):
        start = first[size == s]
        chunks.append(by[start[None, :] + np.arange(s)[:, None]])
        chunk_row.append(ordered[start])
    return first.size, np.concatenate(chunk_row), chunks


def plan_on_mesh(at: Entries, shape: tuple[int, int]) -> Callable[[Any], Callable[[Any], Any]]:
    """w → (u → y), u (f, columns) and y (f, rows): activity is gathered from all devices, then read at the entries."""

    def with_weights(w: Any) -> Callable[[Any], Any]:
        values = at.keep(w)

        def product(u: Any) -> Any:
            read = machine().whole_along(u, 1)[:, at.cols] * values
            return jax.ops.segment_sum(read.T, at.rows, shape[0]).T

        return product

    return with_weights


def plan_product(at: Entries, shape: tuple[int, int]) -> Callable[[Any], Callable[[Any], Any]]:
    """w → (u → y), u (f, columns) and y (f, rows), with a derivative by reads alone as well."""
    counts = slice(None) if at.counts is None else np.flatnonzero(at.counts)
    rows, cols = np.asarray(at.rows)[counts], np.asarray(at.cols)[counts].astype(np.int32)
    if rows.size * machine().dense_share >= shape[0] * shape[1]:
        return lambda w: lambda u: u @ jnp.zeros(shape[::-1], w.dtype).at[cols, rows].add(w[counts])
    forth, back = plan_sums(rows, cols, shape[0]), plan_sums(cols, rows.astype(np.int32), shape[1])

    @jax.custom_vjp
    def product(weights: Any, u: Any) -> Any:
        return forth(weights[0], u)

    def pull(held: Any, g: Any) -> Any:
        (forward, backward), u = held
        # The weights' share is dead code unless somebody differentiates the learner that holds the product.
        return (jax.vjp(lambda w: forth(w, u), forward)[1](g)[0], None), back(backward, g)

    product.defvjp(lambda weights, u: (forth(weights[0], u), (weights, u)), pull)

    def with_weights(w: Any) -> Callable[[Any], Any]:
        weights = forth.weights(w[counts]), back.weights(w[counts])
        return lambda u: product(weights, u)

    return with_weights
