"""Learners of braintrace: steps and windows against BPTT, states that are created or reset, signals of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax

from .leaky import XS, B, H, I, Leaky, T, assert_close, bptt, brainstate

from etrax.compat import braintrace  # isort: skip


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


@pytest.mark.parametrize("kind", [braintrace.D_RTRL, lambda model: braintrace.SnAp(model, n=2)], ids=["d", "snap"])
def test_the_executor_of_a_learner_has_jacobians(kind):
    """∂h'/∂h of leaky units is the leak, and ∂h'/∂w[i, j] is x[i] at unit j."""
    model = Leaky()
    brainstate.nn.init_all_states(model)
    learner = kind(model)
    learner.compile_graph(XS[0, 0])
    out, hidden, _, (h2w, h2h) = learner.graph_executor.solve_h2w_h2h_jacobian(XS[0, 0])
    np.testing.assert_allclose(h2h[0], np.full((H, 1, 1), model.leak))
    (of_w,) = [pieces for (path, *_), pieces in h2w.items() if path == ("w",)]
    np.testing.assert_allclose(of_w.dense(), np.broadcast_to(XS[0, 0][:, None, None], (I, H, 1)))
    np.testing.assert_allclose(hidden["h",], XS[0, 0] @ model.w.value)
    *_, pull = learner.graph_executor.solve_h2w_h2h_l2h_jacobian(XS[0, 0])
    want = (1 - jnp.tanh(hidden["h",]) ** 2) * model.out.value.sum(1)
    np.testing.assert_allclose(pull(jnp.ones_like(out))["h",], want)


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
