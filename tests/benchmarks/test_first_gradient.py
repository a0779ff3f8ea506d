"""The models whose first gradient is timed can be run."""

import jax
import numpy as np
from benchmarks.first_gradient import MODELS, bptt, delay_line, example_of, learned, zoo
from tests.learn.oracle import relative_error
from tests.zoo import ZOO


def test_what_is_timed_is_the_same_gradient():
    m = delay_line(2)
    (_, found), _ = learned(m, "d_rtrl", example_of(m))
    assert relative_error(found["w"], bptt(m)["w"]) < 1e-5


def test_all_models_are_there():
    assert {name for name, _ in zoo()} == set(ZOO) and len(MODELS) == 12
    given = dict(zoo())[next(iter(ZOO))]()
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(given.params))
