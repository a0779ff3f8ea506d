"""The command line, as a user types it."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import brainstate
import jax.numpy as jnp
import optax
import pytest

import etrax
from etrax._install import install_command
from etrax.cli import main
from etrax.cli._config import _schedule, _updates_of_epoch, read_config
from etrax.cli._demo import run as run_demo

FILE = """
import jax.numpy as jnp

def make():
    def step(p, h, x):
        h = 0.9 * h + x @ p["w"] + jnp.tanh(h) @ p["r"]
        return h, h @ p["o"]
    params = {"w": jnp.full((3, 4), 0.1), "r": jnp.full((4, 4), 0.1), "o": jnp.ones((4, 2))}
    return step, params, jnp.zeros((2, 4)), jnp.ones((2, 3))

def cell():
    from flax import nnx
    class Leaky(nnx.Module):
        def __init__(self):
            self.w, self.v = nnx.Param(jnp.ones((3, 4))), nnx.Variable(jnp.zeros((2, 4)))
        def __call__(self, x):
            self.v[...] = 0.9 * self.v[...] + x @ self.w[...]
            return self.v[...]
    return Leaky(), jnp.ones((2, 3))

def by_hand():
    import equinox, jax
    return equinox.nn.GRUCell(3, 4, key=jax.random.key(0)), jnp.zeros(4), jnp.ones(3)

def learner():
    import etrax
    step, params, hidden, x = make()
    return etrax.compile(step, "rtrl", x, params=params, hidden=hidden)

def five():
    return 1, 2, 3, 4, 5

def breaks():
    raise KeyError("weights")

