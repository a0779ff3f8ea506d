"""States whose past is that of other new states: which are found, and that gradients are those of whole traces."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn.cases import spike_jvp
from tests.learn.oracle import bptt, relative_error
from tests.report.models import layers

import etrax
from etrax.compiler.analysis import _memoryless as memoryless
from etrax.compiler.analysis import memoryless_states
from etrax.compiler.dataflow._transpose import reach_through
from etrax.compiler.ir import leaves_with_paths
from etrax.runtime import carried_relations, plan_of, plan_probes, whole_view
from etrax.runtime.traces import by_position_transport

B, I, H, T = 2, 3, 4, 8


def gates(p, x, h=None):
    y = x @ p["w"] if h is None else x @ p["w"] + h @ p["u"]
    return jnp.split(y + p["b"], 4, -1)


def cell(i, f, g, c):
    return jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)


def lstm(p, s, x):
    i, f, g, o = gates(p, x, s["h"])
    c = cell(i, f, g, s["c"])
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return {"c": c, "h": h}, h @ p["out"]


def no_recurrent_weights(p, s, x):
    """Exact: the readout sees h of the step before."""
    i, f, g, o = gates(p, x)
    c = cell(i, f, g, s["c"])
    return {"c": c, "h": jax.nn.sigmoid(o) * jnp.tanh(c)}, s["h"] @ p["out"]


def a_product_for_each_gate(p, s, x):
    f, o = x @ p["w"][:, :H] + p["b"][:H], x @ p["w"][:, H : 2 * H]
    c = jax.nn.sigmoid(f) * s["c"] + f
    return {"c": c, "h": o * jnp.tanh(c)}, s["h"] @ p["out"]


def elman(p, h, x):
    h = jnp.tanh(x @ p["w"][:, :H] + h @ p["u"][:, :H] + p["b"][:H])
    return h, h @ p["out"]


def delayed(p, h, x):
    return p["b"][:H] * jnp.tanh(x @ p["w"][:, :H]), h @ p["out"]


def two_in_a_row(p, s, x):
    i, f, g, o = gates(p, x)
    c = cell(i, f, g, s["c"])
    h = jnp.tanh(c) * o
    return {"c": c, "h": h, "k": h * jax.nn.sigmoid(g)}, (s["h"] + s["k"]) @ p["out"]


def flag_of_it(p, s, x):
    """z follows from h, which is memoryless."""
    i, f, g, o = gates(p, x)
    c = cell(i, f, g, s["c"])
    h = jnp.tanh(c) * o
    return {"c": c, "h": h, "z": spike_jvp(h)}, (s["h"] + s["z"]) @ p["out"]


def leaky_readout(p, s, x):
    i, f, g, o = gates(p, x)
    c = cell(i, f, g, s["c"])
    h = jnp.tanh(c) * o
    return {"c": c, "h": h, "r": 0.9 * s["r"] + h @ p["out"]}, s["r"] + s["h"] @ p["out"]


def peephole(p, s, x):
    i, f, g, o = gates(p, x)
    c = cell(i, f + 0.3 * s["h"], g, s["c"])
    return {"c": c, "h": o * jnp.tanh(c)}, s["h"] @ p["out"]


def of_the_old_cell(p, s, x):
    i, f, g, o = gates(p, x)
    return {"c": cell(i, f, g, s["c"]), "h": o * jnp.tanh(s["c"])}, s["h"] @ p["out"]


def leaks_itself(p, s, x):
    i, f, g, o = gates(p, x)
    c = cell(i, f, g, s["c"])
    return {"c": c, "h": 0.1 * s["h"] + o * jnp.tanh(c)}, s["h"] @ p["out"]


def rolled(p, s, x):
    i, f, g, o = gates(p, x)
    c = cell(i, f, g, s["c"])
    return {"c": c, "h": o * jnp.roll(jnp.tanh(c), 1, -1)}, s["h"] @ p["out"]


@jax.custom_vjp
def rolls_back(a):
    return a


rolls_back.defvjp(lambda a: (a, None), lambda _, g: (jnp.roll(g, 1, -1),))


def derivative_rolls(p, s, x):
    c = 0.9 * s["c"] + x @ p["w"][:, :H]
    return {"c": c, "h": rolls_back(c) * (x @ p["w"][:, H : 2 * H])}, (s["h"] + s["c"]) @ p["out"]


# model: states, those that are memoryless, and how many numbers the trace has (None: not asked)
MODELS = {
    "lstm": (lstm, "ch", {"h"}, B * (3 * H * (I + H + 1) + H + 3 * 4 * H + I + H)),
    "no recurrent weights": (no_recurrent_weights, "ch", {"h"}, None),
    "a product for each gate": (a_product_for_each_gate, "ch", {"h"}, None),
    "elman": (elman, "", {"hidden"}, B * (I + H + 3 * H)),
    "delayed": (delayed, "", {"hidden"}, None),
    "two in a row": (two_in_a_row, "chk", {"h", "k"}, None),
    "flag of it": (flag_of_it, "chz", {"h"}, None),
    "leaky readout": (leaky_readout, "chr", {"h"}, None),
    "peephole": (peephole, "ch", set(), None),
    "of the old cell": (of_the_old_cell, "ch", set(), None),
    "leaks itself": (leaks_itself, "ch", set(), None),
    "rolled": (rolled, "ch", set(), None),
    "derivative rolls": (derivative_rolls, "ch", set(), None),
}


class Model:
    def __init__(self, name):
        rng = np.random.default_rng(0)
        self.step, names, *_ = MODELS[name]
        shapes = {"w": (I, 4 * H), "u": (H, 4 * H), "b": (4 * H,), "out": (H, 2)}
        self.params = {k: jnp.asarray(rng.normal(size=s)) for k, s in shapes.items()}
        state = {k: jnp.asarray(0.1 * rng.normal(size=(B, 2 if k == "r" else H))) for k in names or "h"}
        self.hidden = state if names else state["h"]
        self.x, self.target = (jnp.asarray(rng.normal(size=(T, B, n))) for n in (I, 2))

    def loss(self, output, target):
        return ((output - target) ** 2).mean()

    def compiled(self, rule):
        return etrax.compile(self.step, rule, self.x[0], params=self.params, hidden=self.hidden)

    def grads(self, learner, window):
        run = learner.value_and_grad(self.loss, window=window)
        return run(self.params, learner.init(), self.x, self.target)[0][1]


@pytest.mark.parametrize("name", MODELS)
def test_found(name):
    learner = Model(name).compiled("d_rtrl")
    *_, gone, numbers = MODELS[name]
    found = memoryless_states(learner.facts)
    assert {learner.facts.state_name(i).strip("'") for i in found} == gone
    assert any("no trace is stored" in note for note in str(learner.report).splitlines()) == bool(gone)
    if numbers is not None:
        assert sum(a.size for a in jax.tree.leaves(learner.init().trace)) == numbers


WHOLE = replace(
    etrax.d_rtrl(hops=0, fan_out=0),
    transport=lambda facts, sites, dtype: by_position_transport(
        plan_of(plan_probes(whole_view(facts), carried_relations(facts, sites)), dtype)
    ),
)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_whole_traces(name):
    """BPTT where it is exact; else a trace for every state, which knows nothing of the others."""
    model = Model(name)
    learner = model.compiled("d_rtrl")
    exact = all(v.kind in ("exact", "unused") for v in learner.report.verdicts.values())
    assert exact == (name not in ("lstm", "elman"))
    whole = None if exact else model.compiled(WHOLE)
    truth = bptt(model, (model.x,), model.target)
    for window in (1, 3, 7) if name in ("lstm", "two in a row", "leaky readout") else (3,):
        got = model.grads(learner, window)
        want = truth if whole is None else model.grads(whole, window)
        for path, g in leaves_with_paths(got):
            assert relative_error(g, dict(leaves_with_paths(want))[path]) < 1e-10, (window, path)


def test_one_derivative_for_all_layers(monkeypatch):
    """However many layers there are: each group alone would take a walk through the whole step."""
    calls = []
    monkeypatch.setattr(memoryless, "reach_through", lambda *args: calls.append(args) or reach_through(*args))
    for depth in (2, 5):
        calls.clear()
        learner = layers(depth)
        assert len(memoryless_states(learner.facts)) == depth and len(calls) == 1


def side_by_side(p, s, x):
    """An LSTM, a leaky state, and a state that reads the new value of that one, position by position."""
    new, out = lstm(p["lstm"], s["lstm"], x)
    leaky = 0.9 * s["leaky"] + x @ p["v"]
    reads = jnp.tanh(leaky + s["reads"] @ p["r"])
    return {"lstm": new, "leaky": leaky, "reads": reads}, out + reads


def test_groups_together_are_as_each_alone():
    rng = np.random.RandomState(0)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape))
    params = {
        "lstm": {"w": draw(I, 4 * H), "u": draw(H, 4 * H), "b": draw(4 * H), "out": draw(H, H)},
        "v": draw(I, H),
        "r": draw(H, H),
    }
    zero = jnp.zeros((B, H))
    hidden = {"lstm": {"c": zero, "h": zero}, "leaky": zero, "reads": zero}
    learner = etrax.compile(side_by_side, "d_rtrl", draw(B, I), params=params, hidden=hidden)
    parts = [memoryless._asked(learner.facts, g) for g in learner.facts.groups]
    alone = [memoryless._proved(learner.facts, [part]) for part in parts if part.leaves]
    assert len(parts) > 1
    assert memoryless_states(learner.facts) == {i: found for one in alone for i, found in one.items()} != {}
