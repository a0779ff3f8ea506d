"""A pattern is never too small, and where it claims to be precise it is no larger than the Jacobian."""

import jax
import numpy as np
import pytest

from .functions import CASES, draw
from .oracle import nonzero, patterns

DRAWS = 40


def jacobian_pattern(case):
    """Where the Jacobian is not zero for at least one of several draws of the data."""
    at = jax.jit(lambda x, *data: nonzero(lambda x: case.f(x, *data), x))
    found = []
    for seed in range(DRAWS if case.data else 1):
        data = [draw(s, 100 * seed + k) for k, s in enumerate(case.data)]
        found.append(at(draw(case.x, 7 + seed), *data))
    return [np.any(rows, axis=0) for rows in zip(*found, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_pattern_holds_the_jacobian(name):
    case = CASES[name]
    found, problems = patterns(case.f, case.x, *case.data)
    assert not problems
    for pattern, truth in zip(found, jacobian_pattern(case), strict=True):
        assert not (truth & ~pattern).any(), f"too small:\n{truth.astype(int)}\n{pattern.astype(int)}"
        if case.precise:
            assert np.array_equal(truth, pattern), f"too large:\n{truth.astype(int)}\n{pattern.astype(int)}"
