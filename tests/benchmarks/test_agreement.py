"""The page of agreement: its judges judge, without braintrace."""

import pytest
from benchmarks.agreement_models import MODELS

import etrax
from benchmarks import agreement


@pytest.mark.parametrize("name", ["leaky", "two states in a chain", "LIF"])
def test_a_filter_is_judged_by_dense_jacobians(name):
    got, _ = agreement.ours(MODELS[name], etrax.e_prop(agreement.KAPPA))
    want = agreement.filtered(MODELS[name])
    assert max(agreement.error(got[k], want[k]) for k in got) < agreement.SAME
    assert agreement.error(got["w"], agreement.bptt(MODELS[name])["w"]) > 1e-2


def test_bptt_is_judged_by_finite_differences():
    model = MODELS["GRU"]
    want = agreement.finite_differences(model)
    assert max(agreement.error(g, want[k]) for k, g in agreement.bptt(model).items()) < 1e-7


def test_a_section_is_replaced(tmp_path):
    rows = [agreement.Row("m", "w", next(iter(agreement.RULES)), 0.5, 0.25, 0.0, "exact")]
    page = tmp_path / "page.md"
    for version in ("braintrace 1", "braintrace 2", "braintrace 1"):
        agreement.write(page, version, agreement.section(rows, 1e-9, version))
    text = page.read_text()
    assert text.count("## braintrace 1\n") == text.count("## braintrace 2\n") == 1
    assert text.count("| m | `w` | 0.5 | 0.25 | 0 | exact |") == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:ETP primitive")  # the reset gate of the GRU
@pytest.mark.parametrize("name", ["leaky RNN", "GRU", "LIF"])
def test_credit_as_published_is_that_of_braintrace(name):
    """Number by number, of all parameters whose products reach a state by itself: those of a reset gate have none."""
    brainstate = pytest.importorskip("brainstate")
    pytest.importorskip("braintrace")
    model = MODELS[name]
    rules = {
        "D_RTRL": (etrax.d_rtrl(fan_out=0, hops=0, credit="state"), {}),
        "pp_prop": (etrax.pp_prop(0.9, credit="state"), {"decay_or_rank": 0.9}),
        "EProp": (etrax.e_prop(credit="state"), {"kappa_filter_decay": 0.0}),
    }
    with brainstate.environ.context(precision=64):
        for peer, (rule, options) in rules.items():
            got, other = agreement.ours(model, rule)[0], agreement.theirs(model, peer, options)
            traced = {k for k in got if k not in ("wo", "wr", "ur")}
            assert max(agreement.error(got[k], other[k]) for k in traced) < 1e-12, peer
            assert (
                max(agreement.error(agreement.ours(model, etrax.d_rtrl(fan_out=0))[0][k], other[k]) for k in traced)
                > 1e-3
            )
