"""Programs written for braintrace: its names, its states' paths, and gradients that are right where its were not."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax

brainstate = pytest.importorskip("brainstate")
unit = pytest.importorskip("brainunit")
pytest.importorskip("braintools")
from etrax.compat import braintrace  # noqa: E402

B, I, H, T = 2, 3, 4, 6
XS = jnp.asarray(np.random.RandomState(0).standard_normal((T, B, I)))

NAMES = [
    "CompilationError", "CompilationRecord", "CompilationReport", "ControlFlowPolicy", "DNI", "D_RTRL",
    "DiagnosticKind", "DiagnosticLevel", "EProp", "ES_D_RTRL", "ETPPrimitive", "ETraceAlgorithm", "ETraceConfig",
    "ETraceGraph", "ETraceGraphExecutor", "ETraceVjpAlgorithm", "ETraceVjpGraphExecutor", "ETraceVmap",
    "EligibilityTrace", "FixedRandomFeedback", "GradExpon", "HiddenGroup", "HiddenParamOpRelation",
    "HiddenPerturbation", "IODimVjpAlgorithm", "KappaFilter", "ModuleInfo", "MultiStepData", "NotSupportedError",
    "OSTLFeedforward", "OSTLRecurrent", "ParamDimVjpAlgorithm", "RandomProjectionVjpAlgorithm", "SequenceDriverMixin",
    "SingleStepData", "SnAp", "SyntheticGradient", "ThreeFactor", "UORO", "__version__", "__version_info__",
    "add_hidden_perturbation_from_minfo", "add_hidden_perturbation_in_module", "compile", "compile_etrace_graph",
    "conv", "einsum", "element_wise", "embedding", "extract_module_info", "find_hidden_groups_from_minfo",
    "find_hidden_groups_from_module", "find_hidden_param_op_relations_from_minfo",
    "find_hidden_param_op_relations_from_module", "grouped_matmul", "lora_matmul", "matmul", "nn", "pp_prop",
    "register_primitive", "sparse_matmul", "train_synthetic_gradient",
]  # fmt: skip
KINDS = [
    "RELATION_INCLUDED", "RELATION_EXCLUDED_NO_PARAMSTATE", "RELATION_EXCLUDED_NON_TEMPORAL",
    "RELATION_EXCLUDED_SHAPE_MISMATCH", "RELATION_EXCLUDED_WEIGHT_TO_WEIGHT", "RELATION_PARTIAL_PATH",
    "TRAINABLE_INVAR_NOT_PARAMSTATE", "COND_IF_CONVERTED", "COND_CONVERSION_SKIPPED", "SCAN_UNROLLED",
    "SCAN_UNROLL_SKIPPED", "RELATION_EXCLUDED_SLICED_WEIGHT", "SCAN_DESCENT_APPLIED", "SCAN_DESCENT_SKIPPED",
    "SCAN_DESCENT_NO_RELATIONS", "WEIGHT_IN_WHILE", "CONTROL_FLOW_OPAQUE_FWD", "CONTROL_FLOW_RECURRENT_MIXING",
    "PRIMITIVE_INSIDE_NESTED_JIT", "PRIMITIVE_INSIDE_CONTROL_FLOW", "MULTI_OUTPUT_PRIMITIVE_DETECTED",
    "PYTREE_WEIGHT_LEAF_AMBIGUOUS", "SNAP_PATTERN_CONSERVATIVE", "SNAP_PATTERN_DEGENERATE", "TRANSITION_TAIL_BOUNDED",
    "HIDDEN_GROUP_MERGED", "STATE_MISMATCH", "WEIGHT_IN_CONTROL_FLOW",
]  # fmt: skip


def test_every_public_name_is_served():
    assert set(NAMES) <= set(braintrace.__all__)
    assert all(getattr(braintrace, name) is not None for name in braintrace.__all__)


def test_all_kinds_of_diagnostics_are_names():
    assert {braintrace.DiagnosticKind[name].value for name in KINDS} == {name.lower() for name in KINDS}


@pytest.mark.parametrize("name", ["MatMulOp", "ETraceParam", "FakeElemWiseParam"])
def test_names_of_old_versions_warn(name):
    with pytest.warns(DeprecationWarning, match=name):
        assert isinstance(getattr(braintrace, name), type)
    assert name in dir(braintrace) and name not in braintrace.__all__


# Cells: where their states are.

PATHS = {
    "ValinaRNNCell": (["W.weight"], ["h"]),
    "GRUCell": (["Wh.weight", "Wr.weight", "Wz.weight"], ["h"]),
    "MGUCell": (["Wf.weight", "Wh.weight"], ["h"]),
    "LSTMCell": (["Wf.weight", "Wg.weight", "Wi.weight", "Wo.weight"], ["c", "h"]),
    "URLSTMCell": (["Wf.weight", "Wo.weight", "Wr.weight", "Wu.weight", "bias"], ["c", "h"]),
    "MinimalRNNCell": (["W_u.weight", "phi.weight"], ["h"]),
    "MiniGRU": (["W_x.weight", "W_z.weight"], ["h"]),
    "MiniLSTM": (["W_f.weight", "W_i.weight", "W_x.weight"], ["h"]),
    "CFNCell": (["Wf.weight", "Wh.weight", "Wi.weight"], ["h"]),
    "LRUCell": (
        ["B_im.weight", "B_re.weight", "C_im.weight", "C_re.weight", "D", "gamma_log", "nu_log", "theta_log"],
        ["h_im", "h_re"],
    ),
}


@pytest.mark.parametrize("name", PATHS)
def test_cells_have_the_paths_of_braintrace(name):
    cell = getattr(braintrace.nn, name)(I, H)
    brainstate.nn.init_all_states(cell, batch_size=B)
    weights, hidden = PATHS[name]
    assert sorted(".".join(p) for p in cell.states(brainstate.ParamState)) == weights
    assert sorted(".".join(p) for p in cell.states(brainstate.HiddenState)) == hidden
    assert cell(XS[0]).shape == (B, I if name == "LRUCell" else H)
    for state in cell.states(brainstate.HiddenState).values():
        assert state.value.shape == (B, H)


def test_initialisers_go_by_position():
    ones, twos = (brainstate.nn.init.Constant(c) for c in (1.0, 2.0))
    cell = braintrace.nn.GRUCell(I, H, ones, twos)
    np.testing.assert_array_equal(cell.Wz.weight.value["weight"], np.ones((I + H, H)))
    np.testing.assert_array_equal(cell.Wz.weight.value["bias"], np.full(H, 2.0))
    rnn = braintrace.nn.ValinaRNNCell(I, H, twos, ones)
    rnn.init_state()
    np.testing.assert_array_equal(rnn.h.value, np.full(H, 2.0))


# Operations.


def test_operations_are_what_they_say():
    x, w, b = XS[0], jnp.arange(12.0).reshape(I, H), jnp.arange(4.0)
    matrix, row = np.asarray(w), np.asarray(x)
    cases = [
        (braintrace.matmul(x, w, b, weight_fn=jnp.abs), row @ np.abs(matrix) + np.arange(4)),
        (braintrace.einsum("bi, io -> bo", x, w), row @ matrix),
        (braintrace.element_wise(w, weight_fn=jnp.exp), np.exp(matrix)),
        (braintrace.embedding(jnp.array([2, 0]), w), matrix[[2, 0]]),
        (braintrace.lora_matmul(x, w, jnp.ones((H, 2)), alpha=0.5), 0.5 * row @ matrix @ np.ones((H, 2))),
        (braintrace.grouped_matmul(x[:, None], w[None]), (row @ matrix)[:, None]),
    ]
    for found, want in cases:
        np.testing.assert_allclose(found, want)
    image, kernel = jnp.arange(5.0)[None, :, None], jnp.ones((3, 1, 2))
    layout = ("NWC", "WIO", "NWC")
    found = braintrace.conv(image, kernel, jnp.array([0.0, 1.0]), dimension_numbers=layout)
    sums = np.convolve(np.arange(5.0), np.ones(3), "same")
    np.testing.assert_allclose(found[0], np.stack([sums, sums + 1], -1))


def test_operations_carry_units():
    found = braintrace.matmul(XS[0] * unit.mA, jnp.ones((I, H)) * unit.ohm, jnp.ones(H) * unit.volt)
    want = np.asarray(XS[0]).sum(-1, keepdims=True) + 1000 * np.ones(H)  # millivolts
    np.testing.assert_allclose(found.to_decimal(unit.mvolt), want)


@pytest.mark.parametrize(
    "call",
    [
        lambda: braintrace.matmul(jnp.ones((2, 2, 3)), jnp.ones((3, 4))),
        lambda: braintrace.einsum("bi,io", XS[0], jnp.ones((I, H))),
        lambda: braintrace.einsum("bi,bo->bo", XS[0], jnp.ones((B, H))),
        lambda: braintrace.embedding(jnp.ones(2), jnp.ones((3, 4))),
        lambda: braintrace.grouped_matmul(XS[0], jnp.ones((I, H))),
    ],
)
def test_operations_refuse_what_does_not_fit(call):
    with pytest.raises(etrax.EtraxError):
        call()


# Learning.


class Leaky(brainstate.nn.Module):
    """Leaky units: the influence of the input weight is known in closed form, and D-RTRL is exact."""

    def __init__(self, leak=0.8):
        super().__init__()
        self.leak = leak
        self.w = brainstate.ParamState(jnp.asarray(np.random.RandomState(1).standard_normal((I, H))))
        self.out = brainstate.ParamState(jnp.asarray(np.random.RandomState(2).standard_normal((H, 2))))

    def init_state(self, batch_size=None):
        self.h = brainstate.HiddenState(jnp.zeros((H,) if batch_size is None else (batch_size, H)))

    def reset_state(self, batch_size=None):
        self.h.value = jnp.zeros((H,) if batch_size is None else (batch_size, H))

    def update(self, x):
        self.h.value = self.leak * self.h.value + x @ self.w.value
        return jnp.tanh(self.h.value) @ self.out.value


def bptt(xs):
    """Gradients of the sum of squared outputs over a sequence, by reverse mode through all of it."""
    net = Leaky()

    def loss(params):
        def step(h, x):
            h = net.leak * h + x @ params["w",]
            return h, (jnp.tanh(h) @ params["out",]) ** 2

        return jax.lax.scan(step, jnp.zeros((*xs.shape[1:-1], H)), xs)[1].sum()

    return jax.grad(loss)({("w",): net.w.value, ("out",): net.out.value})


def assert_close(found, want):
    assert set(found) == set(want)
    for path in want:
        np.testing.assert_allclose(found[path], want[path], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"vmap": True}], ids=["batched", "vmapped"])
def test_steps_of_a_learner_sum_to_bptt(options):
    learner = braintrace.compile(Leaky(), "D_RTRL", XS[0], batch_size=B, **options)
    grads, losses = learner.etrace_grad(
        XS, step_fn=lambda x: (learner(x) ** 2).sum(), reduction="sum", return_value=True
    )
    assert losses.shape == (T,)
    assert_close(grads, bptt(XS))


def test_windows_of_a_learner_sum_to_bptt():
    learner = braintrace.compile(Leaky(), braintrace.D_RTRL, XS[0], batch_size=B, vjp_method="multi-step")
    step = lambda x: (learner(braintrace.MultiStepData(x)) ** 2).sum((1, 2))
    assert_close(learner.etrace_grad(XS, step_fn=step, chunk_size=3, reduction="sum"), bptt(XS))
    assert int(learner.running_index.value) == 2
    single = braintrace.compile(Leaky(), "D_RTRL", XS[0], batch_size=B)
    with pytest.raises(ValueError, match="multi-step"):
        single.etrace_grad(XS, step_fn=step, chunk_size=3)


def test_plain_operations_have_traces_too():
    """There a weight that is used by a plain product has no trace, and its gradient misses all that came before."""
    model = Leaky()
    learner = braintrace.compile(model, "D_RTRL", XS[0], batch_size=B)
    assert [path for path, _ in learner.report.etrace_weights] == [("w",)]
    assert dict(learner.report.excluded_weights)["out",] == "relation_excluded_non_temporal"
    learner(XS[0])
    assert learner.get_etrace_of(model.out) == {}
    ((key, trace),) = learner.get_etrace_of(model.w).items()
    assert key == (("w",), 0)
    (trace,) = trace.values()
    np.testing.assert_allclose(trace, np.broadcast_to(XS[0][:, :, None], trace.shape))


def test_states_of_another_batch_size_are_met_by_new_traces():
    model = Leaky()
    learner = braintrace.compile(model, "D_RTRL", XS[0], batch_size=B)
    brainstate.nn.init_all_states(model, batch_size=1)
    grads = learner.etrace_grad(XS[:, :1], step_fn=lambda x: (learner(x) ** 2).sum(), reduction="sum")
    assert_close(grads, bptt(XS[:, :1]))
    brainstate.nn.init_all_states(model, batch_size=B)
    with pytest.raises(etrax.CompilationError, match="init_etrace_state"):
        brainstate.transform.for_loop(learner, XS)
    learner.init_etrace_state()
    assert brainstate.transform.for_loop(learner, XS).shape == (T, B, 2)


def test_compiling_inside_jit_reads_the_weights_of_now():
    model = Leaky()

    @brainstate.transform.jit
    def run(xs):
        learner = braintrace.compile(model, "D_RTRL", xs[0], batch_size=B)
        return learner.etrace_grad(xs, step_fn=lambda x: (learner(x) ** 2).sum(), reduction="sum")

    run(XS)
    twice = Leaky().w.value * 2
    model.w.value = twice
    want = jax.grad(lambda w: _loss_of(w, model.out.value))(twice)
    np.testing.assert_allclose(run(XS)["w",], want, rtol=1e-10)


def _loss_of(w, out):
    def step(h, x):
        h = 0.8 * h + x @ w
        return h, (jnp.tanh(h) @ out) ** 2

    return jax.lax.scan(step, jnp.zeros((B, H)), XS)[1].sum()


def test_a_modulator_takes_the_place_of_the_gradient():
    model = Leaky()
    learner = braintrace.compile(model, "three_factor", XS[0], batch_size=B)
    with pytest.raises(RuntimeError, match="modulator"):
        learner(XS[0])
    eligibility = np.zeros((B, I, 1))
    for t in range(3):
        grads = brainstate.transform.grad(lambda x: (learner.update(x, modulator=0.5) ** 2).sum(), learner.param_states)
        found = grads(XS[t])["w",]
        eligibility = model.leak * eligibility + np.asarray(XS[t])[:, :, None]
        np.testing.assert_allclose(found, (0.5 * eligibility * slope(model)).sum(0), rtol=1e-10)


def slope(model):
    """∂tanh(h)/∂h: the activity that the step shows of its state is tanh(h)."""
    return np.asarray(1 - jnp.tanh(model.h.value) ** 2)[:, None, :]


def test_rules_that_need_the_loss_are_refused_by_the_stateful_style():
    model = Leaky()
    brainstate.nn.init_all_states(model, batch_size=B)
    for rule in (etrax.three_factor(), etrax.synthetic(), etrax.e_prop(feedback="adaptive", key=0)):
        with pytest.raises(etrax.NotSupportedError, match="loss"):
            etrax.Stateful(model, rule, XS[0])


def test_a_synthesizer_is_trained_to_what_windows_find():
    learner = braintrace.compile(Leaky(), "dni", XS[0], batch_size=B)
    with pytest.raises(RuntimeError, match="synthesizer"):
        learner(XS[0])
    with pytest.warns(UserWarning, match="changes no gradient"):
        learner.attach_synthesizer(braintrace.SyntheticGradient(learner.group_signal_shapes()))
    errors = braintrace.train_synthetic_gradient(learner, XS, chunk_size=2, lr=0.05, epochs=8)
    assert errors[-1] < errors[0]


def test_a_synthesizer_acts_on_weights_without_a_trace_alone():
    """The reset gate of a GRU has none. A loss that reads the last step only owes the weights of a window all that an
    exact estimate says; weights with a trace would have it twice."""
    grads = {}
    for scale in (0.0, 0.3):
        brainstate.random.seed(0)
        learner = braintrace.compile(braintrace.nn.GRUCell(I, H), "dni", XS[0], batch_size=B)
        shapes = learner.group_signal_shapes()
        learner.attach_synthesizer(braintrace.SyntheticGradient(shapes, scale=scale))  # a warning is an error
        step = lambda x, learner=learner: (learner(braintrace.MultiStepData(x)) ** 2).sum((1, 2))
        grads[scale] = learner.etrace_grad(XS, step_fn=step, chunk_size=2, reduction="sum")
    changed = {path for path in grads[0.0] if not np.allclose(
        jax.flatten_util.ravel_pytree(grads[0.0][path])[0], jax.flatten_util.ravel_pytree(grads[0.3][path])[0]
    )}  # fmt: skip
    assert changed == {("Wr", "weight")}


def test_another_algorithm_is_named_by_its_coordinates():
    by_name = {
        "pp_prop": {"decay_or_rank": 0.9},
        "eprop": {"kappa_filter_decay": 0.5},
        "ostl_recurrent": {},
        "ostl_feedforward": {},
        "uoro": {},
    }
    for name, options in by_name.items():
        learner = braintrace.compile(Leaky(), name, XS[0], batch_size=B, **options)
        again = braintrace.compile(Leaky(), learner.config, XS[0], batch_size=B)
        assert again.online.learner.rule == learner.online.learner.rule
    snap = braintrace.compile(Leaky(), braintrace.SnAp, XS[0], batch_size=B, n=3)
    assert str(snap.online.learner.rule) == "snap(n=3)"


@pytest.mark.parametrize("rank, decay", [(0.9, 0.9), (1, 0.0), (19, 0.9)])
def test_a_rank_is_a_decay(rank, decay):
    model = Leaky()
    brainstate.nn.init_all_states(model, batch_size=B)
    assert braintrace.pp_prop(model, decay_or_rank=rank).decay == pytest.approx(decay)


CONFIGS = [
    ({"decay": 0.9}, "silently ignored"),
    ({"temporal_recursion": "scalar_leak"}, "decay is required"),
    ({"trace_filter": "kappa"}, "`kappa` is required"),
    ({"kappa": 0.5}, "no category"),
    ({"recurrence_scope": "sparse_n", "sparse_n": 0}, "at least 1"),
    ({"trace_factorization": "random_projection"}, "requires recurrence_scope='coupled'"),
    ({"update_schedule": "sequence_end"}, "not implemented"),
    ({"learning_signal": "feedback"}, "not a known value"),
]


@pytest.mark.parametrize("fields, message", CONFIGS)
def test_coordinates_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        braintrace.ETraceConfig(**fields)


def test_a_rule_has_one_spelling():
    config = braintrace.ETraceConfig(trace_factorization="io_factorized", decay=0.9)
    assert config.decay == (0.9, 0.9) and config.recursion_x == "scalar_leak"
    assert dataclasses.replace(config) == config
    assert braintrace.ETraceConfig(recurrence_scope="sparse_n", sparse_n=1).recurrence_scope == "coupled"


@pytest.mark.parametrize(
    "options, error",
    [
        ({"algorithm": "ostl"}, ValueError),
        ({"algorithm": dict}, TypeError),
        ({"inputs": ()}, ValueError),
        ({"verbose": 3}, ValueError),
        ({"batch_size": -1}, etrax.ArgumentError),
        ({"vmap": True, "batch_size": None}, ValueError),
        ({"algorithm": "pp_prop"}, TypeError),
    ],
)
def test_bad_calls_of_compile(options, error):
    given = {"algorithm": "D_RTRL", "inputs": (XS[0],), "batch_size": B} | options
    algorithm, inputs = given.pop("algorithm"), given.pop("inputs")
    with pytest.raises(error):
        braintrace.compile(Leaky(), algorithm, *inputs, **given)


def test_seed_and_verbose(capsys):
    before = brainstate.random.DEFAULT.value
    braintrace.compile(Leaky(), "D_RTRL", XS[0], batch_size=B, seed=3, verbose=2)
    assert str(before) == str(brainstate.random.DEFAULT.value)
    assert "The hidden groups are:\n\n   Group 0: [('h',)]" in capsys.readouterr().out


def test_the_report_names_each_weight_once():
    cell = braintrace.nn.LSTMCell(3, 4)
    brainstate.nn.init_all_states(cell)
    executor = braintrace.ETraceGraphExecutor(cell)
    executor.compile_graph(jnp.ones(3))
    report = braintrace.CompilationReport(executor.graph)
    weights = list(cell.states(brainstate.ParamState))
    assert sorted(path for path, _ in report.etrace_weights) == sorted(weights)
    text = executor.show_graph(verbose=False, return_msg=True)
    assert text == report.to_str()
    assert all(text.count(str(path)) == 1 for path in weights) and text.count("(weight, bias)") == len(weights)
    parts = text.split("=" * 80)
    assert [part.strip().partition(":")[0] for part in parts if part.strip()] == [
        "The hidden groups are",
        "The weight parameters which are associated with the hidden states are",
    ]


def test_tools():
    total = braintrace.GradExpon({"a": jnp.zeros(2)}, 0.5)
    for _ in range(2):
        total.update({"a": jnp.ones(2)})
    np.testing.assert_allclose(total.gradients.value["a"], [1.5, 1.5])
    low = braintrace.KappaFilter(jnp.zeros(1), 0.8)
    low.update(jnp.ones(1))
    np.testing.assert_allclose(low.update(jnp.ones(1)), [0.36])
    fixed = braintrace.FixedRandomFeedback(2, 3, jax.random.PRNGKey(0))
    np.testing.assert_allclose(fixed.project(jnp.eye(2)), fixed.B)


def test_records_are_found_by_the_peers_kinds():
    graph = braintrace.compile(Leaky(), "D_RTRL", XS[0], batch_size=B).graph
    kinds = braintrace.DiagnosticKind
    assert [r.weight_path for r in graph.explain(kind=kinds.RELATION_INCLUDED)] == [("w",)]
    assert [r.weight_path for r in graph.diagnostics if r.kind is kinds.RELATION_INCLUDED] == [("w",)]
    assert all(r.level is braintrace.DiagnosticLevel[r.level.name] for r in graph.diagnostics)
    assert graph.explain(kind=kinds.COND_IF_CONVERTED) == ()


def test_an_operation_is_shown_where_the_model_calls_it():
    class Marked(Leaky):
        def update(self, x):
            self.h.value = self.leak * self.h.value + braintrace.matmul(x, self.w.value)
            return self.h.value

    (line,) = braintrace.compile(Marked(), "D_RTRL", XS[0], batch_size=B).graph.explain(weight_path="w")
    assert "test_braintrace.py" in line.message and "(update)" in line.message


MAPPED_RESETS = ["batched", "compiled", "wrapped", "wrapped and jitted"]


@pytest.mark.parametrize("how", MAPPED_RESETS)
@pytest.mark.parametrize("kind", [braintrace.D_RTRL, lambda model: braintrace.ES_D_RTRL(model, 0.9)], ids=["d", "pp"])
def test_states_and_traces_are_reset_inside_a_vmap(how, kind):
    """`reset_all_states` over the states of a batch, for a learner of the batch and for one of a sample."""
    model = Leaky()
    if how == "batched":
        brainstate.nn.vmap_init_all_states(model, axis_size=B, state_tag="new")
        learner = run = kind(model)
        learner.compile_graph(XS[0])
    elif how == "compiled":
        run = learner = braintrace.compile(model, "D_RTRL", XS[0], batch_size=B, vmap=True)
    else:
        learner = kind(model)

        @brainstate.transform.vmap_new_states(state_tag="new", axis_size=B)
        def create():
            brainstate.nn.init_all_states(model)
            learner.compile_graph(XS[0, 0])

        create()
        run = learner = brainstate.nn.Vmap(learner, vmap_states="new")

    @brainstate.transform.vmap(in_states=learner.states("new"), axis_size=B)
    def reset():
        brainstate.nn.reset_all_states(learner)

    reset = brainstate.transform.jit(reset) if how.endswith("jitted") else reset

    def gradients():
        total = jax.tree.map(jnp.zeros_like, {p: s.value for p, s in model.states(brainstate.ParamState).items()})
        for x in XS[:3]:
            grad = brainstate.transform.grad(lambda x: (run(x) ** 2).sum(), model.states(brainstate.ParamState))(x)
            total = {path: total[path] + grad[path] for path in total}
        return total

    first = gradients()
    reset()
    np.testing.assert_array_equal(model.h.value, np.zeros((B, H)))
    assert_close(gradients(), first)
    if kind is braintrace.D_RTRL:
        assert_close(first, bptt(XS[:3]))


def test_orders_that_no_compiler_could_serve_are_refused():
    model = Leaky()
    brainstate.nn.init_all_states(model, batch_size=B)
    for order, error in ((True, TypeError), (1.5, TypeError), (0, ValueError), (2, etrax.NotSupportedError)):
        with pytest.raises(error, match="sparse_n"):
            braintrace.compile_etrace_graph(model, XS[0], sparse_n=order)


def test_a_class_refuses_the_coordinates_of_another():
    whole = braintrace.ETraceConfig(trace_factorization="random_projection", recurrence_scope="coupled")
    pair = braintrace.ETraceConfig(trace_factorization="io_factorized", decay=(0.9, 0.5))
    for make in (
        lambda: braintrace.ParamDimVjpAlgorithm(Leaky(), config=pair),
        lambda: braintrace.IODimVjpAlgorithm(Leaky(), 0.9, config=whole),
        lambda: braintrace.RandomProjectionVjpAlgorithm(Leaky(), config=braintrace.ETraceConfig()),
    ):
        with pytest.raises(ValueError, match="trace_factorization"):
            make()
    one, two = braintrace.pp_prop(Leaky(), 0.9), braintrace.IODimVjpAlgorithm(Leaky(), 0.9, config=pair)
    assert (one.decay, one.decay_x, one.decay_f) == (0.9, 0.9, 0.9)
    assert (two.decay_x, two.decay_f) == (0.9, 0.5)
    with pytest.raises(AttributeError, match="asymmetric"):
        two.decay


def test_arguments_without_effect_warn():
    """They steer rewrites of that library's own compiler; left at their defaults they say nothing."""
    model = Leaky()
    brainstate.nn.init_all_states(model, batch_size=B)
    policy = braintrace.ControlFlowPolicy(scan_unroll_limit=4)
    info = braintrace.extract_module_info(model, XS[0])
    calls = {
        "include_recurrent_mixing": lambda **k: braintrace.compile_etrace_graph(model, XS[0], **k),
        "sparse_n": lambda **k: braintrace.compile_etrace_graph(model, XS[0], **k),
        "snap_max_jacobian_elements": lambda **k: braintrace.D_RTRL(model, **k),
        "control_flow": lambda **k: braintrace.pp_prop(model, 0.9, **k),
        "descended_hidden_paths": lambda **k: braintrace.find_hidden_groups_from_minfo(info, **k),
        "full_jacobian": lambda **k: braintrace.ETraceVjpGraphExecutor(model, **k),
        "projection_eps": lambda **k: braintrace.UORO(model, **k),
    }
    other = {"include_recurrent_mixing": True, "sparse_n": 2, "snap_max_jacobian_elements": 9, "control_flow": policy}
    other |= {"descended_hidden_paths": {("h",)}, "full_jacobian": True, "projection_eps": 0.1}
    default = {"control_flow": braintrace.ControlFlowPolicy(), "descended_hidden_paths": set(), "sparse_n": None}
    default |= {"snap_max_jacobian_elements": 2**24, "projection_eps": 1e-12, "full_jacobian": False}
    for name, call in calls.items():
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            call(**{name: other[name]}, **({"include_recurrent_mixing": True} if name == "sparse_n" else {}))
        said = [str(warning.message) for warning in seen]
        assert len(said) == 1 + (name == "sparse_n")
        assert any(text.startswith(f"`{name}=") and "has no effect in Etrax" in text for text in said)
        call(**{name: default.get(name, False)})  # a warning is an error
