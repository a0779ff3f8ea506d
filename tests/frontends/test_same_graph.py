"""One cell as a plain function and as a brainstate module: the same graph, Jacobians, verdicts and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import etrax
from etrax.graph import DiagnosticLevel

brainstate = pytest.importorskip("brainstate")

B, I, H, T = 2, 3, 4, 5


def gru(p, s, x):
    h, xh = s["h"], jnp.concatenate([x, s["h"]], -1)
    z, r = jax.nn.sigmoid(xh @ p["z"] + p["b"]), jax.nn.sigmoid(xh @ p["r"])
    n = jnp.tanh(jnp.concatenate([x, r * h], -1) @ p["n"])
    return {"h": (1 - z) * h + z * n}


def lstm(p, s, x):
    i, f, g, o = jnp.split(x @ p["in"] + s["h"] @ p["rec"] + p["b"], 4, -1)
    c = jax.nn.sigmoid(f) * s["c"] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return {"c": c, "h": jax.nn.sigmoid(o) * jnp.tanh(c)}


def lru(p, s, x):
    decay = jnp.exp(lax.complex(-jnp.exp(p["nu"]), p["theta"]))
    return {"h": decay * s["h"] + lax.complex(x @ p["b_re"], x @ p["b_im"])}


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


spike.defjvp(lambda v, dv: (spike(*v), dv[0] / (1 + jnp.abs(v[0])) ** 2))


def lif(p, s, x):
    v = 0.9 * s["v"] * (1 - s["z"]) + x @ p["in"] + s["z"] @ p["rec"]
    return {"v": v, "z": spike(v - 0.5)}


CELLS = {
    "gru": (gru, {"b": (H,), "n": (I + H, H), "r": (I + H, H), "z": (I + H, H)}, {"h": float}),
    "lstm": (lstm, {"b": (4 * H,), "in": (I, 4 * H), "rec": (H, 4 * H)}, {"c": float, "h": float}),
    "lru": (lru, {"b_im": (I, H), "b_re": (I, H), "nu": (H,), "theta": (H,)}, {"h": complex}),
    "lif": (lif, {"in": (I, H), "rec": (H, H)}, {"v": float, "z": float}),
}
XS = jnp.asarray(np.random.RandomState(0).standard_normal((T, B, I)))


class Cell(brainstate.nn.Module):
    """A cell whose parameters and states are those of a brainstate module."""

    def __init__(self, update, params, hidden):
        super().__init__()
        self.cell, self.names = update, (tuple(params), tuple(hidden))
        for name, value in params.items():
            setattr(self, name, brainstate.ParamState(value))
        for name, value in hidden.items():
            setattr(self, name, brainstate.HiddenState(value))

    def update(self, x):
        p, s = ({k: getattr(self, k).value for k in names} for names in self.names)
        new = self.cell(p, s, x)
        for name, value in new.items():
            getattr(self, name).value = value
        return read(new)


def read(state):
    return jnp.real(state["h" if "h" in state else "z"])


@pytest.fixture(params=CELLS)
def both(request):
    """The function with its values, which are keywords, and the module, which holds the same."""
    cell, shapes, kinds = CELLS[request.param]
    rng = np.random.RandomState(1)
    params = {k: jnp.asarray(rng.standard_normal(shape) * 0.5) for k, shape in shapes.items()}
    hidden = {k: jnp.asarray(rng.standard_normal((B, H)), kind) for k, kind in kinds.items()}

    def step(p, s, x):
        new = cell(p, s, x)
        return new, read(new)

    return (step, {"params": params, "hidden": hidden}), (Cell(cell, params, hidden), {})


def shown(graph):
    """All that a graph says, with jaxprs as text and no objects of a front end."""
    info, perturb = graph.module_info, graph.hidden_perturb
    return {
        "step": str(info.closed_jaxpr),
        "states": info.compiled_state_paths,
        "groups": [
            (g.index, g.hidden_paths, g.varshape, g.num_state, g.tag, str(g.transition_jaxpr))
            for g in graph.hidden_groups
        ],
        "by path": {path: g.index for path, g in graph.hid_path_to_group.items()},
        "relations": [
            (r.path, r.leaf_path, r.primitive, r.family, r.op, r.x_var is None, r.y_var.aval.shape, str(r.source),
             [g.index for g in r.hidden_groups], list(map(str, r.y_to_hidden_group_jaxprs)),
             [p.tolist() for p in r.positions])
            for r in graph.hidden_param_op_relations
        ],
        "perturbation": (perturb.perturb_hidden_paths, str(perturb.perturb_jaxpr)),
        "diagnostics": graph.diagnostics,
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::etrax.CompilationWarning")
def test_same_graph(both):
    one, two = (shown(etrax.compile_etrace_graph(model, XS[0], **values)) for model, values in both)
    assert one.keys() == two.keys()
    for part in one:
        assert one[part] == two[part], part
    assert one["groups"] and one["relations"]
    assert any(r.level is DiagnosticLevel.INFO for r in one["diagnostics"])


@pytest.mark.filterwarnings("ignore::etrax.CompilationWarning")
def test_same_jacobians(both):
    params = {(name,): value for name, value in both[0][1]["params"].items()}
    found, keys, text = [], [], []
    for model, values in both:
        executor = etrax.ETraceGraphExecutor(model, **values)
        executor.compile_graph(etrax.MultiStepData(XS))
        output, hidden, other, (h2w, h2h), pull = executor.solve_h2w_h2h_l2h_jacobian(XS[0])
        assert other == {}
        later = executor.solve_h2w_h2h_jacobian(XS[1], old_state_vals=params | hidden)
        found.append((output, hidden, [v.dense() for v in h2w.values()], h2h, pull(output), later[:2], later[3][1]))
        keys.append(list(h2w))
        text.append(executor.show_graph(verbose=False, return_msg=True))
    assert text[0] == text[1] and keys[0] == keys[1] != []
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), *found)


def test_same_verdicts_and_gradients(both):
    found = []
    for rule in ("d_rtrl", "rtrl"):
        for model, values in both:
            learner = etrax.compile(model, rule, XS[0], **values)
            run = learner.value_and_grad(lambda o, _: (o**2).mean(), window=2)
            (loss, grads), _ = run(learner.params, learner.init(), XS)
            found.append((loss, grads, {p: v.kind for p, v in learner.report.verdicts.items()}))
        assert found[-2][2] == found[-1][2]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found[-2][:2], found[-1][:2])


def test_a_function_is_no_module():
    step = lambda p, h, x: (h, h)
    for wrong in (lambda: etrax.ETraceGraphExecutor(step), lambda: etrax.ETraceGraphExecutor(3, params={})):
        with pytest.raises(TypeError, match="a step function with its `params=`"):
            wrong()
    with pytest.raises(TypeError, match="holds its own"):
        etrax.ETraceGraphExecutor(Cell(gru, {}, {}), params={})
    executor = etrax.ETraceGraphExecutor(step, params={}, hidden=jnp.ones(2))
    executor.compile_graph(1.0)
    with pytest.raises(TypeError, match="by position"):
        executor.solve_h2w_h2h_jacobian(1.0, scale=2.0)
