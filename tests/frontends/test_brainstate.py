"""brainstate modules as steps: roles, paths, units, values, and what is refused."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

brainstate = pytest.importorskip("brainstate")
u = pytest.importorskip("saiunit")

import etrax.nn  # noqa: E402
from etrax._errors import CompilationError  # noqa: E402
from etrax.compiler.ir import Role  # noqa: E402
from etrax.frontends._brainstate import OUTSIDE, bind_brainstate, is_brainstate_module  # noqa: E402
from etrax.graph import compile_etrace_graph  # noqa: E402

I, H = 3, 4


class Cell(brainstate.nn.Module):
    """One of everything: nested parameters, a hidden state, a counter, noise, and a parameter that nobody reads."""

    def __init__(self):
        super().__init__()
        self.layer = etrax.nn.Linear(I, H)
        self.gain = brainstate.ParamState(jnp.full(H, 0.5))
        self.idle = brainstate.ParamState(jnp.ones(2))
        self.h = brainstate.HiddenState(jnp.ones(H))
        self.count = brainstate.ShortTermState(jnp.asarray(0))
        self.unused = brainstate.HiddenState(jnp.ones(H))

    def update(self, x, scale=1.0, mode="on"):
        drive = self.layer(x) * scale if mode == "on" else 0.0
        self.h.value = self.gain.value * self.h.value + drive + 0.1 * brainstate.random.normal(size=H)
        self.count.value = self.count.value + 1
        return {"h": self.h.value, "n": self.count.value}


def paths(bound, role):
    return [leaf.path for leaf in bound.step.select(role)]


def run(bound, *args):
    """New hidden and other states, and the output, as trees."""
    flat = iter(bound.step.run(jax.tree.leaves((bound.read(), bound.encode(args, {})))))
    parts = [[next(flat) for _ in bound.step.select(role)] for role in (Role.HIDDEN, Role.OTHER, Role.OUTPUT)]
    trees = [bound.step.trees[role] for role in (Role.HIDDEN, Role.OTHER, Role.OUTPUT)]
    return [jax.tree.unflatten(tree, leaves) for tree, leaves in zip(trees, parts, strict=True)]


def test_roles_and_paths():
    model = Cell()
    bound = bind_brainstate(model, (jnp.ones(I),))
    assert paths(bound, Role.PARAM) == [
        ("gain",),
        ("idle",),
        ("layer", "weight", "bias"),
        ("layer", "weight", "weight"),
    ]
    assert paths(bound, Role.HIDDEN) == [("h",)]
    assert paths(bound, Role.OTHER) == [(OUTSIDE, "RandomState_0"), ("count",)]
    assert paths(bound, Role.OUTPUT) == [("h",), ("n",)]
    assert bound.read()[0]["layer"]["weight"]["weight"] is model.layer.weight.value["weight"]
    assert bound.step.select(Role.HIDDEN)[0].handle is model.h
    found = {s.path: len(s.leaves) for s in bound.states}
    assert found == {
        ("gain",): 1,
        ("idle",): 1,
        ("layer", "weight"): 2,
        ("h",): 1,
        (OUTSIDE, "RandomState_0"): 1,
        ("count",): 1,
    }
    assert list(found)[:4] == [("layer", "weight"), ("gain",), ("idle",), ("h",)]  # as the step meets them


def test_the_pure_step_is_the_model():
    model = Cell()
    brainstate.random.seed(7)
    x = jnp.arange(3.0)
    bound = bind_brainstate(model, (x,))
    hidden, other, out = run(bound, x)
    np.testing.assert_array_equal(model.h.value, jnp.ones(H))
    assert model.count.value == 0
    expected = model(x)
    np.testing.assert_allclose(out["h"], expected["h"], rtol=1e-12)
    np.testing.assert_allclose(hidden["h"], model.h.value, rtol=1e-12)
    assert other["count"] == model.count.value == 1
    same = jax.random.key_data(other[OUTSIDE]["RandomState_0"]) == jax.random.key_data(brainstate.random.DEFAULT.value)
    assert same.all()
    np.testing.assert_array_equal(bound.read()[1]["h"], model.h.value)


def test_keywords_and_fixed_arguments():
    model = Cell()
    bound = bind_brainstate(model, (jnp.ones(I),), {"scale": jnp.asarray(2.0), "mode": "on"})
    assert paths(bound, Role.INPUT) == [(0,), (1, "scale")]
    x, keywords = bound.encode((jnp.zeros(I),), {"scale": 3.0, "mode": "on"})
    assert keywords == {"scale": 3.0, "mode": None} and x.shape == (I,)
    with pytest.raises(CompilationError, match="off"):
        bound.encode((jnp.zeros(I),), {"scale": 3.0, "mode": "off"})
    with pytest.raises(CompilationError, match="was compiled with"):
        bound.encode((jnp.zeros(I), jnp.zeros(I)), {"scale": 3.0, "mode": "on"})
    with pytest.raises(CompilationError, match=r"\[7\].*\[3\]"):
        bound.encode((jnp.zeros(7),), {"scale": 3.0, "mode": "on"})


def test_batch_size():
    cell = etrax.nn.GRUCell(I, H)
    bound = bind_brainstate(cell, (jnp.ones((5, I)),), batch_size=5)
    assert bound.read()[1]["h"].shape == (5, H)


def test_states_created_anew_are_found():
    cell = etrax.nn.GRUCell(I, H)
    brainstate.nn.init_all_states(cell)
    bound = bind_brainstate(cell, (jnp.ones(I),))
    brainstate.nn.init_all_states(cell)
    cell.h.value = jnp.full(H, 2.0)
    np.testing.assert_array_equal(bound.read()[1]["h"], cell.h.value)
    run(bound, jnp.ones(I))
    np.testing.assert_array_equal(cell.h.value, jnp.full(H, 2.0))


def test_inner_transformations():
    """brainstate's own loops and branches inside the step."""

    class Inner(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = etrax.nn.VanillaRNNCell(I, H, activation="tanh")

        def update(self, x):
            brainstate.transform.for_loop(lambda k: self.cell(x * k), jnp.arange(2.0))
            return brainstate.transform.cond(x.sum() > 0, lambda: self.cell.h.value * 2, lambda: self.cell.h.value)

    model = Inner()
    brainstate.nn.init_all_states(model)
    bound = bind_brainstate(model, (jnp.ones(I),))
    _, _, out = run(bound, jnp.ones(I))
    np.testing.assert_allclose(out, model(jnp.ones(I)), rtol=1e-12)


def test_inside_a_brainstate_transformation():
    cell = etrax.nn.GRUCell(I, H)
    brainstate.nn.init_all_states(cell)

    @brainstate.transform.jit
    def run(x):
        graph = compile_etrace_graph(cell, x)
        return graph.module_info.jaxpr_call(x)[0]

    out = run(jnp.ones(I))
    np.testing.assert_array_equal(cell.h.value, jnp.zeros(H))
    np.testing.assert_allclose(out, cell(jnp.ones(I)), rtol=1e-12)


# Physical units.


class WithUnits(brainstate.nn.Module):
    """dv = (-v + R i)/τ, with the weights in mA and the input in ms."""

    def __init__(self, tree=False):
        super().__init__()
        self.w = brainstate.ParamState({"in": jnp.linspace(0.0, 1.0, I * H).reshape(I, H) * u.mA})
        self.v = brainstate.HiddenState(jnp.full(H, 2.0) * u.mV)

    def update(self, dt, x):
        current = x @ self.w.value["in"]
        v = self.v.value
        self.v.value = v + (-v + current * (3.0 * u.ohm)) * (dt / (10.0 * u.ms))
        return (self.v.value / u.mV, self.v.value)


def test_units():
    model = WithUnits()
    dt, x = 0.5 * u.ms, jnp.ones(I)
    bound = bind_brainstate(model, (dt, x))
    assert paths(bound, Role.PARAM) == [("w", "in")] and paths(bound, Role.HIDDEN) == [("v",)]
    assert paths(bound, Role.INPUT) == [(0,), (1,)] and paths(bound, Role.OUTPUT) == [(0,), (1,)]
    inputs = bound.encode((500.0 * u.us, x), {})
    np.testing.assert_allclose(inputs[0], 0.5)
    hidden, _, out = run(bound, 500.0 * u.us, x)
    plain, with_unit = bound.decode_output(out)
    expected = model(dt, x)
    np.testing.assert_allclose(plain, expected[0], rtol=1e-12)
    np.testing.assert_allclose(with_unit / u.mV, expected[1] / u.mV, rtol=1e-12)
    assert with_unit.unit == u.mV
    np.testing.assert_allclose(hidden["v"], model.v.value / u.mV, rtol=1e-12)
    assert bound.encode_state(("v",), jnp.full(H, 0.001) * u.volt)[0].tolist() == [1.0] * H
    assert bound.decode_state(("v",), [jnp.ones(H)]).unit == u.mV
    with pytest.raises(CompilationError, match=r"argument.*in ms"):
        bound.encode((0.5 * u.mV, x), {})
    with pytest.raises(CompilationError, match="without a unit"):
        bound.encode((0.5, x), {})


def test_a_loss_with_a_unit():
    step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    run = learner.value_and_grad(lambda output, _: (output**2).mean() * u.mV, window=1)
    with pytest.raises(etrax.ArgumentError, match=r"returned float64\[\] in mV: divide it by its unit"):
        run(learner.params, learner.init(), jnp.ones((3, 3)))


def test_modulator_sees_the_units_that_the_loss_sees():
    seen = {}

    def modulator(output, target):
        seen["modulator"] = output[1].unit
        return (output[1] / u.mV).sum() * target

    def loss(output, target):
        seen["loss"] = output[1].unit
        return ((output[1] / u.mV) ** 2).sum()

    model, dt = WithUnits(), jnp.full(4, 0.5) * u.ms
    learner = etrax.compile(model, etrax.three_factor(modulator), 0.5 * u.ms, jnp.ones(I))
    run = learner.value_and_grad(loss, window=2)
    (_, grads), _ = run(learner.params, learner.init(), (dt, jnp.ones((4, I))), jnp.ones(4))
    assert seen == {"modulator": u.mV, "loss": u.mV}
    # dv/dw is the same trace for every neuron: ε ← 0.95 ε + 0.15 x, and m_t the sum of v.
    v, trace, want = np.full(H, 2.0), 0.0, 0.0
    for _ in range(4):
        v = v + (-v + np.ones(I) @ np.linspace(0.0, 1.0, I * H).reshape(I, H) * 3.0) * 0.05
        trace = 0.95 * trace + 0.15
        want += v.sum() * trace / 4
    np.testing.assert_allclose(grads["w"]["in"], np.full((I, H), want), rtol=1e-10)


def test_units_in_the_graph():
    model = WithUnits()
    args = (0.5 * u.ms, jnp.ones(I))
    graph = compile_etrace_graph(model, *args)
    _, hidden, _, temps = graph.module_info.jaxpr_call(*args)
    assert hidden["v",].unit == u.mV
    (group,) = graph.hidden_groups
    jac = group.diagonal_jacobian([model.v.value], [temps[v] for v in group.transition_jaxpr_constvars])
    np.testing.assert_allclose(jac, np.full((H, 1, 1), 0.95), rtol=1e-12)
    data = graph.hidden_perturb.perturb_data_to_hidden_group_data([jnp.ones(H) * u.mV], graph.hidden_groups)
    assert isinstance(data[0], jax.Array) and data[0].shape == (H, 1)
    assert graph.hidden_param_op_relations[0].path == ("w",)
    assert graph.hidden_param_op_relations[0].leaf_path == ("w", "in")


def test_a_state_that_changes_its_dimension():
    class Wrong(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.v = brainstate.HiddenState(jnp.ones(H) * u.mV)

        def update(self, x):
            self.v.value = self.v.value * (2.0 * u.ms)
            return x

    with pytest.raises(CompilationError, match=r"'v'.*mV"):
        bind_brainstate(Wrong(), (1.0,))


# Grouped states.


class Grouped(brainstate.nn.Module):
    def __init__(self, tree, batch=()):
        super().__init__()
        self.layer = etrax.nn.Linear(I, H)
        if tree:
            self.h = brainstate.HiddenTreeState({"v": jnp.ones((*batch, H)) * u.mV, "a": jnp.ones((*batch, H))})
        else:
            self.h = brainstate.HiddenGroupState(jnp.ones((*batch, H, 2)))
        self.tree = tree

    def update(self, x):
        y = self.layer(x)
        v, a = self.h.get_value(0), self.h.get_value(1)
        if self.tree:
            v = v / u.mV
        new_v, new_a = 0.9 * v + jnp.tanh(y) - 0.2 * a, 0.5 * a + 0.1 * v * v
        self.h.set_value({0: new_v * u.mV if self.tree else new_v, 1: new_a})
        return new_v


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_grouped_states(tree, batch):
    model = Grouped(tree, batch)
    graph = compile_etrace_graph(model, jnp.ones((*batch, I)))
    (group,) = graph.hidden_groups
    assert group.num_state == 2 and group.varshape == (*batch, H) and group.hidden_states == [model.h]
    group.check_consistent_varshape()
    *_, temps = graph.module_info.jaxpr_call(jnp.ones((*batch, I)))
    jac = group.diagonal_jacobian([model.h.value], [temps[v] for v in group.transition_jaxpr_constvars])
    np.testing.assert_allclose(jac, np.broadcast_to([[0.9, -0.2], [0.2, 0.5]], (*batch, H, 2, 2)), rtol=1e-12)
    np.testing.assert_array_equal(group.concat_hidden([model.h.value]), model.h.value)


# What is refused.


class Broken(brainstate.nn.Module):
    def __init__(self, how):
        super().__init__()
        self.w = brainstate.ParamState(jnp.ones(H))
        self.h = brainstate.HiddenState(jnp.zeros(H))
        self.how = how

    def update(self, x):
        if self.how == "writes":
            self.w.value = self.w.value + 1
        elif self.how == "creates":
            self.late = brainstate.HiddenState(x)
        elif self.how == "uninitialised":
            self.late.value = x
        elif self.how == "dt":
            brainstate.environ.get_dt()
        elif self.how == "reshapes":
            self.h.value = jnp.zeros((2, H))
            return x
        elif self.how == "restructures":
            self.h.value = {"a": jnp.zeros(H)}
            return x
        self.h.value = self.h.value * self.w.value + x
        return self.h.value


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("writes", "writes parameter 'w'"),
        ("creates", "creates the state 'late'"),
        ("uninitialised", "late.*init_all_states"),
        ("dt", "dt.*environ.set"),
        ("reshapes", r"'h'.*\[4\].*\[2, 4\]"),
        ("restructures", "'h"),
        ("fine", None),
    ],
)
def test_errors(how, says):
    model = Broken(how)
    before = {p: s.value for p, s in model.states().items()}
    with brainstate.environ.context() if how != "dt" else no_dt():
        if says is None:
            compile_etrace_graph(model, jnp.ones(H))
        else:
            with pytest.raises(CompilationError, match=says):
                compile_etrace_graph(model, jnp.ones(H))
    assert {p: s.value for p, s in model.states().items()}.keys() == before.keys()
    assert all(s.value is before[p] for p, s in model.states().items())


