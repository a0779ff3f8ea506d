"""Copies of an op's columns are summed at the columns, in whatever order they stand, and some columns may have none."""

import numpy as np
import pytest

from etrax.compiler.analysis import Copies
from etrax.compiler.ops import Columns
from etrax.runtime import site_math


@pytest.mark.parametrize(
    "of",
    [[0, 1, 2, 0, 1, 2], [0, 0, 1, 1, 2, 2], [1, 3, 1, 3], [3, 3, 4, 4], [2, 4, 2], [0, 1, 2, 3, 4]],
    ids=["all, in turn", "all, side by side", "some, in turn", "some, side by side", "in no order", "once"],
)
@pytest.mark.parametrize("axis", [-1, -2])
def test_copies_are_summed_at_their_columns(of, axis):
    count = 3 if max(of) == 2 and len(of) == 6 else 5
    rng, of = np.random.default_rng(0), np.array(of)
    g = np.moveaxis(rng.standard_normal((2, 3, of.size)), -1, axis)
    expected = np.zeros((2, 3, count))
    np.add.at(expected, (slice(None), slice(None), of), np.moveaxis(g, axis, -1))
    copies = Copies(None, Columns(axis, axis), of, count, of.size)
    np.testing.assert_allclose(site_math.copies_added(copies, g, axis), np.moveaxis(expected, -1, axis), atol=1e-12)
