"""Slots that act alike are one entry of the products over a window, which then are those of dense matrices."""

import numpy as np
import pytest

from etrax.runtime.blocks import Step, alike, reverse

P, K = 5, 6  # positions, steps


def links_of(own, taps):
    """`own` states that act on themselves alone, all of them read by a delay line of `taps`, in this order."""
    links = np.eye(own + taps, dtype=bool)
    links[:own, own:] = True
    links[own:, own:] = np.eye(taps, k=1, dtype=bool)
    return links


def window_products(steps):
    """Dense D_K ··· D_{k+1} for k = K, …, 0."""
    out = [np.broadcast_to(np.eye(steps.shape[1])[:, :, None], steps.shape[1:])]
    for d in steps[::-1]:
        out.append(np.einsum("stp,tup->sup", out[-1], d))
    return out


def pair(rng, links, algebra):
    """By slot: products over a window as the algebra has them, and F met by them; and both by dense matrices."""
    blocks = rng.standard_normal((K, *links.shape, P)) * links[:, :, None]
    row = rng.standard_normal((K, len(links), P))
    by_slot = [[blocks[:, s, t] if links[s, t] else None for t in range(len(links))] for s in range(len(links))]
    records = Step({0: algebra.joined(by_slot, 1)}, {0: algebra.joined_vector(list(row.swapaxes(0, 1)), 1)})

    def emit(a, step):
        return algebra.times(a[0], step.rows[0])

    start = {0: algebra.identity(np.dtype(np.float64))}
    out, c = reverse({0: algebra}, start, K, lambda record: record, records, emit)
    dense = window_products(blocks)
    late = np.stack([np.einsum("stp,tp->sp", a, f) for a, f in zip(dense[K - 1 :: -1], row, strict=True)], 1)
    return algebra.by_slot(out[0]), algebra.vector_by_slot(c, 1), dense[K], late


@pytest.mark.parametrize(("own", "taps"), [(4, 1), (6, 2), (5, 0)])
def test_products_are_those_of_dense_matrices(own, taps):
    links = links_of(own, taps)
    algebra = alike(links, (P,), steep=False)
    assert algebra.classes == (tuple(range(own)), *((own + j,) for j in range(taps)))
    product, late, dense, dense_late = pair(np.random.default_rng(own), links, algebra)
    for s, t in np.ndindex(links.shape):
        np.testing.assert_allclose(0 if product[s][t] is None else product[s][t], dense[s, t], atol=1e-12)
    np.testing.assert_allclose(np.stack(late), dense_late, atol=1e-12)


def test_a_slot_that_acts_on_another_is_not_one_of_many():
    links = links_of(10, 2)
    links[1, 0] = True  # h_0 acts on h_1: neither is like the others
    assert alike(links, (P,), steep=False).classes == ((0,), (1,), tuple(range(2, 10)), (10,), (11,))
    links[10, 9] = True  # h_9 acts on the delay line
    assert alike(links, (P,), steep=False).classes == ((0,), (1,), tuple(range(2, 9)), (9,), (10,), (11,))


def test_where_few_slots_are_alike_each_is_its_own_entry():
    assert alike(links_of(2, 3), (P,), steep=False) is None
    assert alike(np.ones((6, 6), bool), (P,), steep=False) is None
