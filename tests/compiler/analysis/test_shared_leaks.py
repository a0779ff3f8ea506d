"""Few leaks for many: the error that is claimed holds at every t, and is as small as few leaks allow."""

from itertools import pairwise

import numpy as np
import pytest

from etrax.compiler.analysis import fewest_shared_leaks, shared_leaks


def leaks_of(shortest, longest, count=60, dtype=np.float64):
    """Leaks of units whose time constants lie between these."""
    return np.exp(-1 / np.geomspace(shortest, longest, count)).astype(dtype)


def error_at(times, units, shared):
    """|λ^t − Σ_j w_j κ_j^t| by plain powers, the greatest at these times."""
    powers = np.power(shared.leaks.astype(np.float64), times[:, None])
    return np.abs(np.power(units.astype(np.float64), times[:, None]) - powers @ shared.weights).max()


@pytest.mark.parametrize(
    "shortest, longest, count, claim",
    [
        (5, 25, 6, 6e-5), (10, 200, 10, 2e-5), (10, 200, 6, 2e-3), (2, 20, 4, 6e-3), (1, 1000, 16, 2e-4),
        (20, 20_000, 12, 2e-3), (5, 25, 1, 0.5),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_error_holds_at_every_time(shortest, longest, count, claim, dtype):
    units = leaks_of(shortest, longest, dtype=dtype)
    shared = shared_leaks(units, count)
    assert len(shared.leaks) == count and shared.leaks.dtype == dtype and shared.different == len(units)
    times = np.unique(np.r_[np.arange(3000.0), np.geomspace(3000, 60 * longest + 3000, 20_000).round()])
    measured = error_at(times, units, shared)
    assert measured <= shared.error <= claim
    assert shared.error <= 1.01 * measured + 1e-6


def test_more_leaks_are_nearer_until_nothing_but_rounding_is_left():
    units = leaks_of(5, 12)
    errors = [shared_leaks(units, count).error for count in range(2, 21)]
    assert all(b < a for a, b in pairwise(errors[:10])) and errors[-1] < 1e-13


def test_no_more_different_leaks_than_shared_ones_are_themselves():
    """Of whatever sign and size."""
    units = np.array([1.0, 0.5, -0.3, 0.5, 1.0, 1.2])
    shared = shared_leaks(units, 4)
    assert shared.error == 0 and shared.different == 4
    np.testing.assert_array_equal(shared.leaks @ shared.weights, units)


@pytest.mark.parametrize("other", [1.0, 1.5, 0.0, -0.4, np.nan, np.inf])
def test_leaks_that_cannot_be_shared(other):
    units = np.r_[leaks_of(2, 20), other]
    assert shared_leaks(units, 8) is None and fewest_shared_leaks(units, 20, 1e-3) is None


def test_as_few_as_an_error_asks_for():
    units = leaks_of(10, 200, 300)
    shared = fewest_shared_leaks(units, 20, 1e-3)
    assert shared.error <= 1e-3 < shared_leaks(units, len(shared.leaks) - 1).error
    assert fewest_shared_leaks(units, 3, 1e-3) is None
    assert fewest_shared_leaks(units[:20], 20, 1e-3).error == 0
