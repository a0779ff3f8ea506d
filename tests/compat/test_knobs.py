"""Arguments of braintrace that have no effect here warn, and those that no compiler could serve are refused."""

import warnings

import jax.numpy as jnp
import pytest

import etrax

from .leaky import XS, B, Leaky, assert_close, bptt, brainstate

from etrax.compat import braintrace  # isort: skip


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
        _ = two.decay


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


def test_rules_of_an_operation_warn_that_they_are_not_used():
    """The derivative is that of the implementation, whatever the rules say."""
    double = braintrace.register_primitive("double", lambda x, w: 2 * x @ w, x_invar_index=0)
    with pytest.warns(UserWarning, match="rules of 'double' are not used"):
        double.register_xy_to_dw(lambda x, y, w, **_: jnp.zeros_like(w))
    double.register_dt_to_t(lambda h, trace, **_: trace)  # said once

    class Net(Leaky):
        def update(self, x):
            self.h.value = self.leak * self.h.value + double.bind(x, self.w.value / 2)
            return jnp.tanh(self.h.value) @ self.out.value

    learner = braintrace.compile(Net(), "D_RTRL", XS[0], batch_size=B)
    assert_close(learner.etrace_grad(XS, step_fn=lambda x: (learner(x) ** 2).sum(), reduction="sum"), bptt(XS))
