"""The whole demo on a tiny data set: broken off, gone on with, finished."""

import pytest

from demo import __main__ as program
from etrax import tasks


@pytest.mark.slow
def test_a_broken_off_run_goes_on(digits, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "load", lambda kind, samples: digits)
    fit, out = program.fit, tmp_path / "out"
    arguments = ["--epochs", "2", "--neurons", "4", "--out", str(out)]

    def stops_at_bptt(one, *rest):
        if one.is_bptt:
            raise KeyboardInterrupt
        return fit(one, *rest)

    monkeypatch.setattr(program, "fit", stops_at_bptt)
    assert program.main(arguments) == 130
    said = capsys.readouterr()
    assert said.out.count("\nepoch ") == 2 and "again: it continues from the last finished epoch" in said.err
    assert not (out / "report.html").exists()

    monkeypatch.setattr(program, "fit", fit)
    assert program.main(arguments) == 0
    said = capsys.readouterr().out
    assert said.count("\nepoch ") == 3 * 2 and said.count("finished before") == 1  # of four runs
    names = [line.split()[0] for line in said.partition("method ")[2].splitlines()[1:5]]
    assert names == ["d_rtrl", "pp_prop", "tbptt", "BPTT"]
    assert str(out / "report.html") in said
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Tiny digits, learned online" in page and page.count("<tr class=") >= 4
    assert not list((out / "checkpoints").iterdir())  # the next run begins anew


def test_without_data_it_says_what_to_install(monkeypatch, capsys):
    def absent(*_):
        raise tasks.MissingDataError("`small_digits` asks for scikit-learn.")

    monkeypatch.setattr(tasks, "small_digits", absent)
    assert program.main(["--data", "images"]) == 1
    assert capsys.readouterr().err == "`small_digits` asks for scikit-learn.\n"


@pytest.mark.parametrize("bad", ["0", "-1", "many"])
def test_counts_are_checked(bad, capsys):
    with pytest.raises(SystemExit):
        program.main(["--epochs", bad])
    assert "is not a whole number of at least 1" in capsys.readouterr().err
