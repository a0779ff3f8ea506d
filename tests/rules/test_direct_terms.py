"""The direct term of credit as published: of which ops the step shows that it is zero, and that nothing is lost."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz.evaluate import Evaluator
from tests.zoo import ZOO

import etrax
from etrax.compiler.ir import leaves_with_paths
from etrax.runtime import carried_relations, plan_of, plan_probes, reduced_view
from etrax.runtime.traces import accounted_by_states

B, I, H, T = 2, 3, 4, 3
RNG = np.random.RandomState(0)


def normal(*shape):
    return jnp.asarray(0.6 * RNG.standard_normal(shape))


def gated(p, h, x, read):
    z, c = jax.nn.sigmoid(x @ p["gate"] + p["b"]), x @ p["w"]
    new = (1 - z) * h + z * c
    return new, read(h, c, new) @ p["out"]


def recurrent(p, h, x):
    h = jnp.tanh(x @ p["w"] + h @ p["r"]) + 0.5 * h
    return h, h @ p["out"]


def through_an_op(p, h, x):
    """`w` acts on the state by itself and through `r`: F has the first way alone."""
    y = x @ p["w"]
    h = 0.5 * h + y + jnp.tanh(y) @ p["r"]
    return h, h @ p["out"]


def made_of_another(p, s, x):
    g = 0.8 * s["g"] + x @ p["w"]
    v = 0.9 * s["v"] + 0.5 * g
    return {"g": g, "v": v}, v @ p["out"]


def two_groups(p, s, x):
    """`w` acts on two groups, of which one shows the other's new state: its parts do not add up to the loss in y."""
    y = x @ p["w"]
    low = 0.8 * s["low"] + y
    top = 0.5 * s["top"] + y + jnp.tanh(low) @ p["r"]
    return {"low": low, "top": top}, top @ p["out"]


def stacked(p, s, x):
    low = 0.8 * s["low"] + x @ p["w"]
    top = jnp.tanh(0.5 * s["top"] + low @ p["r"])
    return {"low": low, "top": top}, top @ p["out"]


def looped(p, h, x):
    """Iterations of one op: the second reads what the first gave, which F leaves out."""

    def again(y, _):
        y = jnp.tanh(y @ p["r"] + x[:, :1])
        return y, y

    y, ys = jax.lax.scan(again, 0.1 * x @ p["w"], None, 2)
    h = 0.5 * h + ys.sum(0) + y
    return h, h @ p["out"]


@jax.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.01, 0.01),))


def clipping(p, h, x):
    h = 0.9 * h + clipped(x @ p["w"])
    return h, h @ p["out"]


PARAMS = {"w": normal(I, H), "gate": normal(I, H), "b": normal(H), "r": normal(H, H), "out": normal(H, 2)}
ONE = jnp.zeros((B, H))
TWO = {"low": ONE, "top": ONE}
# Step, states, and the parameters that have no direct term.
MODELS = {
    "reads the new state": (partial(gated, read=lambda h, c, new: new), ONE, {"w", "gate", "b"}),
    "reads the old state too": (partial(gated, read=lambda h, c, new: new + h), ONE, {"w", "gate", "b"}),
    "reads an op": (partial(gated, read=lambda h, c, new: new + c), ONE, {"gate", "b"}),
    "a recurrent weight": (recurrent, ONE, {"w", "r"}),
    "an op on the way": (through_an_op, ONE, {"r"}),
    "a state made of another new one": (made_of_another, {"g": ONE, "v": ONE}, {"w"}),
    "two groups": (two_groups, TWO, {"r"}),
    "under another layer": (stacked, TWO, {"w", "r"}),
    "an op inside a loop": (looped, ONE, set()),
    "a derivative that is not linear": (clipping, ONE, set()),
}
RULES = {
    "d_rtrl": etrax.d_rtrl(credit="state"),
    "snap(1)": etrax.snap(1, credit="state"),
    "snap(2)": etrax.snap(2, credit="state"),
    "pp_prop": etrax.pp_prop(0.8, credit="state"),
    "rflo": etrax.rflo(0.7, credit="state"),
    "ottt": etrax.ottt(0.7, credit="state"),
    "e_prop(0.5)": etrax.e_prop(0.5),
}


def loss(output, target):
    return jnp.sum((output - target) ** 2)


@pytest.mark.parametrize("name", MODELS)
def test_which_ops(name):
    step, hidden, expected = MODELS[name]
    facts = etrax.compile(step, "d_rtrl", normal(B, I), params=PARAMS, hidden=hidden).program.facts
    plan = plan_of(plan_probes(reduced_view(facts), carried_relations(facts)), None)
    names = {
        n.removeprefix("params.").strip("'[]") for j in accounted_by_states(plan, facts) for n in facts.params_of(j)
    }
    assert names == expected


def assert_own_gradient(step, rule, params, hidden, inputs, targets, loss, tol=1e-12):
    """The credit of the first step, before which nothing has a trace, is the gradient of its loss, for any rule."""
    first, target = (jax.tree.map(lambda a: a[0], part) for part in (inputs, targets))
    args = first if isinstance(first, tuple) else (first,)
    wanted = Evaluator()(jax.grad(lambda p: loss(step(p, hidden, *args)[1], target)), params)
    learner = etrax.compile(step, rule, *args, params=params, hidden=hidden)
    one = jax.tree.map(lambda a: a[:1], (inputs, targets))
    (_, grads), _ = Evaluator()(learner.value_and_grad(loss, window=1), params, learner.init(), *one)
    got = dict(leaves_with_paths(grads))
    for path, want in leaves_with_paths(wanted):
        scale = max(float(np.abs(want).max(initial=0)), 1e-6)
        np.testing.assert_allclose(got[path], want, rtol=0, atol=tol * scale, err_msg=str((path, rule)))


# Of data inside a loop, these remember the mean over the iterations.
AVERAGING = ("pp_prop", "ottt")
AVERAGES = {(n, rule) for n in MODELS if "loop" in n for rule in AVERAGING}


@pytest.mark.parametrize(
    ("name", "rule"), [(n, r) for n in MODELS for r in RULES if "linear" not in n and (n, r) not in AVERAGES]
)
def test_first_step(name, rule):
    step, hidden, _ = MODELS[name]
    assert_own_gradient(step, RULES[rule], PARAMS, hidden, normal(T, B, I), normal(T, B, 2), loss)


# A derivative that is not linear may be another one for the loss in a state than for its share in a trace.
PUBLISHED = [n for n in ZOO if n != "size/two_hundred" and ZOO[n].options.get("linear", True)]


def has_loops(model, example):
    """Whether a weight op stands inside a loop of the step."""
    learner = etrax.compile(model.step, "tbptt", *example, params=model.params, hidden=model.hidden)
    return any(site.loops for site in learner.program.facts.sites)


@pytest.mark.fast_seconds(6)
@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", PUBLISHED)
def test_first_step_of_zoo(name):
    entry, rules = ZOO[name], list(RULES)
    for module in entry.needs:
        pytest.importorskip(module)
    model = entry()
    inputs, targets = model.make_inputs(1, 0), model.make_target(1, 0)
    rule = rules[PUBLISHED.index(name) % len(rules)]
    if rule in AVERAGING and has_loops(model, jax.tree.map(lambda a: a[0], inputs)):
        rule = "d_rtrl"
    tol = max(model.tol, 1e-11)
    assert_own_gradient(model.step, RULES[rule], model.params, model.hidden, inputs, targets, model.loss, tol)
