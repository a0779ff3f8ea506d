"""e-prop with the symmetric signal: the window engine against the filtered recursion, step by step."""

import pytest
from tests.learn import reference
from tests.learn.cases import CASES, B, H, I, T
from tests.learn.harness import WINDOWS, agrees, assert_close, compiled, differs, gradients, numbers

import etrax

KAPPA = 0.6


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", CASES)
def test_against_the_recursion(name, windows):
    agrees(name, etrax.e_prop(KAPPA), lambda n, k: reference.e_prop(n, k, KAPPA), windows)


def test_one_step_a_window():
    """The filter is moved in another way there."""
    agrees("gru", etrax.e_prop(KAPPA), lambda n, k: reference.e_prop(n, k, KAPPA), (1,))


@pytest.mark.parametrize("name", ["gru", "alif_vjp"])
def test_without_a_filter_it_is_d_rtrl(name):
    for k in (1, 3):
        assert_close(gradients(name, etrax.e_prop(), k)[0], gradients(name, etrax.d_rtrl(), k)[0], tol=0)
    assert compiled(name, etrax.e_prop()).report.verdicts == compiled(name, etrax.d_rtrl()).report.verdicts


def test_one_window_is_bptt():
    assert_close(gradients("two_layers", etrax.e_prop(KAPPA), T)[0], reference.bptt("two_layers"))


def test_the_filter_matters():
    one = reference.e_prop("gru", 1, KAPPA)
    assert differs(one, reference.e_prop("gru", 1, 0.5)) > 1e-3
    assert differs(one, reference.d_rtrl("gru", 1)) > 1e-3


def test_memory():
    n = B * (I * H + H * H + H)
    assert compiled("vanilla", etrax.e_prop()).report.memory["e_prop"] == 8 * n
    assert compiled("vanilla", etrax.e_prop(KAPPA)).report.memory["e_prop"] == 2 * 8 * n
    assert numbers(compiled("vanilla", etrax.e_prop(KAPPA)).init().trace) == 2 * n


def test_a_filter_is_never_exact():
    verdicts = compiled("lru", etrax.e_prop(KAPPA)).report.verdicts
    assert compiled("lru", etrax.e_prop()).report.verdicts["b",].kind == "exact"
    assert {p[0]: str(v.kind) for p, v in verdicts.items()} == {
        "b": "approximate", "nu": "approximate", "theta": "approximate", "wo": "exact", "d": "exact",
    }  # fmt: skip
    assert "filtered by 0.6" in verdicts["b",].reason


@pytest.mark.parametrize("kappa", [-0.1, 1.0, "slow", None])
def test_bad_kappa(kappa):
    with pytest.raises(ValueError, match="`e_prop` takes a `kappa` from 0 up to but not including 1"):
        etrax.e_prop(kappa)
