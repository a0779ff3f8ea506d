"""One cell as a plain function and as a brainstate module: the same groups, relations, verdicts and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax

brainstate = pytest.importorskip("brainstate")

B, I, H, T = 2, 3, 4, 5
RNG = np.random.RandomState(0)
PARAMS = {k: jnp.asarray(RNG.standard_normal((I + H, H)) * 0.5) for k in ("n", "r", "z")} | {
    "b": jnp.asarray(RNG.standard_normal(H))
}
XS = jnp.asarray(RNG.standard_normal((T, B, I)))


def gru(p, h, x):
    xh = jnp.concatenate([x, h], -1)
    z, r = jax.nn.sigmoid(xh @ p["z"] + p["b"]), jax.nn.sigmoid(xh @ p["r"])
    n = jnp.tanh(jnp.concatenate([x, r * h], -1) @ p["n"])
    return (1 - z) * h + z * n


class Cell(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        for name, value in PARAMS.items():
            setattr(self, name, brainstate.ParamState(value))
        self.h = brainstate.HiddenState(jnp.zeros((B, H)))

    def update(self, x):
        self.h.value = gru({k: getattr(self, k).value for k in PARAMS}, self.h.value, x)
        return self.h.value


def step(params, hidden, x):
    h = gru(params, hidden["h"], x)
    return {"h": h}, h


def learners(rule):
    function = etrax.compile(step, rule, XS[0], params=PARAMS, hidden={"h": jnp.zeros((B, H))})
    return function, etrax.compile(Cell(), rule, XS[0])


def loss(output, _):
    return (output**2).mean()


def test_same_graph():
    shown = []
    for learner in learners("d_rtrl"):
        graph = learner.graph
        groups = [(g.hidden_paths, g.varshape, g.num_state, g.tag) for g in graph.hidden_groups]
        relations = [
            (r.path, str(r.primitive), r.x_var is None, r.y_var.aval.shape, [g.index for g in r.hidden_groups])
            for r in graph.hidden_param_op_relations
        ]
        kinds = [(r.kind, r.weight_path, r.hidden_paths) for r in graph.diagnostics]
        shown.append((groups, relations, kinds, {p: v.kind for p, v in learner.report.verdicts.items()}))
    assert shown[0] == shown[1]
    assert len(shown[0][1]) == 3


@pytest.mark.parametrize("rule", ["d_rtrl", "rtrl"])
def test_same_gradients(rule):
    found = [learner.value_and_grad(loss, window=2)(PARAMS, learner.init(), XS)[0] for learner in learners(rule)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), *found)
