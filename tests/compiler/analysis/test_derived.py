"""States that follow from others: which are found, and that gradients do not change when their traces are left out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn.cases import spike_jvp, spike_vjp
from tests.learn.oracle import bptt, relative_error

import etrax
from etrax.compiler.analysis import StateNode, derived_states
from etrax.compiler.ir import leaves_with_paths
from etrax.runtime import carried_relations, plan_of, plan_probes, reduced_view
from etrax.runtime.traces import by_position_transport

B, I, H, T = 2, 3, 4, 6


def lif(spike):
    def step(p, s, x):
        v = 0.8 * s["v"] * (1 - s["z"]) + x @ p["w"]
        return {"v": v, "z": spike(v - 0.3)}, spike(v - 0.3) @ p["out"]

    return step


def alif(p, s, x):
    v = 0.8 * s["v"] - 0.5 * s["z"] + x @ p["w"]
    a = 0.9 * s["a"] + 0.3 * s["z"]
    z = spike_vjp(v - 0.2 - a)
    y = 0.7 * s["y"] + z
    return {"v": v, "a": a, "y": y, "z": z}, (y + z) @ p["out"]


def learnable_threshold(p, s, x):
    v = 0.8 * s["v"] * (1 - s["z"]) + x @ p["w"]
    z = spike_jvp(v - p["th"])
    return {"v": v, "z": z}, z @ p["out"]


def input_threshold(p, s, x):
    v = 0.8 * s["v"] * (1 - s["z"]) + x @ p["w"]
    z = spike_jvp(v - x.mean())
    return {"v": v, "z": z}, z @ p["out"]


def reset_in_the_step(p, s, x):
    v = 0.8 * s["v"] + x @ p["w"]
    z = spike_jvp(v - 0.3)
    return {"v": v - z, "z": z}, z @ p["out"]


def chain(p, s, x):
    """w follows from z, which follows from v; and u is v again."""
    v = 0.8 * s["v"] - 0.2 * s["w"] + 0.1 * s["u"] + x @ p["w"]
    z = jnp.tanh(v)
    w = z * z + 0.3
    return {"v": v, "z": z, "w": w, "u": v}, (w + s["z"]) @ p["out"]


def lagged(p, s, x):
    v = 0.8 * s["v"] + x @ p["w"]
    return {"v": v, "z": jnp.tanh(s["v"])}, (v + s["z"]) @ p["out"]


def logarithm(p, s, x):
    v = 0.8 * s["v"] + jnp.abs(x @ p["w"])
    return {"v": v, "z": jnp.log(v)}, (v * (1 + s["z"])) @ p["out"]


def inverse(p, s, x):
    v = 0.8 * s["v"] + jnp.abs(x @ p["w"]) * (1 + jnp.tanh(s["z"]))
    return {"v": v, "z": 1 / v}, v @ p["out"]


# model: states, and those that follow from others
MODELS = {
    "lif vjp": (lif(spike_vjp), "vz", {"z"}),
    "lif jvp": (lif(spike_jvp), "vz", {"z"}),
    "alif": (alif, "vayz", {"z"}),
    "learnable threshold": (learnable_threshold, "vz", set()),
    "threshold from the input": (input_threshold, "vz", set()),
    "reset in the step": (reset_in_the_step, "vz", set()),
    "chain": (chain, "vzwu", {"z", "w", "u"}),
    "lagged": (lagged, "vz", set()),
    "logarithm": (logarithm, "vz", set()),
    "inverse": (inverse, "vz", set()),
}


class Model:
    def __init__(self, name):
        rng = np.random.RandomState(0)
        self.step, names, self.gone = MODELS[name]
        self.params = {k: jnp.asarray(rng.standard_normal(s)) for k, s in (("w", (I, H)), ("out", (H, 2)))}
        if name == "learnable threshold":
            self.params["th"] = jnp.asarray(rng.uniform(0.1, 0.5, H))
        start = 0.0 if name in ("logarithm", "inverse") else 0.1  # where these have no slope
        self.hidden = {k: jnp.asarray(start * rng.standard_normal((B, H))) for k in names}
        self.x, self.target = (jnp.asarray(rng.standard_normal((T, B, n))) for n in (I, 2))

    def loss(self, output, target):
        return ((output - target) ** 2).mean()

    def compiled(self, rule):
        return etrax.compile(self.step, rule, self.x[0], params=self.params, hidden=self.hidden)


@pytest.mark.parametrize("name", MODELS)
def test_found(name):
    model = Model(name)
    facts = model.compiled("d_rtrl").facts
    gone = {facts.states[i].path[0] for d in derived_states(facts).values() for i in d.gone}
    if name == "chain":  # of v and its copy u either may stand for the other
        assert len(gone) == 3 and {"z", "w"} <= gone
    else:
        assert gone == model.gone
    unread = {leaf.path[0] for i, leaf in enumerate(facts.states) if StateNode(i) not in facts.live}
    kept = len(model.hidden) - len(gone | unread)
    plan = plan_of(plan_probes(reduced_view(facts), carried_relations(facts)), None)
    assert [layout.size for layout in plan.reader.layouts if layout.slots] == [kept] * len(plan.groups)
    assert len(jax.tree.leaves(by_position_transport(plan).init())) <= kept * len(plan.relations)


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("rule", [etrax.d_rtrl(), etrax.pp_prop(0.8)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_whole_traces(name, rule, window):
    """d_rtrl is exact here and equals BPTT; pp_prop equals itself with a trace for every state."""
    model = Model(name)
    learner = model.compiled(rule)
    run = learner.value_and_grad(model.loss, window=window)
    (_, grads), _ = run(model.params, learner.init(), model.x, model.target)
    if rule.name == "d_rtrl":
        assert {v.kind for v in learner.report.verdicts.values()} == {"exact"}
        want = bptt(model, (model.x,), model.target)
    else:
        want = _unreduced(model, rule, window)
    for path, g in leaves_with_paths(grads):
        assert relative_error(g, dict(leaves_with_paths(want))[path]) < 1e-10, path


def _unreduced(model, rule, window):
    """The same model with states that only look as if they depended on an input."""
    silent = jnp.zeros((T, B, 1))

    def step(p, s, x, zero):
        new, output = model.step(p, s, x)
        return {k: v + jax.lax.stop_gradient(zero) for k, v in new.items()}, output

    learner = etrax.compile(step, rule, model.x[0], silent[0], params=model.params, hidden=model.hidden)
    assert not derived_states(learner.facts)
    run = learner.value_and_grad(model.loss, window=window)
    return run(model.params, learner.init(), (model.x, silent), model.target)[0][1]


def test_states_that_do_not_act_on_each_other_have_no_block():
    facts = Model("alif").compiled("d_rtrl").facts
    (layout,) = plan_probes(reduced_view(facts), carried_relations(facts)).layouts
    names = [facts.states[s.leaf].path[0] for s in layout.slots]
    links = {(a, b) for i, b in enumerate(names) for j, a in enumerate(names) if layout.links[i, j]}
    # v and a act on each other through z, and on y; y acts on itself alone
    assert links == {("v", "v"), ("a", "v"), ("a", "a"), ("v", "a"), ("v", "y"), ("a", "y"), ("y", "y")}
