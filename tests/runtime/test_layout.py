"""From arrays per position to arrays per element of y."""

import jax.numpy as jnp
import numpy as np
import pytest

from etrax.runtime._layout import gather_of

ONE = np.arange(24).reshape(4, 6)
PLACES = {  # the element's position, and whether it takes an index
    "the positions": (ONE, False),
    "gates side by side": (np.concatenate([ONE] * 3, -1), False),
    "many copies": (np.concatenate([ONE] * 20), False),
    "samples last": (ONE.T, False),
    "gates, samples last": (np.concatenate([ONE.T] * 3), False),
    "in no order": (ONE.reshape(-1)[::-1].reshape(6, 4), True),
    "some reach none": (np.where(ONE % 5, ONE, -1), True),
}


@pytest.mark.parametrize("case", PLACES)
def test_elements_read_their_positions(case):
    places, indexed = PLACES[case]
    values = np.random.default_rng(0).standard_normal(ONE.shape).astype(np.float32)
    gather = gather_of(places, ONE.shape, ONE.size)
    expected = np.where(places >= 0, values.reshape(-1)[places], 0)
    np.testing.assert_array_equal(gather(jnp.asarray(values)), expected)
    assert (gather.index is not None) == indexed
    assert gather.is_identity == (case == "the positions")
