"""Compiling: what it leaves behind, what it refuses, and what the graph says."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

brainstate = pytest.importorskip("brainstate")

from tests.graph.cells import CELLS, B, H, I, Net, build, values  # noqa: E402

import etrax.nn  # noqa: E402
from etrax import graph as api  # noqa: E402
from etrax._errors import CompilationError, NotSupportedError  # noqa: E402
from etrax.graph import (  # noqa: E402
    DiagnosticKind,
    DiagnosticLevel,
    ETraceGraphExecutor,
    HiddenGroup,
    MultiStepData,
    SingleStepData,
)


class Fails(brainstate.nn.Module):
    """A step that writes its state, then fails if told to; or that compiles `inner` on the way."""

    def __init__(self, inner=None, fail=True):
        super().__init__()
        self.w = brainstate.ParamState(jnp.ones((I, H)))
        self.h = brainstate.HiddenState(jnp.zeros(H))
        self.inner, self.fail, self.notes = inner, fail, {}

    def update(self, x):
        self.h.value = 0.9 * self.h.value + x @ self.w.value
        self.notes["seen"] = x
        if self.inner is not None:
            self.inner(x)
        if self.fail:
            raise RuntimeError("the model fails")
        return self.h.value


def structure(graph):
    """All that a graph says, without the objects it says it of."""
    info = graph.module_info
    return {
        "jaxpr": str(info.jaxpr),
        "groups": [
            (g.index, g.hidden_paths, g.varshape, g.num_state, str(g.transition_jaxpr)) for g in graph.hidden_groups
        ],
        "relations": [
            (
                r.path,
                r.leaf_path,
                r.primitive,
                r.op,
                [g.index for g in r.hidden_groups],
                [str(j) for j in r.y_to_hidden_group_jaxprs],
            )
            for r in graph.hidden_param_op_relations
        ],
        "perturb": (graph.hidden_perturb.perturb_hidden_paths, str(open_jaxpr_of(graph))),
        "diagnostics": [(r.kind, r.level, r.message, r.weight_path, r.hidden_paths) for r in graph.diagnostics],
        "repr": repr(graph),
    }


def open_jaxpr_of(graph):
    return graph.hidden_perturb.perturb_jaxpr


@pytest.mark.parametrize("name", list(CELLS))
def test_compiling_twice_gives_the_same(name):
    model, x = build(name, True)
    first, second = api.compile_etrace_graph(model, x), api.compile_etrace_graph(model, x)
    assert structure(first) == structure(second)
    again = api.compile_etrace_graph(build(name, True)[0], x)
    assert structure(first) == structure(again)


def test_two_threads_at_once():
    """Each thread is inside its compile while the other compiles."""
    meet, found, errors = threading.Barrier(2, timeout=60), {}, []

    def work(k):
        try:
            model = Fails(inner=lambda x: meet.wait(), fail=False)
            found[k] = api.compile_etrace_graph(model, jnp.ones(I))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert structure(found[0]) == structure(found[1])


def test_threads_share_the_random_state():
    class Noisy(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.h = brainstate.HiddenState(jnp.zeros(H))

        def update(self, x):
            self.h.value = 0.9 * self.h.value + brainstate.random.normal(size=H) * x
            return self.h.value

    brainstate.random.seed(3)
    key = brainstate.random.DEFAULT.value
    errors = []

    def work():
        try:
            for _ in range(3):
                api.extract_module_info(Noisy(), 1.0)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert jnp.array_equal(jax.random.key_data(brainstate.random.DEFAULT.value), jax.random.key_data(key))


def test_threads_share_a_model():
    model = etrax.nn.GRUCell(I, H)
    brainstate.nn.init_all_states(model)
    found, errors = {}, []

    def work(k):
        try:
            found[k] = api.compile_etrace_graph(model, jnp.ones(I))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert all(structure(found[0]) == structure(found[k]) for k in range(1, 4))


def test_a_thread_may_wait_for_one_that_compiles_a_part():
    """The step of a model waits for another thread, which compiles, runs and writes a submodule of that model."""
    part = etrax.nn.GRUCell(I, H)
    brainstate.nn.init_all_states(part)
    alone = api.compile_etrace_graph(part, jnp.ones(I))
    expected, found, errors = part(jnp.ones(I)), {}, []
    brainstate.nn.init_all_states(part)

    def elsewhere():
        try:
            found["graph"] = api.compile_etrace_graph(part, jnp.ones(I))
            found["learner"] = etrax.compile(part, "d_rtrl", jnp.ones(I))
            found["output"] = part(jnp.ones(I))
        except Exception as error:
            errors.append(error)

    def wait(x):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(timeout=120)
        assert not thread.is_alive(), "the other thread never returned"

    class Whole(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.part, self.waits = part, Fails(inner=None, fail=False)

        def update(self, x):
            y = self.part(x)
            if not found:
                wait(x)
            return y + self.waits(x)

    model = Whole()
    whole = api.compile_etrace_graph(model, jnp.ones(I))
    assert not errors
    assert structure(found["graph"]) == structure(alone)
    assert {("part", "h"), ("waits", "h")} == set(whole.hid_path_to_group)
    np.testing.assert_allclose(found["output"], expected, rtol=1e-12)
    np.testing.assert_allclose(part.h.value, expected, rtol=1e-12)  # what that thread wrote is not undone
    assert type(part.h) is brainstate.HiddenState


def test_two_threads_meet_states_outside_their_models():
    """Each model reads two states that are not its own, in opposite order, and waits in between."""
    a, b = brainstate.ShortTermState(jnp.ones(H)), brainstate.ShortTermState(2 * jnp.ones(H))
    meet, found, errors = threading.Barrier(2, timeout=60), {}, []

    class Reads(brainstate.nn.Module):
        def __init__(self, first, second):
            super().__init__()
            self.h = brainstate.HiddenState(jnp.zeros(H))
            self.read = lambda: (first.value, self.pause(), second.value)
            self.pause = lambda: None

        def update(self, x):
            first, _, second = self.read()
            self.h.value = 0.9 * self.h.value + x * first * second
            return self.h.value

    def work(k):
        try:
            model = Reads(*((a, b) if k else (b, a)))
            seen = []
            model.pause = lambda: seen.append(k) or (meet.wait() if len(seen) == 1 else None)
            found[k] = api.compile_etrace_graph(model, 1.0)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=120)
    assert not errors and set(found) == {0, 1}
    np.testing.assert_array_equal(a.value, jnp.ones(H))


def test_a_thread_that_runs_a_model_sees_its_true_values():
    """While another compiles it, and holds it in the middle of its step."""
    inside, done = threading.Event(), threading.Event()
    model = Fails(inner=lambda x: (inside.set(), done.wait(60)), fail=False)
    thread = threading.Thread(target=lambda: api.compile_etrace_graph(model, jnp.ones(I)))
    thread.start()
    assert inside.wait(60)
    seen = model.h.value
    model.h.value = jnp.full(H, 5.0)
    done.set()
    thread.join(timeout=120)
    assert not isinstance(seen, jax.core.Tracer)
    np.testing.assert_array_equal(seen, jnp.zeros(H))
    np.testing.assert_array_equal(model.h.value, jnp.full(H, 5.0))


def test_compile_inside_compile():
    other = etrax.nn.GRUCell(I, H)
    brainstate.nn.init_all_states(other)
    model = Fails(inner=lambda x: api.compile_etrace_graph(other, x), fail=False)
    with pytest.raises(NotImplementedError, match="this thread"):
        api.compile_etrace_graph(model, jnp.ones(I))
    model.inner = None
    assert len(api.compile_etrace_graph(model, jnp.ones(I)).hidden_groups) == 1


def test_a_failed_compile_leaves_nothing_behind():
    model = Fails()
    before = values(model)
    with pytest.raises(RuntimeError, match="the model fails"):
        api.compile_etrace_graph(model, jnp.ones(I))
    assert all(v is before[p] for p, v in values(model).items())
    assert model.notes == {}
    model.fail = False
    graph = api.compile_etrace_graph(model, jnp.ones(I))
    assert structure(graph) == structure(api.compile_etrace_graph(Fails(fail=False), jnp.ones(I)))
    assert model.notes == {}


def test_only_modules():
    for call in (
        api.compile_etrace_graph,
        api.extract_module_info,
        api.find_hidden_groups_from_module,
        ETraceGraphExecutor,
    ):
        with pytest.raises(TypeError, match="takes a module of brainstate"):
            call(lambda x: x)


def test_pieces_one_by_one():
    """The functions that give one part give what the whole graph holds."""
    model, x = build(lambda: Net(etrax.nn.LSTMCell(I, H)), True)
    graph = api.compile_etrace_graph(model, x)
    minfo = api.extract_module_info(model, x)
    groups, by_path = api.find_hidden_groups_from_minfo(minfo)
    same, _ = api.find_hidden_groups_from_module(model, x)
    assert (
        [g.hidden_paths for g in groups]
        == [g.hidden_paths for g in same]
        == [g.hidden_paths for g in graph.hidden_groups]
    )
    assert set(by_path) == {("cell", "c"), ("cell", "h")}
    relations = api.find_hidden_param_op_relations_from_minfo(minfo)
    assert [r.leaf_path for r in relations] == [r.leaf_path for r in graph.hidden_param_op_relations]
    assert [r.leaf_path for r in api.find_hidden_param_op_relations_from_module(model, x)] == [
        r.leaf_path for r in relations
    ]
    for p in (api.add_hidden_perturbation_from_minfo(minfo), api.add_hidden_perturbation_in_module(model, x)):
        assert p.perturb_hidden_paths == graph.hidden_perturb.perturb_hidden_paths
        assert p.perturb_hidden_states == [model.cell.h, model.cell.c]
    assert api.compile_etrace_graph(model, x, include_hidden_perturb=False).hidden_perturb is None


def test_module_info():
    model, x = build(lambda: Net(etrax.nn.LSTMCell(I, H)), True)
    info = api.extract_module_info(model, x)
    jaxpr = info.jaxpr
    assert info.num_var_out == 1 and info.num_var_state == 6
    assert jaxpr.invars[0].aval.shape == (B, I) and len(jaxpr.invars) == 1 + 6 and len(jaxpr.outvars) == 1 + 6
    assert info.retrieved_model_states.keys() == model.states().keys()
    assert set(map(id, info.compiled_model_states)) == set(map(id, model.states().values()))
    assert info.state_id_to_path == {id(s): p for p, s in model.states().items()}
    assert set(info.weight_path_to_invars) == {("cell", "W", "weight"), ("readout", "weight")}
    assert [info.invar_to_weight_path[v][0] for v in info.weight_invars] == ["cell", "cell", "readout", "readout"]
    for out, into in info.hidden_outvar_to_invar.items():
        assert info.outvar_to_hidden_path[out] == info.invar_to_hidden_path[into]
        assert info.hidden_path_to_invar[info.outvar_to_hidden_path[out]] is into
    middle = [e.outvars[0] for e in jaxpr.eqns[:3]]
    more = info.add_jaxpr_outs([*middle, middle[0]])
    assert list(more.jaxpr.outvars[-3:]) == middle and len(more.jaxpr.outvars) == 10
    outputs, hidden, other, temps = more.jaxpr_call(x)
    assert outputs.shape == (B, 5) and other == {} and set(hidden) == {("cell", "c"), ("cell", "h")}
    assert set(middle) <= set(temps)
    with pytest.raises(CompilationError, match="no variable"):
        info.add_jaxpr_outs([api.extract_module_info(model, x).jaxpr.eqns[0].outvars[0]])
    assert info.dict()["num_var_out"] == 1


def test_shapes_are_checked():
    model, x = build("etrax GRU", True)
    info = api.extract_module_info(model, x)
    with pytest.raises(CompilationError, match=r"\[5, 3\].*\[2, 3\]"):
        info.jaxpr_call(jnp.ones((5, I)))
    brainstate.nn.init_all_states(model, batch_size=5)
    with pytest.raises(CompilationError, match="'h'"):
        info.jaxpr_call(x)


def test_explain():
    model, x = build(lambda: Net(etrax.nn.GRUCell(I, H)), True)
    graph = api.compile_etrace_graph(model, x)
    assert graph.explain() == graph.diagnostics
    included = graph.explain(kind=DiagnosticKind.RELATION_INCLUDED)
    assert len(included) == len(graph.hidden_param_op_relations)
    assert all(r.level is DiagnosticLevel.INFO and r.hidden_paths == (("cell", "h"),) for r in included)
    assert all(r.context["group_indices"] == (0,) for r in included)
    (matrix, bias) = graph.explain(weight_path=("cell", "Wr", "weight"))
    assert matrix.kind is bias.kind is DiagnosticKind.RELATION_EXCLUDED_WEIGHT_TO_WEIGHT
    assert matrix.level is DiagnosticLevel.WARNING and matrix.primitive == "dot_general"
    assert "cell.Wh.weight" in matrix.message and ".py:" in matrix.message
    assert {r.kind for r in graph.explain(weight_path=("readout", "weight"))} == {
        DiagnosticKind.RELATION_EXCLUDED_NON_TEMPORAL
    }
    cut = graph.explain(hidden_path=("cell", "h"), kind=DiagnosticKind.RECURRENT_WEIGHT_CUT)
    assert cut and all(r.weight_path is None for r in cut)
    assert all(any(f"cell.{w}.weight" in r.message for r in cut) for w in ("Wz", "Wr", "Wh"))
    assert graph.explain(weight_path=("cell", "Wz", "weight"), hidden_path=("cell", "h")) == graph.explain(
        weight_path=("cell", "Wz", "weight")
    )
    assert graph.explain(weight_path="cell.Wr.weight") == (matrix, bias) and graph.explain(hidden_path="cell.h")
    assert graph.explain(weight_path="cell.Wr.weight.bias") == (bias,)
    assert repr(graph.explain(weight_path="cell.Wr.weight")) == f"{matrix}\n{bias}"
    assert graph.explain(weight_path=("nowhere",)) == () and graph.explain(hidden_path=("nowhere",)) == ()
    order = [graph.diagnostics.index(r) for r in cut]
    assert order == sorted(order)
    assert isinstance(DiagnosticKind.RELATION_INCLUDED, str)
    assert graph.dict()["hidden_groups"] == graph.hidden_groups
    assert str(graph).startswith("ETraceGraph of 1 hidden group") and len(str(graph)) < 1000


def test_layers_stay_apart():
    class Stack(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [etrax.nn.GRUCell(I, H), etrax.nn.LSTMCell(H, H)]

        def update(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    model, x = build(Stack, True)
    graph = api.compile_etrace_graph(model, x)
    assert [g.hidden_paths for g in graph.hidden_groups] == [
        [("layers", 0, "h")],
        [("layers", 1, "h"), ("layers", 1, "c")],
    ]
    assert [g.index for g in graph.hidden_groups] == [0, 1]
    assert graph.hid_path_to_group["layers", 1, "c"].index == 1


def test_inconsistent_shapes_are_refused():
    states = (brainstate.HiddenState(jnp.zeros(3)), brainstate.HiddenState(jnp.zeros(4)))
    group = HiddenGroup(0, (("a",), ("b",)), states, (), (), None, ())
    with pytest.raises(NotSupportedError, match=r"'a' \[3\], 'b' \[4\]"):
        group.check_consistent_varshape()
    fine = HiddenGroup(
        0, (("a",), ("b",)), (states[0], brainstate.HiddenGroupState(jnp.zeros((3, 2)))), (), (), None, ()
    )
    fine.check_consistent_varshape()
    assert fine.varshape == (3,) and fine.num_state == 3
    joined = fine.concat_hidden([jnp.arange(3.0), jnp.arange(6.0).reshape(3, 2)])
    np.testing.assert_array_equal(joined, [[0, 0, 1], [1, 2, 3], [2, 4, 5]])
    for a, b in zip(fine.split_hidden(joined), [jnp.arange(3.0), jnp.arange(6.0).reshape(3, 2)], strict=True):
        np.testing.assert_array_equal(a, b)
    assert fine.dict()["index"] == 0


def test_executor():
    model, x = build(lambda: Net(etrax.nn.GRUCell(I, H)), True)
    executor = ETraceGraphExecutor(model)
    with pytest.raises(ValueError, match="compile_graph"):
        _ = executor.graph
    executor.compile_graph(MultiStepData(jnp.stack([x] * 4)))
    assert executor.path_to_states == dict(model.states())
    assert executor.states.keys() == model.states().keys()
    first = executor.state_id_to_path
    assert first == {id(s): p for p, s in model.states().items()}
    text = executor.show_graph(verbose=False, return_msg=True)
    for part in (
        "0: 'cell.h'",
        "'cell.Wz.weight' (weight, bias) -> group 0",
        "'cell.Wr.weight' (relation_excluded",
        "'readout.weight'",
    ):
        assert part in text
    marked = executor.solve_h2w_h2h_jacobian(SingleStepData(x))
    np.testing.assert_array_equal(marked[0], executor.solve_h2w_h2h_jacobian(x)[0])
    with pytest.raises(TypeError, match="one step"):
        executor.solve_h2w_h2h_jacobian(MultiStepData(x))
    brainstate.nn.init_all_states(model)
    executor.compile_graph(x[0])
    assert executor.graph.hidden_groups[0].varshape == (H,)
    assert executor.state_id_to_path == {id(s): p for p, s in model.states().items()} != first


def test_show_graph_prints(capsys):
    model, x = build("etrax GRU", False)
    executor = ETraceGraphExecutor(model)
    executor.compile_graph(x)
    assert executor.show_graph() is None
    assert "The hidden groups are:" in capsys.readouterr().out
