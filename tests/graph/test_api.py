"""The compiler API as its users read it: names, orders, texts, warnings, and what can only be looked at."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

brainstate = pytest.importorskip("brainstate")
u = pytest.importorskip("saiunit")

from tests.graph.cells import B, H, I, Net, build, run, values  # noqa: E402

import etrax  # noqa: E402
import etrax.nn  # noqa: E402


class Mixed(brainstate.nn.Module):
    """States of every kind; the step meets them in another order than that of their names."""

    def __init__(self, unit=1.0):
        super().__init__()
        rng = np.random.RandomState(0)
        self.weight = brainstate.ParamState(jnp.asarray(rng.standard_normal((I, H))) * unit)
        self.readout = brainstate.ParamState(jnp.asarray(rng.standard_normal((H, 2))))
        self.idle_weight = brainstate.ParamState(jnp.ones(2))
        self.v = brainstate.HiddenState(jnp.asarray(rng.standard_normal(H)) * unit)
        self.a = brainstate.HiddenState(jnp.asarray(rng.standard_normal(H)) * unit)
        self.m = brainstate.HiddenState(jnp.asarray(rng.standard_normal(H)) * unit)
        self.count = brainstate.HiddenState(jnp.zeros(H, int))
        self.idle = brainstate.HiddenState(jnp.zeros(H))
        self.gain = brainstate.ShortTermState(jnp.asarray(1.0))
        self.clock = brainstate.ShortTermState(jnp.asarray(0))
        self.unit = unit

    def update(self, x):
        v = 0.9 * self.v.value + x @ self.weight.value - 0.1 * self.m.value
        m = 0.8 * self.m.value + 0.2 * v
        self.a.value = 0.7 * self.a.value + 0.3 * m
        self.v.value, self.m.value = v, m
        self.count.value = self.count.value + 1
        self.gain.value = self.gain.value * 1.5
        return (v / self.unit) @ self.readout.value * self.gain.value


MET = [("v",), ("m",), ("a",)]


@pytest.fixture
def compiled():
    model = Mixed()
    executor = etrax.ETraceGraphExecutor(model)
    executor.compile_graph(jnp.ones(I))
    return model, executor


# Orders.


@pytest.mark.parametrize("unit", [1.0, u.mV])
def test_states_are_in_the_order_of_the_model(unit):
    model = Mixed(unit)
    graph = etrax.compile_etrace_graph(model, jnp.ones(I))
    (group,) = graph.hidden_groups
    info = graph.module_info
    assert group.hidden_paths == MET == graph.hidden_perturb.perturb_hidden_paths
    assert group.hidden_states == [model.v, model.m, model.a] == graph.hidden_perturb.perturb_hidden_states
    assert [p for p in info.hidden_path_to_outvar if p in MET] == MET
    assert [s for s in info.compiled_model_states if s in group.hidden_states] == group.hidden_states
    assert [info.hidden_path_to_invar[p] for p in MET] == group.hidden_invars
    assert [info.hidden_path_to_outvar[p] for p in MET] == group.hidden_outvars


def test_orders_agree_with_the_numbers(compiled):
    """Blocks, columns and perturbations follow the same order as the paths."""
    model, executor = compiled
    graph, x = executor.graph, jnp.ones(I)
    (group,) = graph.hidden_groups
    old, (expected, new) = values(model), run(model, values(model), x)

    def step(h):
        given = {p: h[:, k] for k, p in enumerate(MET)}
        return jnp.stack([run(model, {**old, **given}, x)[1][p] for p in MET], -1)

    h = group.concat_hidden([old[p] for p in MET])
    np.testing.assert_array_equal(h, jnp.stack([old[p] for p in MET], -1))
    dense = jax.jacrev(step)(h)
    blocks = np.stack([dense[n, :, n, :] for n in range(H)])
    output, hidden, other, (_, (found,)) = executor.solve_h2w_h2h_jacobian(x)
    np.testing.assert_allclose(found, blocks, rtol=1e-10, atol=1e-12)
    temps = graph.module_info.jaxpr_call(x)[3]
    inputs = [temps[v] for v in group.transition_jaxpr_constvars]
    np.testing.assert_allclose(group.diagonal_jacobian([old[p] for p in MET], inputs), blocks, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(output, expected, rtol=1e-12)
    assert set(hidden) == {*MET, ("count",)} and set(other) == {("gain",)}
    for path, value in {**hidden, **other}.items():
        np.testing.assert_allclose(value, new[path], rtol=1e-12)
    moved = [p + k + 1 for k, p in enumerate(graph.hidden_perturb.init_perturb_data())]
    after = graph.call_hidden_perturb((x,), moved)[1]
    np.testing.assert_allclose(after["v",], new["v",] + 1, rtol=1e-12)
    np.testing.assert_allclose(after["m",], new["m",] + 0.2 + 2, rtol=1e-12)
    np.testing.assert_allclose(after["a",], new["a",] + 0.3 * 2.2 + 3, rtol=1e-12)


def test_given_state_values_follow_the_compiled_states(compiled):
    model, executor = compiled
    graph, x = executor.graph, jnp.ones(I)
    old = [s.value for s in graph.module_info.compiled_model_states]
    flat = jax.tree.leaves(((x,), old))
    p = graph.hidden_perturb.init_perturb_data()
    expected, _ = run(model, values(model), x)
    np.testing.assert_allclose(graph.hidden_perturb.eval_jaxpr(flat, p)[0], expected, rtol=1e-12)
    np.testing.assert_allclose(graph.call_hidden_perturb((x,), p, old)[0], expected, rtol=1e-12)


# States by path.


def test_states_can_be_filtered(compiled):
    model, executor = compiled
    for found in (executor.states, executor.path_to_states):
        assert isinstance(found, brainstate.util.FlattedDict)
        assert dict(found.filter(brainstate.ParamState)) == dict(model.states(brainstate.ParamState))
        assert dict(found.filter(brainstate.HiddenState)) == dict(model.states(brainstate.HiddenState))
        assert dict(found) == dict(model.states())
    assert isinstance(executor.graph.module_info.retrieved_model_states, brainstate.util.FlattedDict)


def test_states_outside_the_module_have_a_path():
    class Noisy(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.h = brainstate.HiddenState(jnp.zeros(H))

        def update(self, x):
            self.h.value = 0.9 * self.h.value + brainstate.random.normal(size=H) * x
            return self.h.value

    executor = etrax.ETraceGraphExecutor(Noisy())
    executor.compile_graph(1.0)
    for states in (executor.states, executor.path_to_states):
        outside = states.filter(brainstate.random.RandomState)
        assert list(outside.values()) == [brainstate.random.DEFAULT]
        assert set(states) == {("h",), *outside}
        assert executor.state_id_to_path[id(brainstate.random.DEFAULT)] == next(iter(outside))


def test_paths_by_id_are_kept_until_the_next_compile(compiled):
    model, executor = compiled
    first = executor.state_id_to_path
    assert executor.state_id_to_path is first and executor.states is executor.states
    model.v = brainstate.HiddenState(jnp.zeros(H))
    assert executor.state_id_to_path is first and id(model.v) not in first
    executor.compile_graph(jnp.ones(I))
    assert executor.state_id_to_path is not first and executor.state_id_to_path[id(model.v)] == ("v",)


@pytest.mark.parametrize(
    ("params", "hidden", "keys"),
    [
        (jnp.ones(H), jnp.zeros(H), [("params",), ("hidden",)]),
        ({"a": jnp.ones(H)}, {"a": jnp.zeros(H)}, [("params", "a"), ("hidden", "a")]),
        ({"w": jnp.ones(H), "a": jnp.ones(H)}, {"a": jnp.zeros(H)}, [("params", "a"), ("w",), ("hidden", "a")]),
        ([jnp.ones(H)], jnp.zeros(H), [(0,), ()]),
    ],
)
def test_a_parameter_and_a_state_of_one_path_are_two_states(params, hidden, keys):
    def step(p, h, x):
        new = jax.tree.map(lambda h: 0.9 * h + x * sum(jax.tree.leaves(p)), h)
        return new, jax.tree.leaves(new)[0]

    executor = etrax.ETraceGraphExecutor(step, params=params, hidden=hidden)
    executor.compile_graph(jnp.ones(H))
    leaves = [*jax.tree.leaves(params), *jax.tree.leaves(hidden)]
    assert list(executor.states) == keys
    assert all(a is b for a, b in zip(executor.states.values(), leaves, strict=True))
    assert executor.state_id_to_path == {id(v): k for k, v in zip(keys, leaves, strict=True)}
    expected = step(params, jax.tree.map(lambda h: h + 1, hidden), jnp.ones(H))[1]
    moved = {k: v + 1 if i >= len(jax.tree.leaves(params)) else v for i, (k, v) in enumerate(executor.states.items())}
    np.testing.assert_allclose(executor.solve_h2w_h2h_jacobian(jnp.ones(H), old_state_vals=moved)[0], expected)
    moved.pop(keys[0])
    with pytest.raises(ValueError, match="no value for state"):
        executor.solve_h2w_h2h_jacobian(jnp.ones(H), old_state_vals=moved)
    assert executor.show_graph(verbose=False, return_msg=True)


# One compile at a time.


def test_a_step_may_look_at_another_model():
    """Only a compile inside a compile is refused: reading the step of another model is not one."""
    inner = etrax.nn.GRUCell(I, H)
    brainstate.nn.init_all_states(inner)

    class Looks(Mixed):
        def update(self, x):
            assert etrax.extract_module_info(inner, jnp.ones(I)).num_var_out == 1
            return super().update(x)

    assert etrax.compile_etrace_graph(Looks(), jnp.ones(I)).hid_path_to_group["v",].hidden_paths == MET

    class Compiles(Mixed):
        def update(self, x):
            etrax.compile_etrace_graph(inner, jnp.ones(I))
            return super().update(x)

    assert etrax.extract_module_info(Compiles(), jnp.ones(I)).num_var_out == 1
    with pytest.raises(NotImplementedError, match="`compile_etrace_graph` was called while `compile_etrace_graph`"):
        etrax.compile_etrace_graph(Compiles(), jnp.ones(I))


@pytest.mark.parametrize("name", ["states", "path_to_states", "state_id_to_path", "graph"])
def test_nothing_before_compiling(name):
    executor = etrax.ETraceGraphExecutor(Mixed())
    with pytest.raises(ValueError, match="compile_graph"):
        getattr(executor, name)
    with pytest.raises(ValueError, match="compile_graph"):
        executor.show_graph()
    executor.compile_graph(jnp.ones(I))
    assert getattr(executor, name)


# Texts.


def test_show_graph_names_everything(compiled, capsys):
    _, executor = compiled
    text = executor.show_graph(return_msg=True)
    assert capsys.readouterr().out.strip() == text
    groups, dynamic, traced, alone = text.split("=" * 80)
    assert dynamic.strip().startswith("The dynamic (non-hidden) states are:")
    assert all(f"'{p[0]}'" in groups for p in MET)
    assert all(f"'{name}'" in dynamic for name in ("count", "idle", "gain", "clock"))
    assert "'weight' -> group 0" in traced
    assert "'readout'" in alone and "'idle_weight'" in alone and "'weight'" not in alone


def test_show_graph_names_each_weight_once():
    net, x = build(lambda: Net(etrax.nn.LSTMCell(I, H)), True)
    executor = etrax.ETraceGraphExecutor(net)
    executor.compile_graph(x)
    text = executor.show_graph(verbose=False, return_msg=True)
    paths = [".".join(path) for path in net.states(brainstate.ParamState)]
    assert all(text.count(f"'{path}'") == 1 for path in paths)
    assert "'cell.W.weight' (weight, bias) -> group 0" in text


def test_repr_shows_every_field():
    model, x = build(lambda: Net(etrax.nn.LSTMCell(I, H)), True)
    graph = etrax.compile_etrace_graph(model, x)
    records = [graph, graph.module_info, graph.hidden_groups[0], graph.hidden_param_op_relations[0]]
    for record in (*records, graph.hidden_perturb, graph.diagnostics[0]):
        text = repr(record)
        assert text.startswith(type(record).__name__ + "(")
        assert all(f"{field}=" in text for field in record._fields)
        assert len(text) < 5000 and "0x" not in text
    assert "'cell.h'" in repr(graph.hidden_groups[0]) and "'cell.W.weight" in repr(graph)


# Warnings.


def said(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, [w for w in caught if issubclass(w.category, etrax.CompilationWarning)]


@pytest.mark.parametrize("name", ["etrax GRU", "etrax RNN", "brainstate LSTM"])
def test_records_are_python_warnings(name):
    model, x = build(name, True)
    executor = etrax.ETraceGraphExecutor(model)
    for call in (lambda: etrax.compile_etrace_graph(model, x), lambda: executor.compile_graph(x) or executor.graph):
        graph, caught = said(call)
        expected = [r.message for r in graph.diagnostics if r.level is not etrax.DiagnosticLevel.INFO]
        assert expected and [str(w.message) for w in caught] == list(dict.fromkeys(expected))
        assert all(w.filename == __file__ for w in caught)


def test_a_graph_without_warnings_is_silent():
    graph, caught = said(lambda: etrax.compile_etrace_graph(Mixed(), jnp.ones(I)))
    assert not caught and all(r.level is etrax.DiagnosticLevel.INFO for r in graph.diagnostics)


def test_a_warning_made_an_error_leaves_nothing_behind():
    model, x = build("etrax GRU", True)
    before = values(model)
    with warnings.catch_warnings(), pytest.raises(etrax.CompilationWarning):
        warnings.simplefilter("error")
        etrax.compile_etrace_graph(model, x)
    assert values(model).keys() == before.keys()
    assert len(etrax.compile_etrace_graph(model, x).hidden_groups) == 1


# Relations to groups that are given.


def test_relations_to_given_groups():
    model, x = build(lambda: Net(etrax.nn.LSTMCell(I, H)), True)
    minfo = etrax.extract_module_info(model, x)
    groups, by_path = etrax.find_hidden_groups_from_minfo(minfo)
    found = etrax.find_hidden_param_op_relations_from_minfo(minfo=minfo, hid_path_to_group=by_path)
    assert [r.leaf_path for r in found] == [
        r.leaf_path for r in etrax.find_hidden_param_op_relations_from_module(model, x)
    ]
    assert all(g is groups[g.index] for r in found for g in r.hidden_groups)
    with pytest.raises(etrax.CompilationError, match=r"no group for hidden state 'cell.h'"):
        etrax.find_hidden_param_op_relations_from_minfo(minfo=minfo, hid_path_to_group={})
    _, others = etrax.find_hidden_groups_from_module(model, x)
    with pytest.raises(etrax.CompilationError, match="another step"):
        etrax.find_hidden_param_op_relations_from_minfo(minfo, others)


# Loops without reverse mode.


class Loops(brainstate.nn.Module):
    """dv: a neuron that relaxes until it is close enough, or another part with a `while_loop`."""

    def __init__(self, part):
        super().__init__()
        self.w = brainstate.ParamState(jnp.linspace(-1.0, 1.0, I * H).reshape(I, H))
        self.r = brainstate.ParamState(jnp.linspace(-1.0, 1.0, H * H).reshape(H, H))
        self.h = brainstate.HiddenState(jnp.linspace(0.1, 0.5, H))
        self.part = part

    def update(self, x):
        self.h.value = self.part(self, self.h.value, x @ self.w.value)
        return 2 * self.h.value


def until(h, body):
    return lax.while_loop(lambda c: jnp.abs(c).sum() < 5.0, body, h)


PARTS = {  # name -> (part, whether the op of `w` reaches one position each)
    "elementwise": (lambda m, h, y: until(h, lambda c: 1.5 * c + 0.1 * jnp.abs(y) + 0.1), True),
    "counted by data": (
        lambda m, h, y: lax.fori_loop(0, (y[0] > 0).astype(int) + 2, lambda i, c: 0.9 * c + y, h),
        True,
    ),
    "mixing": (lambda m, h, y: until(h + y, lambda c: jnp.roll(c, 1) + 1), False),
    "weight inside": (lambda m, h, y: until(h + y, lambda c: jnp.tanh(c @ m.r.value) + 1), False),
    "inside a loop": (
        lambda m, h, y: lax.scan(lambda c, _: (until(c, lambda c: c + 1), None), h + y, None, 2)[0],
        False,
    ),
    "inside another": (lambda m, h, y: until(h + y, lambda c: until(c, lambda d: d + 1)), False),
    "in a branch": (lambda m, h, y: lax.cond(y[0] > 0, lambda c: until(c, lambda d: d + 1), lambda c: c, h + y), False),
}


@pytest.mark.parametrize("name", list(PARTS))
def test_a_loop_can_be_looked_at(name):
    part, reaches = PARTS[name]
    model, x = Loops(part), jnp.ones(I)
    before = values(model)
    executor = etrax.ETraceGraphExecutor(model)
    _, caught = said(lambda: executor.compile_graph(x))
    graph = executor.graph
    (record,) = graph.explain(kind=etrax.DiagnosticKind.LOOP_WITHOUT_DERIVATIVE)
    assert "test_api.py" in record.message and record.message in [str(w.message) for w in caught]
    (group,) = graph.hidden_groups
    assert group.hidden_paths == [("h",)] and group.varshape == (H,) and group.is_diagonal_recurrence
    assert any(r.path == ("w",) for r in graph.hidden_param_op_relations) is reaches
    assert executor.show_graph(verbose=False, return_msg=True)
    expected, new = run(model, values(model), x)
    out, hidden, _, temps = graph.module_info.jaxpr_call(x)
    np.testing.assert_allclose(out, expected, rtol=1e-12)
    inputs = [temps[v] for v in group.transition_jaxpr_constvars]
    np.testing.assert_allclose(group.transition([model.h.value], inputs)[0], new["h",], rtol=1e-12)
    moved, after, *_ = graph.call_hidden_perturb((x,), [jnp.ones(H)])
    np.testing.assert_allclose(after["h",], hidden["h",] + 1, rtol=1e-12)
    np.testing.assert_allclose(moved, expected + 2, rtol=1e-12)
    for found in (etrax.find_hidden_groups_from_module, etrax.find_hidden_param_op_relations_from_module):
        assert found(model, x) is not None
    assert all(v is before[p] for p, v in values(model).items())


@pytest.mark.parametrize("name", list(PARTS))
def test_a_loop_is_refused_by_what_differentiates(name):
    model, x = Loops(PARTS[name][0]), jnp.ones(I)
    executor = etrax.ETraceGraphExecutor(model)
    executor.compile_graph(x)
    (group,) = executor.graph.hidden_groups
    temps = executor.graph.module_info.jaxpr_call(x)[3]
    inputs = [temps[v] for v in group.transition_jaxpr_constvars]
    refused = (
        lambda: etrax.compile(model, "d_rtrl", x),
        lambda: etrax.compile(model, "tbptt", x),
        lambda: group.diagonal_jacobian([model.h.value], inputs),
        lambda: executor.solve_h2w_h2h_jacobian(x),
        lambda: executor.solve_h2w_h2h_l2h_jacobian(x),
    )
    for call in refused:
        with pytest.raises(etrax.NotSupportedError, match="while_loop"):
            call()


def test_a_loop_that_no_gradient_passes_is_served():
    part = lambda m, h, y: 0.9 * h + y * until(lax.stop_gradient(h), lambda c: c + 1)
    model, x = Loops(part), jnp.ones(I)
    executor = etrax.ETraceGraphExecutor(model)
    executor.compile_graph(x)
    assert not executor.graph.explain(kind=etrax.DiagnosticKind.LOOP_WITHOUT_DERIVATIVE)
    *_, (_, (blocks,)) = executor.solve_h2w_h2h_jacobian(x)
    np.testing.assert_allclose(blocks, np.full((H, 1, 1), 0.9), rtol=1e-12)


# Plain functions.


def test_plain_functions():
    def step(p, s, x):
        v = 0.9 * s["v"] + x @ p["w"] - s["a"]
        return {"v": v, "a": 0.5 * s["a"] + v}, v

    p, s, x = {"w": jnp.ones((I, H))}, {"v": jnp.ones((B, H)), "a": jnp.zeros((B, H))}, jnp.ones((B, I))
    graph = etrax.compile_etrace_graph(step, x, params=p, hidden=s)
    (group,) = graph.hidden_groups
    assert group.hidden_paths == [("a",), ("v",)] == graph.hidden_perturb.perturb_hidden_paths
    out, _, _, temps = graph.module_info.jaxpr_call(x)
    np.testing.assert_array_equal(out, step(p, s, x)[1])
    np.testing.assert_array_equal(temps[group.hidden_invars[1]], s["v"])
    inputs = [temps[v] for v in group.transition_jaxpr_constvars]
    np.testing.assert_array_equal(jax.core.eval_jaxpr(group.transition_jaxpr, inputs, s["a"], s["v"])[1], out)
    np.testing.assert_array_equal(
        graph.call_hidden_perturb((x,), graph.hidden_perturb.init_perturb_data())[0], step(p, s, x)[1]
    )
    minfo = etrax.extract_module_info(step, x, params=p, hidden=s)
    _, by_path = etrax.find_hidden_groups_from_minfo(minfo)
    (relation,) = etrax.find_hidden_param_op_relations_from_minfo(minfo, by_path)
    assert relation.path == ("w",) and relation.hidden_groups[0] is by_path["v",]
    with pytest.raises(TypeError, match="params="):
        etrax.compile_etrace_graph(step, x)


def test_perturbations_that_do_not_fit_are_named():
    model = etrax.nn.LSTMCell(3, 4)
    brainstate.nn.init_all_states(model)
    graph = etrax.compile_etrace_graph(model, jnp.ones(3))
    zeros = graph.hidden_perturb.init_perturb_data()
    for shape in ((5,), (1,), (), (2, 4)):
        with pytest.raises(ValueError, match=r"the perturbation of 'c' has shape .* expected \[4\]"):
            graph.call_hidden_perturb((jnp.ones(3),), [zeros[0], jnp.ones(shape)])
    with pytest.raises(ValueError, match="got 1 inputs, expected"):
        graph.hidden_perturb.eval_jaxpr([jnp.ones(3)], zeros)
