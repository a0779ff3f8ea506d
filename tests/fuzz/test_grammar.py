"""Models are the same for the same seed, they run, and every form is drawn."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from fuzz.cases import EXTRAS, RULES, Case, draw_cases
from fuzz.coverage import cells, placed
from fuzz.forms import FORMS
from fuzz.grammar import draw_model
from fuzz.prelude import PRELUDE
from fuzz.spec import STARTS, Leaf, Model, Statement, build, mutable, runs, source, statements, step_source


@pytest.mark.parametrize("seed", range(40))
def test_models_run(seed):
    assert runs(build(draw_model(seed)))


def test_same_seed_same_model():
    code = "from fuzz.grammar import draw_model; from fuzz.spec import source; print(source(draw_model(11)))"
    env = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert found.stdout.strip() == source(draw_model(11)).strip()


def test_every_form_is_drawn():
    drawn = {s.form for seed in range(3000) for s in statements(draw_model(seed).body)}
    assert set(FORMS) - drawn == set()


def test_every_start_is_drawn_and_weights_are_shared():
    models = [draw_model(seed) for seed in range(400)]
    leaves = [leaf for m in models for leaf in (*m.hidden.values(), *m.consts.values())]
    assert {leaf.start for leaf in leaves} == set(STARTS)
    read = [[name for s in statements(m.body) for name in s.args if name.startswith("p.")] for m in models]
    assert any(len(names) > len(set(names)) for names in read)


def test_every_rule_and_way_is_drawn():
    cases = [case for seed in range(1000) for case in draw_cases(seed, batched=True, mutable=seed % 10 == 0)]
    assert {case.rule for case in cases} == set(RULES)
    assert {case.mask for case in cases} == {"", "steps", "samples"}
    assert {case.extra for case in cases} == set(EXTRAS)
    assert {(case.reduction, case.whole) for case in cases} == {(r, w) for r in ("sum", "mean") for w in (True, False)}


def test_nests_are_three_deep():
    def depth(body):
        return max([1 + depth(b.body) for s in body for b in s.blocks], default=0)

    depths = [depth(draw_model(seed).body) for seed in range(1500)]
    assert max(depths) == 3 and min(depths) == 0


def test_text_is_the_model():
    body = (Statement("v1", "matmul", ("x0", "p.w")), Statement("v2", "leaky", ("s.h", "v1")))
    model = Model({"w": Leaf((2, 3))}, {"h": Leaf((3,))}, (Leaf((2,)),), {}, body, {"h": "v2"}, ("v2",))
    want = 'def step(p, s, x0):\n    v1 = x0 @ p["w"]\n    v2 = 0.9 * s["h"] + v1\n    return {"h": v2}, v2'
    assert step_source(model) == want
    assert list(placed(body)) == [("matmul", "flat")]
    assert ("matmul", "d_rtrl", "flat") in cells(model, [Case("d_rtrl", 1)])
    assert jax.eval_shape(build(model).step, *build(model)[3:5], build(model).xs[0][0])[1].shape == (3,)


def test_values_at_the_start():
    starts = {"zeros": 0.0, "ones": 1.0, "lowest": -np.inf}
    hidden = {name: Leaf((3,), start=name) for name in starts}
    body = (Statement("v1", "shift", ("s.ones", "c.k")),)
    model = Model({}, hidden, (), {"k": Leaf((3,), start="numpy")}, body, {n: f"s.{n}" for n in hidden}, ("v1",))
    built, other = build(model), build(model, numbers=1)
    assert (
        mutable(model) and built.consts["k"].flags.writeable and not np.allclose(built.consts["k"], other.consts["k"])
    )
    for name, value in starts.items():
        np.testing.assert_array_equal(built.hidden[name], np.full(3, value))


def test_preludes_are_python():
    for name, text in PRELUDE.items():
        space = {}
        exec("import jax, jax.numpy as jnp, numpy as np\nfrom jax import lax\n" + text, space)
        assert name in space