def no_dt():
    """An environment without a time step, whatever other tests have set."""
    import contextlib

    @contextlib.contextmanager
    def context():
        kept = brainstate.environ.all().get("dt")
        if kept is not None:
            brainstate.environ.pop("dt")
        try:
            yield
        finally:
            if kept is not None:
                brainstate.environ.set(dt=kept)

    return context()


def test_wrong_argument_shape():
    cell = etrax.nn.GRUCell(I, H)
    brainstate.nn.init_all_states(cell)
    with pytest.raises(CompilationError, match=r"'h': float64\[4\]"):
        compile_etrace_graph(cell, jnp.ones(7))


def test_importing_keeps_float64():
    code = """
import jax, sys
jax.config.update("jax_enable_x64", True)
from etrax.frontends._brainstate import is_brainstate_module, load_brainstate
assert not is_brainstate_module(object()) and "brainstate" not in sys.modules
load_brainstate()
assert jax.config.jax_enable_x64 and "brainstate" in sys.modules
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_a_module():
    assert is_brainstate_module(etrax.nn.GRUCell(I, H)) and not is_brainstate_module(lambda x: x)


# How often a model runs.


class Counted(brainstate.nn.Module):
    """Notes the runs of its step; `aside` is a state that the step does not touch and that holds no array."""

    def __init__(self, noisy=False):
        super().__init__()
        self.noisy = noisy
        self.w = brainstate.ParamState(jnp.ones((I, H)))
        self.h = brainstate.HiddenState(jnp.zeros(H))
        self.idle = brainstate.HiddenState(jnp.zeros(H))
        self.aside = brainstate.State("no array")

    def update(self, x):
        COUNT.append(x)
        self.h.value = 0.9 * self.h.value + x @ self.w.value
        return self.h.value + (brainstate.random.normal(size=H) if self.noisy else 0.0)


COUNT = []


@pytest.mark.parametrize(("noisy", "runs"), [(False, 1), (True, 2)])
def test_a_model_is_traced_once(noisy, runs):
    """Twice if its step meets a state outside of it, which only a run can tell."""
    COUNT.clear()
    graph = compile_etrace_graph(Counted(noisy), jnp.ones(I))
    assert len(COUNT) == runs
    assert list(graph.module_info.hidden_path_to_invar) == [("h",)]
    assert len(graph.module_info.compiled_state_paths) == (3 if noisy else 2)


def test_a_state_without_arrays_is_refused_where_it_is_used():
    class Labelled(Counted):
        def update(self, x):
            return super().update(x) * len(self.aside.value)

    with pytest.raises(CompilationError, match=r"other state 'aside' is a str"):
        bind_brainstate(Labelled(), (jnp.ones(I),))


def test_a_python_branch_on_a_state():
    class Branches(Counted):
        def update(self, x):
            return super().update(x) if self.h.value.sum() > 0 else x

    with pytest.raises(CompilationError, match=r"traced once, without numbers.*`lax.cond`"):
        bind_brainstate(Branches(), (jnp.ones(I),))
