"""Cells as libraries spell them: the gradient that is timed is that of BPTT where the window is the sequence."""

import jax
import pytest
from benchmarks.rivals import bptt, ours
from benchmarks.spellings import CELLS

from .test_workloads import STEPS, close, gradients

LIBRARIES = {"Flax": "flax", "Equinox": "equinox"}


@pytest.mark.parametrize("name", CELLS)
def test_the_gradient_is_that_of_bptt(name):
    pytest.importorskip(LIBRARIES.get(name.split()[0], "jax"))
    workload = CELLS[name](2, 4)
    assert all(a.dtype == "float32" for a in jax.tree.leaves((workload.params, workload.hidden)))
    close(gradients(ours("d_rtrl", STEPS), workload), gradients(bptt(), workload))
