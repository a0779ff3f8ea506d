"""A failing model becomes a short one that fails in the same way."""

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.cases import Case
from fuzz.claims import Failure
from fuzz.grammar import draw_model
from fuzz.report import script
from fuzz.run import Totals, write_found
from fuzz.shrink import cleaned, rename, shrink, simpler_cases, smaller_sizes
from fuzz.spec import Leaf, Model, Statement, build, runs, size, statements

SRC = Path(__file__).resolve().parents[2]


def forms(model):
    return [s.form for s in statements(model.body)]


@pytest.mark.parametrize("form", ["matmul", "tanh", "cond", "scan_rows"])
def test_what_matters_is_kept(form):
    seed = next(s for s in range(500) if form in forms(draw_model(s)) and len(forms(draw_model(s))) > 8)
    model = draw_model(seed)

    def fails(candidate, case):
        return form in forms(candidate) and runs(build(candidate))

    short, case = shrink(model, Case("d_rtrl", 2, "mean", "steps", "pieces"), fails, 30)
    assert form in forms(short) and runs(build(short))
    assert size(short) < size(model) and len(forms(short)) <= 6
    assert case == Case("d_rtrl", 1)


def test_code_that_nothing_reads_can_be_what_fails():
    body = (
        Statement("v1", "tanh", ("p.w",)),
        Statement("v2", "matmul", ("x0", "p.w")),
        Statement("v3", "leaky", ("s.h", "v2")),
    )
    model = Model({"w": Leaf((2, 3))}, {"h": Leaf((3,))}, (Leaf((2,)),), {}, body, {"h": "v3"}, ("v3",))
    assert "tanh" not in forms(cleaned(model))
    short, _ = shrink(model, Case("d_rtrl", 1), lambda m, c: "tanh" in forms(m) and runs(build(m)), 20)
    assert forms(short) == ["tanh"]


def test_simpler_cases_change_one_thing():
    case = Case("rtrl", 2, "mean", "steps")
    assert set(simpler_cases(case)) == {
        case._replace(mask=""),
        case._replace(reduction="sum"),
        case._replace(window=1),
    }


def test_names_are_replaced_everywhere():
    model = draw_model(3)
    first = model.body[0].out
    assert f"'{first}'" not in str(rename(model._replace(body=model.body[1:]), {first: "x0"}))


def test_sizes_shrink_together():
    model = Model(
        {"w": Leaf((4, 3))}, {"h": Leaf((3,))}, (Leaf((4,)),), {},
        (Statement("v1", "matmul", ("x0", "p.w")), Statement("v2", "leaky", ("s.h", "v1"))), {"h": "v2"}, ("v2",),
    )  # fmt: skip
    found = [m for m in smaller_sizes(model) if runs(build(m))]
    assert {m.params["w"].shape for m in found} >= {(1, 3), (4, 1), (4, 2)}


def test_a_reproducer_runs_alone(tmp_path):
    model, case = draw_model(3020), Case("d_rtrl", 2, "mean", "steps")
    failure = Failure(case, "exact is exact", "params.w: relative error 1")
    totals = Totals(failures=[(7, failure, script(model, case, failure, 7)), (8, failure, "")])
    (path,) = write_found(totals, tmp_path)
    assert "exact is exact" in path.read_text(encoding="utf-8") and "failed 2 times" in str(totals)
    env = {"PYTHONPATH": str(SRC / "src"), "JAX_PLATFORMS": "cpu", "PATH": ""}
    found = subprocess.run([sys.executable, "-W", "ignore", str(path)], capture_output=True, text=True, env=env)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("loss") and "relative error" in found.stdout
