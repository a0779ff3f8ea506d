"""What is made of the rows: bars, tables, plots, the comparison with a stored run."""

import json

import pytest
from benchmarks.harness import Case
from benchmarks.machine import Machine
from benchmarks.rivals import Rival
from benchmarks.run import main
from benchmarks.suite import suite

from benchmarks import bars, check, plots, tables

from .sizes import row


def value(rows, text):
    (found,) = [bar for bar in bars.judge(rows) if bar.text == text]
    return found


def test_a_bar_on_time():
    windows = f"windows {bars.GRU}"
    rows = [row(windows, "BPTT", [1.0, 1.0, 1.0]), row(windows, bars.OURS, [0.9, 0.9, 2.0])]
    found = value(rows, "GRU B16 H256 K64: d_rtrl / BPTT")
    assert found.value == pytest.approx(0.9) and found.met is True
    rows[1] = row(windows, bars.OURS, [1.1, 0.9, 2.0])
    assert value(rows, "GRU B16 H256 K64: d_rtrl / BPTT").met is False


def test_a_bar_that_was_not_measured():
    assert {bar.met for bar in bars.judge([])} == {None}


def test_a_bar_on_memory():
    rows = [row(bars.ALIF, "BPTT", working=4000), row(bars.ALIF, bars.PP_PROP, working=100)]
    found = value(rows, "ALIF 3×512 B32 T500: pp_prop / BPTT, memory")
    assert found.value == pytest.approx(1 / 40) and found.met


def test_bars_on_growth():
    name = "etrax d_rtrl K=64"
    rows = [
        row(rival=name, seconds=[s], working=w, sweep="T", T=t)
        for t, s, w in ((10, 1.0, 7), (100, 1, 7), (400, 1600, 14))
    ]
    assert value(rows, "d_rtrl: time in T, exponent").value == pytest.approx(2.0)
    assert value(rows, "d_rtrl: memory at T 65,536 against T 128").value == pytest.approx(2.0)


def test_every_bar_names_what_the_suite_runs():
    """A bar on a case or a rival that nobody runs would never be judged."""
    ran = [
        row(c.name, r.name, steps=c.steps, sweep=c.sweep, **c.sizes)._replace(resident=1)
        for c in suite()
        for r in c.rivals
    ]  # fmt: skip
    missing = [bar.text for bar in bars.judge(ran) if bar.value is None]
    assert all("braintrace" in text or "windowed" in text for text in missing)


def test_suites_have_distinct_cases():
    for size in ("quick", "default", "full"):
        names = [c.name for c in suite(size)]
        assert len(set(names)) == len(names)
        assert all(len({r.name for r in c.rivals}) == len(c.rivals) for c in suite(size))


def test_tables_show_every_row():
    rows = [
        row(),
        row(rival="etrax d_rtrl K=4", seconds=[0.5]),
        row(rival="braintrace D_RTRL", seconds=[], error="E: no"),
    ]
    text = "\n".join(tables.case_lines(rows))
    assert all(r.rival in text for r in rows)
    assert "0.50–0.50" in text and "E: no" in text
    lines = tables.bar_lines([bars.Found("a", 1.0, 0.5), bars.Found("b", 1.0, 2.0), bars.Found("c", 1.0, None)])
    assert [line.split("   ")[-1].strip() for line in lines[1:]] == ["met", "NOT MET", "not measured"]


def test_rows_survive_storing(tmp_path):
    rows = [row(seconds=[1.23456789], T=3), row(rival="etrax d_rtrl K=4")]
    tables.save(tmp_path / "a" / "b.json", Machine(1.0, 2.0, {"jax": "x"}), rows, bars.judge(rows))
    assert tables.load(tmp_path / "a" / "b.json") == [rows[0]._replace(seconds=[1.235]), rows[1]]


def test_lines_of_a_sweep():
    rows = [row(sweep="K", K=1), *(row(rival=f"etrax d_rtrl K={k}", seconds=[k], sweep="K") for k in (4, 1))]
    found = plots.lines(rows, "K")
    assert [x for x, _, _ in found["d_rtrl"]] == [1, 4]
    assert [(x, y) for x, y, _ in found["BPTT"]] == [(1, 100.0), (4, 100.0)]
    rows = [row(sweep="T", T=t) for t in (20, 10)]
    assert [x for x, _, _ in plots.lines(rows, "T")["BPTT"]] == [10, 20]


def test_plots_are_drawn(tmp_path):
    rows = [
        row(rival=r, sweep=s, **{s: n})
        for s in ("T", "H", "B", "synapses")
        for n in (1, 2)
        for r in ("BPTT", "etrax d_rtrl K=4")
    ]
    rows += [row(sweep="K"), *(row(rival=f"etrax pp_prop K={k}", sweep="K") for k in (1, 4))]
    plots.draw(rows, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_check_sees_a_loss_of_more_than_a_fifth():
    before = [row(), row(rival="etrax d_rtrl K=4", seconds=[1.0], working=50)]
    within = [row(), row(rival="etrax d_rtrl K=4", seconds=[1.15], working=55)]
    slower = [row(), row(rival="etrax d_rtrl K=4", seconds=[1.3], working=50)]
    larger = [row(), row(rival="etrax d_rtrl K=4", seconds=[1.0], working=70)]
    assert check.losses(before, within) == []
    assert [loss.what for loss in check.losses(before, slower)] == ["gru, etrax d_rtrl K=4, time"]
    assert [loss.what for loss in check.losses(before, larger)] == ["gru, etrax d_rtrl K=4, memory"]
    assert "+30%" in str(check.losses(before, slower)[0])


def test_check_measures_again_before_it_complains():
    before, slow = [row(), row(rival="etrax d_rtrl K=4")], [row(), row(rival="etrax d_rtrl K=4", seconds=[2.0])]
    case = Case("gru", None, 10, (), {})
    runs = iter([slow, before])
    assert check.confirmed(case, before, lambda c: next(runs))[1] == []
    assert len(check.confirmed(case, before, lambda c: slow)[1]) == 1


def test_check_runs_without_peers():
    rivals = tuple(Rival(name, None) for name in ("BPTT", "BPTT checkpointed", "etrax d_rtrl K=4", "braintrace D_RTRL"))
    cases = [Case("a", None, 1, rivals, {}), Case("b", None, 1, rivals, {}, "T"), Case("c", None, 1, rivals, {})]
    (kept,) = check.without_peers(cases, {"a", "b"})
    assert [r.name for r in kept.rivals] == ["BPTT", "etrax d_rtrl K=4"]


@pytest.mark.slow
def test_a_run_writes_and_is_checked(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.peer.present", lambda: False)
    out = ["--quick", "--out", str(tmp_path)]
    assert main(["gru B4", "--store", *out]) == main(["grow K", "--store", *out]) == 0
    stored = json.loads((tmp_path / "quick.json").read_text(encoding="utf-8"))
    assert {r["case"] for r in stored["rows"]} == {"gru B4 H16 T64", "grow K B4 H16 T64"}
    assert (tmp_path / "quick.png").exists()
    for r in stored["rows"]:
        r["seconds"] = [s / (1e6 if r["rival"].startswith("etrax") else 1) for s in r["seconds"]]
    (tmp_path / "quick.json").write_text(json.dumps(stored), encoding="utf-8")
    assert main(["gru B4", "--check", *out]) == 1
    assert "lost more than a fifth" in capsys.readouterr().out
