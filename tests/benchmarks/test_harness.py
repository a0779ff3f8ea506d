"""The harness: turns, ratios, what failed; structure only, never a time."""

import jax.numpy as jnp
import pytest
from benchmarks.harness import Case, measure, ratios
from benchmarks.machine import Machine, measure_machine
from benchmarks.rivals import Rival, bptt, ours

from .sizes import SMALL, row

MACHINE = Machine(1e9, 1e9, {})


def broken(workload, inputs, targets):
    raise ValueError("no such op\nand more")


def test_ratio_is_per_step_and_by_turn():
    a, b = row(seconds=[2.0, 3.0], steps=10), row(seconds=[1.0, 1.0], steps=20)
    assert ratios(a, b) == pytest.approx([4.0, 6.0])
    assert a.per_step == pytest.approx(0.25)


def test_rivals_run_in_turns():
    rivals = (bptt(), ours("d_rtrl", 2), ours("pp_prop", 2, 4), Rival("braintrace D_RTRL", broken))
    rows = measure(Case("gru", SMALL["gru"], 8, rivals, {"B": 2}), MACHINE, most=2)
    assert [r.rival for r in rows] == [r.name for r in rivals]
    assert [len(r.seconds) for r in rows] == [2, 2, 2, 0]
    assert [r.steps for r in rows] == [8, 8, 4, 8]
    assert rows[0].cosine == pytest.approx(1.0)
    assert all(0.9 < r.cosine < 1 for r in rows[1:3]), "against BPTT over as many steps"
    assert rows[3].error == "ValueError: no such op"
    assert all(r.working > 0 and r.matmul > 0 for r in rows[:3])
    assert rows[0].bandwidth == 0 < rows[1].bandwidth


def test_a_failure_of_ours_is_not_hidden():
    with pytest.raises(ValueError, match="no such op"):
        measure(Case("gru", SMALL["gru"], 8, (Rival("etrax d_rtrl K=2", broken),), {}), MACHINE, 1)


def test_memory_of_bptt_grows_with_time_and_ours_does_not():
    found = {}
    for steps in (32, 256):
        case = Case("gru", SMALL["gru"], steps, (bptt(), ours("d_rtrl", 8)), {})
        found[steps] = {r.rival: r.working for r in measure(case, MACHINE, 1)}
    assert found[256]["BPTT"] > 4 * found[32]["BPTT"]
    assert found[256]["etrax d_rtrl K=8"] == pytest.approx(found[32]["etrax d_rtrl K=8"], rel=0.05)


def test_machine_has_peaks():
    machine = measure_machine(64, 1 << 12, times=1)
    assert machine.flops > 0 and machine.bandwidth > 0
    assert machine.about["jax"]
    assert jnp.zeros(1).dtype == jnp.float64, "the measurement leaves the precision as it is"
