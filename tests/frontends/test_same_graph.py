"""One cell as a plain function and as a module of every library: the same graph, Jacobians, verdicts and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.learn.harness import in_numpy

import etrax
from etrax.graph import DiagnosticLevel

brainstate = pytest.importorskip("brainstate")
nnx = pytest.importorskip("flax.nnx")
linen = pytest.importorskip("flax.linen")
eqx = pytest.importorskip("equinox")

B, I, H, T = 2, 3, 4, 5


def gru(p, s, x):
    h, xh = s["h"], jnp.concatenate([x, s["h"]], -1)
    z, r = jax.nn.sigmoid(xh @ p["z"] + p["b"]), jax.nn.sigmoid(xh @ p["r"])
    n = jnp.tanh(jnp.concatenate([x, r * h], -1) @ p["n"])
    return {"h": (1 - z) * h + z * n}


def lstm(p, s, x):
    i, f, g, o = jnp.split(x @ p["inp"] + s["h"] @ p["rec"] + p["b"], 4, -1)
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
    v = 0.9 * s["v"] * (1 - s["z"]) + x @ p["inp"] + s["z"] @ p["rec"]
    return {"v": v, "z": spike(v - 0.5)}


def alif(p, s, x):
    a = 0.95 * s["a"] + s["z"]
    v = p["leak"] * s["v"] + x @ p["inp"] + s["z"] @ p["rec"] - s["z"]
    return {"a": a, "v": v, "z": spike(v - 0.5 - 0.1 * a)}


CELLS = {
    "gru": (gru, {"b": (H,), "n": (I + H, H), "r": (I + H, H), "z": (I + H, H)}, {"h": float}),
    "lstm": (lstm, {"b": (4 * H,), "inp": (I, 4 * H), "rec": (H, 4 * H)}, {"c": float, "h": float}),
    "lru": (lru, {"b_im": (I, H), "b_re": (I, H), "nu": (H,), "theta": (H,)}, {"h": complex}),
    "lif": (lif, {"inp": (I, H), "rec": (H, H)}, {"v": float, "z": float}),
    "alif": (alif, {"inp": (I, H), "leak": (H,), "rec": (H, H)}, {"a": float, "v": float, "z": float}),
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


class Variables(nnx.Module):
    """The same, in variables of Flax."""

    def __init__(self, cell, params, hidden):
        self.cell, self.names = cell, (tuple(params), tuple(hidden))
        for name, value in params.items():
            setattr(self, name, nnx.Param(value))
        for name, value in hidden.items():
            setattr(self, name, nnx.Variable(value))

    def __call__(self, x):
        p, s = ({k: getattr(self, k)[...] for k in names} for names in self.names)
        new = self.cell(p, s, x)
        for name, value in new.items():
            getattr(self, name)[...] = value
        return read(new)


class WithCarry(nnx.Module):
    """Parameters in variables of Flax, the state handed over as its cells do."""

    def __init__(self, cell, params):
        self.cell, self.names = cell, tuple(params)
        for name, value in params.items():
            setattr(self, name, nnx.Param(value))

    def __call__(self, s, x):
        new = self.cell({k: getattr(self, k)[...] for k in self.names}, s, x)
        return new, read(new)


class Linen(linen.Module):
    cell: object
    shapes: tuple

    @linen.compact
    def __call__(self, s, x):
        p = {k: self.param(k, linen.initializers.zeros_init(), shape) for k, shape in self.shapes}
        new = self.cell(p, s, x)
        return new, read(new)


def tree_module(cell, params):
    """An Equinox module with one field per parameter, called as its cells are: the output is the state."""
    own = {"__annotations__": dict.fromkeys(params, jax.Array), "__module__": __name__}
    own["__call__"] = lambda self, x, s: cell({k: getattr(self, k) for k in params}, s, x)
    return type("TreeModule", (eqx.Module,), own)(**params)


def equinox_face(cell, params, hidden):
    call = lambda module, s, x: (lambda new: (new, read(new)))(module(x, s))
    return tree_module(cell, params), {"hidden": hidden, "call": call}


# Each library's own way to hold the same cell: the model, and the keywords of `compile`.
FACES = {
    "brainstate": lambda cell, params, hidden: (Cell(cell, params, hidden), {}),
    "nnx variables": lambda cell, params, hidden: (Variables(cell, params, hidden), {}),
    "nnx carry": lambda cell, params, hidden: (WithCarry(cell, params), {"hidden": hidden}),
    "equinox": equinox_face,
}


def made(name):
    """The step of a cell, its parameters and its hidden state."""
    cell, shapes, kinds = CELLS[name]
    rng = np.random.RandomState(1)
    params = {k: jnp.asarray(rng.standard_normal(shape) * 0.5) for k, shape in shapes.items()}
    hidden = {k: jnp.asarray(rng.standard_normal((B, H)), kind) for k, kind in kinds.items()}

    def step(p, s, x):
        new = cell(p, s, x)
        return new, read(new)

    return step, params, hidden


@pytest.fixture(params=[(cell, face) for cell in CELLS for face in FACES], ids="-".join)
def both(request):
    """The function with its values, which are keywords, and the module, which holds the same."""
    name, face = request.param
    step, params, hidden = made(name)
    return (step, {"params": params, "hidden": hidden}), FACES[face](CELLS[name][0], params, hidden)


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
            loss, grads = in_numpy(lambda *a, run=run: run(*a)[0], learner.params, learner.init(), XS)
            found.append((loss, grads, {p: v.kind for p, v in learner.report.verdicts.items()}))
        assert found[-2][2] == found[-1][2]
        one, two = (jax.tree.leaves(f[:2]) for f in found[-2:])
        assert len(one) == len(two) > 1
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), one, two)


@pytest.mark.parametrize("name", CELLS)
def test_linen_by_its_apply(name):
    step, params, hidden = made(name)
    module = Linen(CELLS[name][0], tuple((k, v.shape) for k, v in params.items()))
    variables = jax.tree.map(lambda _, v: v, module.init(jax.random.key(0), hidden, XS[0]), {"params": params})
    found = []
    for model, values in ((step, params), (module, variables), (module.apply, variables)):
        learner = etrax.compile(model, "d_rtrl", XS[0], params=values, hidden=hidden)
        run = learner.value_and_grad(lambda o, _: (o**2).mean(), window=2)
        loss, grads = in_numpy(lambda *a, run=run: run(*a)[0], learner.params, learner.init(), XS)
        kinds = {path[-1]: v.kind for path, v in learner.report.verdicts.items()}
        found.append((loss, jax.tree.leaves(grads), kinds))
    for other in found[1:]:
        assert other[2] == found[0][2]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), other[:2], found[0][:2])


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
