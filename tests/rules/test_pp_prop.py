"""pp_prop, and D-RTRL beside it, against per-step references in dense matrices."""

import pytest
from tests.learn import reference
from tests.learn.cases import CASES
from tests.learn.harness import WINDOWS, agrees, differs, gradients

import etrax

REAL = [name for name in CASES if name != "lru"]  # the reference has no complex products
DECAY = 0.8


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", REAL)
def test_pp_prop(name, windows):
    agrees(name, etrax.pp_prop(DECAY), lambda n, k: reference.pp_prop(n, k, DECAY), windows)


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", CASES)
def test_d_rtrl(name, windows):
    agrees(name, etrax.d_rtrl(), reference.d_rtrl, windows)


@pytest.mark.parametrize("name", REAL)
def test_they_differ(name):
    """What is compared could be told apart: from each other, from no trace at all, and by the decay."""
    found = gradients(name, etrax.pp_prop(DECAY), 2)[0]
    for other in (etrax.d_rtrl(), etrax.tbptt(), etrax.pp_prop(0.5)):
        assert differs(found, gradients(name, other, 2)[0]) > 1e-3
