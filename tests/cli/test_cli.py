"""The command line, as a user types it."""

import subprocess
import sys

import jax.numpy as jnp
import pytest

import etrax
from etrax.cli import main

FILE = """
import jax.numpy as jnp

def make():
    def step(p, h, x):
        h = 0.9 * h + x @ p["w"] + jnp.tanh(h) @ p["r"]
        return h, h @ p["o"]
    params = {"w": jnp.full((3, 4), 0.1), "r": jnp.full((4, 4), 0.1), "o": jnp.ones((4, 2))}
    return step, params, jnp.zeros((2, 4)), jnp.ones((2, 3))

def three():
    return 1, 2, 3

def cell():
    from flax import nnx
    class Leaky(nnx.Module):
        def __init__(self):
            self.w, self.v = nnx.Param(jnp.ones((3, 4))), nnx.Variable(jnp.zeros((2, 4)))
        def __call__(self, x):
            self.v[...] = 0.9 * self.v[...] + x @ self.w[...]
            return self.v[...]
    return Leaky(), jnp.ones((2, 3))

def breaks():
    raise KeyError("weights")

number = 3
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "some_models.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "some_models.py:make"
    sys.modules.pop("some_models", None)


def test_explain(model, capsys, tmp_path):
    assert main(["explain", model, "--html", "report.html"]) == 0
    out = capsys.readouterr().out
    assert "APPROXIMATE" in out and "some_models.py:6" in out
    assert "some_models.py:6" in (tmp_path / "report.html").read_text()
    assert main(["explain", "some_models:cell", "--rule", "rtrl"]) == 0
    assert "1 exact" in capsys.readouterr().out


def test_check(model, capsys, monkeypatch):
    assert main(["check", model, "--window", "2", "--steps", "9"]) == 0
    assert "every gradient is what its verdict says (9 steps" in capsys.readouterr().out
    # A verdict that promises too much is found.
    monkeypatch.setattr("etrax.testing._compare._distance", lambda got, want: (0.5, 0.7))
    assert main(["check", model]) == 1
    assert "should equal BPTT's" in capsys.readouterr().err


def test_rules(model, capsys, tmp_path):
    assert main(["rules", model, "--rules", "tbptt", "rtrl", "ottt", "--html", "rules.html"]) == 0
    out = capsys.readouterr().out
    assert "refused: the rule 'ottt' has no default for decay" in out
    (row,) = [line for line in out.splitlines() if line.startswith("rtrl()")]
    assert "1.0000" in row and "3 exact" in row
    assert "rtrl()" in (tmp_path / "rules.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "some_models"], "write MODULE:FACTORY"),
        (["explain", "missing.py:make"], "there is no file"),
        (["explain", "no_such_module:make"], "there is no module"),
        (["explain", "some_models:mak"], "it has make"),
        (["explain", "some_models:number"], "has no function 'number'"),
        (["explain", "some_models:three"], "returned 3 things"),
        (["explain", "some_models:breaks"], "KeyError: 'weights'\nRun it again with --debug"),
        (["explain", "some_models:make", "--rule", "rtlr"], "there is no rule 'rtlr'"),
        (["rules", "some_models:make", "--rules", "rtlr"], "there is no rule 'rtlr'"),
    ],
)
def test_mistakes(model, capsys, words, message):
    assert main(words) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err
    assert main([*words, "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_usage(model, capsys):
    for words in ([], ["explian", model], ["check", model, "--steps", "0"], ["check", model, "--window", "x"]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 2
    assert "no whole number of at least 1" in capsys.readouterr().err


def test_doctor(capsys, monkeypatch):
    monkeypatch.setitem(main.__globals__["PACKAGES"], "nothing", "no-such-package")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"etrax {etrax.__version__}" in out and 'no-such-package: missing: pip install "etrax[nothing]"' in out


def test_as_a_module():
    done = subprocess.run([sys.executable, "-m", "etrax", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"etrax {etrax.__version__}"


def test_table_of_rules():
    """The table itself: figures of a model whose answers are known."""
    step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    w, h, xs = jnp.ones((3, 4)), jnp.zeros(4), jnp.ones((20, 3))
    table = etrax.compare_rules(step, lambda o, y: (o**2).mean(), w, h, xs, rules=["d_rtrl", etrax.tbptt()], window=4)
    assert table["d_rtrl"].cosine == pytest.approx(1) and table["tbptt"].cosine < 1
    assert table["tbptt"].trace == 0 and table["tbptt()"].verdicts == (("truncated", 1),)
    assert all(row.time > 0 for row in table.rows)
    with pytest.raises(etrax.ArgumentError, match="there is no rule 'x' here"):
        table["x"]
