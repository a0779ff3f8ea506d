"""Programs written for braintrace: its names, its states' paths, and gradients that are right where its were not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax

from .leaky import XS, B, H, I, Leaky, brainstate

from etrax.compat import braintrace  # isort: skip

unit = pytest.importorskip("brainunit")

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


# Rules and reports.


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