number = 3
"""


COPY = """
[data]
task = "copy"
size = 20
key = 0
length = 1
delay = 2
[rule]
name = "tbptt"
[training]
batch = 4
window = 2
epochs = 1
"""
CONFIGS = {
    "run": COPY + '[model]\ncell = "MiniGRU"\nneurons = 4\n',
    "mesh": COPY + '[model]\ncell = "MiniGRU"\nneurons = 4\n[mesh]\nshape = [2]\naxes = ["data"]\nshard = "batch"',
    "devices": COPY + '[mesh]\nshape = [4096]\naxes = ["data"]\nshard = "batch"',
    "axes": COPY + '[mesh]\nshape = [2, 2]\naxes = ["data"]\nshard = "batch"',
    "broken": "[data",
    "section": COPY + "[nodel]",
    "code": '[data]\ntask = "__import__"',
    "option": '[data]\ntask = "copy"\nlenght = 3',
    "cell": COPY + '[model]\ncell = "os.system"',
}


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "some_models.py").write_text(FILE)
    for name, text in CONFIGS.items():
        (tmp_path / f"{name}.toml").write_text(text)
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


def test_cells_whose_hidden_state_is_an_argument_and_learners(model, capsys):
    assert main(["check", "some_models.py:by_hand", "--steps", "7"]) == 0
    assert "every gradient is what its verdict says" in capsys.readouterr().out
    assert main(["explain", "some_models.py:learner"]) == 0
    assert "report for rtrl()" in capsys.readouterr().out
    assert main(["check", "some_models.py:learner", "--rule", "d_rtrl", "--steps", "7"]) == 0
    assert "approximate" in capsys.readouterr().out


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
        (["train"], "takes a config"),
        (["train", "none.toml"], "cannot be read"),
        (["train", "broken.toml"], "is not valid TOML"),
        (["train", "section.toml"], "there is no section `nodel`; there are data, mesh, model"),
        (["train", "code.toml"], "`task` of [data] is '__import__'; expected one of copy"),
        (["train", "devices.toml"], "[mesh] of shape [4096] needs 4096 devices; there are"),
        (["train", "axes.toml"], "[mesh] has shape [2, 2] and axes ['data']; expected"),
        (["train", "option.toml"], "[data] does not fit copy"),
        (["train", "cell.toml"], "`cell` of [model] is 'os.system'; expected one of GRUCell"),
        (["explain", "some_models"], "write MODULE:FACTORY"),
        (["explain", "missing.py:make"], "there is no file"),
        (["explain", "no_such_module:make"], "there is no module"),
        (["explain", "some_models:mak"], "it has make"),
        (["explain", "some_models:number"], "has no function 'number'"),
        (["explain", "some_models:five"], "returned 5 things"),
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


SECTIONS = {
    "data": 'task = "copy"',
    "optimizer": "",
    "model": 'cell = "MiniGRU"',
    "training": "",
    "rule": "",
    "mesh": "",
}
NONSENSE = [
    *(("optimizer", "learning_rate", v, "`learning_rate` of [optimizer] is") for v in
      ("nan", "inf", "-1", "0", "9" * 400, '"fast"', "true", "[1]", "1e400", "{a = 1}", "2024-01-01")),
    ("optimizer", "b1", "2", "`b1` of [optimizer] is 2; expected a number from 0 up to 1"),
    ("optimizer", "eps", "nan", "`eps` of [optimizer] is nan"), ("optimizer", "name", "[]", "`name` of [optimizer]"),
    *(("optimizer", "mu_dtype", v, "`mu_dtype` of [optimizer] is") for v in ('"nope"', r'"\u0000"', "true", "[]")),
    *(("optimizer", "nesterov", v, "`nesterov` of [optimizer] is") for v in ('"x"', "1", "nan", '""', "[]")),
    *(("optimizer", k, v, f"`{k}` of [optimizer] is") for k in ("b1", "b2") for v in ("true", '"x"', "0.999999999")),
    *(("optimizer", "eps", v, "`eps` of [optimizer] is") for v in ("true", '"x"', "1e300")),
    ("optimizer", "learning_rate", "1e-320", "expected a number above zero"),
    *(("model", "neurons", v, "`neurons` is") for v in
      ("1000000000000", "0", "-3", "2.5", '"4"', "true", "9" * 25, "[4]")),
    *(("model", k, v, f"`{k}` of [model] is {float(v)}; expected a finite") for k in ("w_init", "state_init") for v in
      ("nan", "-inf", "1e+308")),
    *(("model", "state_init", v, "[model] does not fit MiniGRU") for v in ('"x"', '""', "[]", "{a = 1}", "2024-01-01")),
    *(("model", "w_init", v, "[model] does not fit MiniGRU") for v in ('"x"', r'"\u001b"')),
    ("model", "neurons", "3000000", "TB, more than half of the memory"),
    *(("training", "seed", v, "`seed` of [training] is") for v in ("9" * 20, "-1", "1.5", '"a"', "4294967296")),
    *(("training", "directory", v, "`directory` of [training] is") for v in ('""', '"  "', "3", "[]")),
    ("training", "directory", '"a\\u0000b"', "`directory` is"),
    ("training", "directory", '"other.toml/run"', "cannot be written to: Not a directory"),
    *(("training", k, v, f"`{k}` of [training] is") for k in ("batch", "window", "epochs")
      for v in ("0", "-1", "1e3", "9" * 20, '"2"')),
    ("training", "batch", "1000000000", "for a batch of 1,000,000,000 takes"),
    *(("data", k, "1000000000", "more than half of the memory here") for k in ("size", "length", "delay", "symbols")),
    *(("data", k, v, f"as `{k}`, got") for k in ("size", "length") for v in ("9" * 20, "-1", '"3"', "1.5")),
    *(("optimizer", "clip", v, "`clip` of [optimizer] is") for v in ("0", "-1", "nan", '"x"')),
    *(("optimizer", "schedule", v, "`schedule` of [optimizer] is") for v in ("3", '"cos"', "true")),
    *(("optimizer", "warmup", v, "`warmup` of [optimizer] is") for v in ("1", "-0.1", "true")),
    *(("training", k, "0", f"`{k}` of [training] is") for k in ("patience", "meter")),
    ("training", "meter", "1000000000", "directions of all parameters take"),
    ("data", "key", "9" * 20, "`copy` needs `key=`"), ("data", "test", "nan", "`test` of [data]"),
    ("data", "test", "true", "`test` of [data] is True"), ("rule", "name", "3", "`name` of [rule] is 3"),
    ("rule", "name", '"\\u202e\\u001b[2J"', r"is '\u202e\x1b[2J'"),
    ("mesh", "shape", '[1, 1]\naxes = ["a", "a"]\nshard = "batch"', "no two alike"),
]  # fmt: skip


@pytest.mark.parametrize(("section", "key", "value", "message"), NONSENSE)
def test_nonsense_in_a_config(model, capsys, tmp_path, section, key, value, message):
    """Every key of every section: words and exit code 2 before anything is allocated or written."""
    given = {"data": {"size": "20", "key": "0", "length": "1"}, "model": {"neurons": "4"}}
    given[section] = {**given.get(section, {}), key: value}
    lines = [
        f"[{n}]\n{text}\n" + "\n".join(f"{k} = {v}" for k, v in given.get(n, {}).items())
        for n, text in SECTIONS.items()
    ]
    (tmp_path / "other.toml").write_text("\n".join(lines))
    assert main(["train", "other.toml"]) == 2
    seen = capsys.readouterr().err
    assert message in seen and "--debug" not in seen and not {"\x1b", "\u202e"} & set(seen)
    assert not (tmp_path / "run").exists() and not (tmp_path / "log.jsonl").exists()


@pytest.mark.parametrize("words", [
    *(["check", "net.py:make", "--seed", v] for v in ("-1", "9" * 20, "1.5", "x")),
    *(["export", "net.py:make", "u", "--learning-rate", v] for v in ("nan", "inf", "0", "-1", "x", "1e400")),
], ids=" ".join)  # fmt: skip
def test_nonsense_on_the_command_line(capsys, words):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2 and words[-2] in (seen := capsys.readouterr().err) and "is no" in seen


@pytest.mark.parametrize("text", [
    "a = " + "[" * 5000, "a = " + "9" * 5000, "[data]\nsize = 1\nsize = 2", "\x00", "a = \"\\ud800\"", "x" * (2 << 20),
])  # fmt: skip
def test_files_that_are_no_configs(model, capsys, tmp_path, text):
    (tmp_path / "bad.toml").write_text(text)
    assert main(["train", "bad.toml"]) == 2
    seen = capsys.readouterr().err
    assert "'bad.toml' is" in seen and "--debug" not in seen and len(seen) < 600
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    assert main(["train", "bad.toml"]) == 2 and "is not valid TOML" in capsys.readouterr().err
    assert main(["train", str(tmp_path)]) == 2 and "cannot be read" in capsys.readouterr().err


def test_a_finished_run_is_not_the_run_of_another_config(model, capsys, tmp_path):
    """A config that was edited after the run had ended: said, and gone on with by a word."""
    assert main(["train", "run.toml"]) == 0
    (tmp_path / "run.toml").write_text(CONFIGS["run"] + "[optimizer]\nlearning_rate = 0.5\n")
    capsys.readouterr()
    assert main(["train", "run.toml"]) == 2
    assert "optimizer: digest" in (seen := capsys.readouterr().err) and "`--accept`" in seen
    assert main(["train", "run.toml", "--accept", "optimiser"]) == 2
    assert "`accept` is" in capsys.readouterr().err
    assert main(["train", "run.toml", "--accept", "optimizer"]) == 0


def test_train_goes_on_where_it_stopped(model, capsys, tmp_path):
    assert main(["train", "run.toml"]) == 0
    (tmp_path / "run.toml").write_text(CONFIGS["run"].replace("epochs = 1", "epochs = 2"))
    assert main(["train", "run.toml"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2] and all("val_accuracy" in line for line in lines)
    assert "epoch 2: loss" in capsys.readouterr().out
    (tmp_path / "run.toml").write_text(CONFIGS["mesh"].replace("epochs = 1", "epochs = 3"))
    assert main(["train", "run.toml"]) == 0  # on two devices from here
    assert "epoch 3: loss" in capsys.readouterr().out


def test_the_example_config_is_whole(capsys, tmp_path):
    assert main(["train", "--example"]) == 0
    (tmp_path / "example.toml").write_text(capsys.readouterr().out)
    config = read_config(str(tmp_path / "example.toml"))
    assert config.data["task"] == "copy" and config.training["epochs"] == 20


@pytest.mark.slow
def test_the_example_config_learns(capsys, tmp_path, monkeypatch):
    """Four classes, of which chance names a quarter."""
    monkeypatch.chdir(tmp_path)
    main(["train", "--example"])
    (tmp_path / "example.toml").write_text(capsys.readouterr().out)
    assert main(["train", "example.toml"]) == 0
    last = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    assert last["val_accuracy"] > 0.9 and last["samples"] == 20 * 1024
    assert last["updates"] == 20 * 32 * 2  # the answer is asked for in two of the windows


def test_patience_clip_and_schedule(model, capsys, tmp_path):
    more = '[optimizer]\nname = "sgd"\nlearning_rate = 0.1\nclip = 1e-30\nschedule = "cosine"\nwarmup = 0.1\n'
    text = CONFIGS["run"].replace("epochs = 1", "epochs = 9\npatience = 2\nmeter = 4") + more
    (tmp_path / "run.toml").write_text(text)
    assert main(["train", "run.toml"]) == 0
    # Gradients so small change nothing, so that no epoch is better than the first.
    out = capsys.readouterr().out
    assert "Result(3 epochs, ended by 'patience'; best epoch 1: loss" in out and ", cosine " in out


def test_a_schedule_ends_with_the_run():
    rate = _schedule(optax, 0.5, "cosine", 0.1, 100)
    assert [round(float(rate(n)), 6) for n in (0, 5, 10, 55, 100)] == [0.0, 0.25, 0.5, 0.25, 0.0]
    assert float(_schedule(optax, 0.5, None, 0.5, 10)(20)) == 0.5
    task = etrax.tasks.copy(0, 20)  # 3 symbols, 10 steps of waiting, 3 answers: the last 3 of 16 steps count
    assert _updates_of_epoch(task, window=5, batch=8) == 3 * 2


def test_bench(model, capsys):
    assert main(["bench", model, "--lengths", "8", "64", "--window", "4"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:3]]
    assert [row[0] for row in rows] == ["8", "64"]


def test_export(model, capsys, tmp_path):
    for loss in ("squares", "cross-entropy"):
        assert main(["export", model, f"{loss}.etrax", "--loss", loss]) == 0
        assert etrax.load(tmp_path / f"{loss}.etrax").manifest["rule"] == "d_rtrl()"


def test_demo_learns(monkeypatch):
    monkeypatch.setattr("etrax.cli._demo.BLOCKS", 3)
    found = run_demo(lambda text: None)
    assert found["d_rtrl"] < 0.9 * found["tbptt"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(capsys, shell):
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert "explain" in out and "--learning-rate" in out


def test_usage(model, capsys):
    for words in (["explian", model], ["check", model, "--steps", "0"], ["check", model, "--window", "x"]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 2
    assert "not a whole number from 1 to" in capsys.readouterr().err


@pytest.mark.parametrize("count", ["99999999999999", str(2**31), "9" * 25, "9" * 5000])
def test_numbers_that_nothing_can_count(model, capsys, count):
    """One sentence of usage, whatever the command and its option."""
    for words in (
        ["check", model, "--steps", count], ["check", model, "--window", count], ["bench", model, "--lengths", count],
        ["rules", model, "--steps", count], ["export", model, "u.etrax", "--window", count],
    ):  # fmt: skip
        with pytest.raises(SystemExit) as stop:
            main(words)
        error = capsys.readouterr().err
        assert stop.value.code == 2 and "to 2147483647" in error and len(error.splitlines()[-1]) < 200
        assert "Traceback" not in error


@pytest.mark.parametrize(
    "words", [["check", "--steps"], ["rules", "--rules", "tbptt", "--steps"], ["bench", "--lengths"]]
)
def test_sequences_that_do_not_fit_into_memory(model, capsys, words):
    command, *options = words
    assert main([command, model, *options, str(2**31 - 1)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("etrax: a sequence of 2,147,483,647 steps of this model takes") and "--steps" in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("place", ["absolute", "up"])
def test_a_run_lies_where_its_config_says(tmp_path, monkeypatch, place):
    """Also outside of the directory in which the command is run, where nothing is then written."""
    here, runs = tmp_path / "here", tmp_path / "data" / "runs"
    here.mkdir()
    monkeypatch.chdir(here)
    name = str(runs) if place == "absolute" else "../data/runs"
    text = CONFIGS["run"].replace("[training]\n", f'[training]\ndirectory = "{name}"\n')
    (here / "run.toml").write_text(text)
    assert main(["train", "run.toml"]) == 0
    assert sorted(p.name for p in here.iterdir()) == ["run.toml"]
    assert sorted(p.name for p in runs.iterdir()) == ["checkpoint", "log.jsonl"]
    assert sorted(p.name for p in runs.parent.iterdir()) == ["runs"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def make(params, hidden, x):\n    return hidden, hidden", "'make' of 'some_models.py' needs arguments"),
        ("def make():\n    pass", "`some_models.py:make` returned nothing"),
    ],
)
def test_a_function_that_is_no_factory(model, capsys, tmp_path, body, said):
    (tmp_path / "some_models.py").write_text(body)
    assert main(["explain", model]) == 2
    assert said in capsys.readouterr().err


def test_a_factory_that_runs_out_of_memory(model, capsys, tmp_path):
    (tmp_path / "large_model.py").write_text("import numpy as np\ndef make():\n    return np.ones((10**9, 10**9))\n")
    assert main(["explain", "large_model.py:make"]) == 2
    assert capsys.readouterr().err.startswith("etrax: there is not enough memory here: Unable to allocate")


def test_doctor(capsys, monkeypatch):
    monkeypatch.setitem(main.__globals__["PACKAGES"], "no-such-package", "nothing")
    monkeypatch.setitem(main.__globals__["OLDEST"], "brainstate", (99, 1))
    monkeypatch.setitem(main.__globals__["EMPTY_SINCE"], "equinox", (0, 2))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"etrax {etrax.__version__}" in out and f"no-such-package: missing: {install_command('nothing')}" in out
    assert f"and 99.1 is needed: {install_command('brainstate')}" in out
    assert f"which holds nothing since 0.2: {install_command('equinox')}" in out
    assert all(f"\n{package}: " in out for package in ("optax", "numba", "rich", "braintools"))
    assert "arithmetic: right" in out and "\ndevice: cpu (0)\n" in out


def test_doctor_looks_for_models_where_they_are():
    """A package `brainpy.state` of version 0.2 is empty: from Python 3.12 on its models are those of brainpy."""
    packages = main.__globals__["PACKAGES"]
    there = {"brainpy.state"} if sys.version_info < (3, 12) else {"brainpy", "brainspikes"}
    assert {name for name in packages if name.startswith("brain")} == there | {"brainstate", "braintools"}
    assert main.__globals__["EMPTY_SINCE"]["brainpy.state"] == (0, 2)
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = [r for r in project["optional-dependencies"]["brainpy"] if r.startswith("brain")]
    early, late = ([r for r in extra if f"python_version {when} '3.12'" in r] for when in ("<", ">="))
    assert [re.split(r"[<>=]", r)[0] for r in early] == ["brainpy.state"] and "<0.2;" in early[0]
    assert [re.split(r"[<>=]", r)[0] for r in late] == ["brainpy", "brainspikes"]


def test_as_a_module():
    done = subprocess.run([sys.executable, "-m", "etrax", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"etrax {etrax.__version__}"


def test_who_reads_may_stop(model):
    """`etrax explain ... | head -1` says nothing of broken pipes."""
    program = [sys.executable, "-u", "-m", "etrax", "explain", model, "--full"]
    run = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    run.stdout.close()
    said = run.stderr.read()
    run.stderr.close()
    assert run.wait() == 141 and not said


def test_rules_of_a_module():
    """With None for parameters and states those of the module, or of the learner, count."""
    cell = brainstate.nn.GRUCell(3, 4)
    brainstate.nn.init_all_states(cell, 2)
    online, xs, loss = etrax.Stateful(cell, "d_rtrl", jnp.ones((2, 3))), jnp.ones((6, 2, 3)), lambda o, y: (o**2).mean()
    tables = [etrax.compare_rules(m, loss, None, None, xs, rules=["tbptt"], window=2) for m in (cell, online)]
    assert tables[0]["tbptt"].cosine == pytest.approx(tables[1]["tbptt"].cosine)
    assert etrax.testing.compare(online.learner, loss, None, None, xs, window=2)["Wh.weight.bias"].cosine < 1


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


def test_alone_it_says_how_to_begin(capsys):
    assert main([]) == 2
    assert "etrax explain model.py:make" in capsys.readouterr().err
