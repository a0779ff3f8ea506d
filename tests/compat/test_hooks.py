"""Methods of braintrace's algorithms that its users override: the gradients of a step can be changed, the rest is
refused when the class is made."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax

brainstate = pytest.importorskip("brainstate")
unit = pytest.importorskip("brainunit")
pytest.importorskip("braintools")
from etrax.compat import braintrace  # noqa: E402
from etrax.compat.braintrace._hooks import REFUSED  # noqa: E402

B, I, H, T = 2, 3, 4, 5
XS = np.random.RandomState(0).standard_normal((T, B, I))
START = {
    ("w",): {"in": np.random.RandomState(1).standard_normal((I, H)), "bias": np.linspace(-1, 1, H)},
    ("out",): np.random.RandomState(2).standard_normal((H, 2)),
}


class Leaky(brainstate.nn.Module):
    """Leaky units; D-RTRL is exact."""

    def __init__(self):
        super().__init__()
        self.w = brainstate.ParamState(jax.tree.map(jnp.asarray, START["w",]))
        self.out = brainstate.ParamState(jnp.asarray(START["out",]))

    def init_state(self, batch_size=None):
        self.h = brainstate.HiddenState(jnp.zeros((H,) if batch_size is None else (batch_size, H)))

    def update(self, x):
        self.h.value = 0.8 * self.h.value + x @ self.w.value["in"] + self.w.value["bias"]
        return jnp.tanh(self.h.value) @ self.out.value


class Clipped(braintrace.D_RTRL):
    """Gradients of a step with a norm of at most one."""

    def _solve_weight_gradients(self, index, traces, to_hidden, weights, to_plain, to_traced):
        grads = super()._solve_weight_gradients(index, traces, to_hidden, weights, to_plain, to_traced)
        return clipped(grads)


def clipped(grads):
    norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grads)))
    return jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), grads)


def loss_at(params, xs):
    """The loss of the last step of a sequence, through all of it."""

    def step(h, x):
        h = 0.8 * h + x @ params["w",]["in"] + params["w",]["bias"]
        return h, (jnp.tanh(h) @ params["out",]) ** 2

    return jax.lax.scan(step, jnp.zeros((xs.shape[1], H)), xs)[1][-1].sum()


def assert_close(found, want):
    assert set(found) == set(want)
    for a, b in zip(jax.tree.leaves(dict(found)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_changed_gradients_of_each_step_are_summed():
    learner = braintrace.compile(Leaky(), Clipped, XS[0], batch_size=B)
    found = learner.etrace_grad(XS, step_fn=lambda x: (learner(x) ** 2).sum(), reduction="sum")
    steps = [clipped(jax.grad(loss_at)(START, XS[: t + 1])) for t in range(T)]
    assert_close(found, jax.tree.map(lambda *g: sum(g), *steps))


def test_gradients_of_a_window_are_changed_together():
    learner = braintrace.compile(Leaky(), Clipped, XS[0], batch_size=B, vjp_method="multi-step")
    step = lambda x: (learner(braintrace.MultiStepData(x)) ** 2).sum((1, 2))
    found = learner.etrace_grad(XS[:4], step_fn=step, chunk_size=2, reduction="sum")
    steps = [jax.grad(loss_at)(START, XS[: t + 1]) for t in range(4)]
    windows = [clipped(jax.tree.map(jnp.add, *pair)) for pair in (steps[:2], steps[2:])]
    assert_close(found, jax.tree.map(jnp.add, *windows))


def test_a_mapped_learner_is_refused():
    with pytest.raises(etrax.NotSupportedError, match="vmap=False"):
        braintrace.compile(Leaky(), Clipped, XS[0], batch_size=B, vmap=True)


def test_the_hook_is_given_the_number_of_the_step_and_the_weights():
    class Decayed(braintrace.pp_prop):
        def _solve_weight_gradients(self, index, traces, to_hidden, weights, to_plain, to_traced):
            grads = super()._solve_weight_gradients(index, traces, to_hidden, weights, to_plain, to_traced)
            return jax.tree.map(lambda g, w: 0 * g + index * w, grads, weights)

    learner = braintrace.compile(Leaky(), Decayed, XS[0], batch_size=B, decay_or_rank=0.9)
    found = brainstate.transform.jit(
        lambda xs: learner.etrace_grad(xs, step_fn=lambda x: (learner(x) ** 2).sum(), reduction="sum")
    )(XS)
    assert_close(found, jax.tree.map(lambda w: sum(range(T)) * w, START))


def gradients_of(solve):
    kind = type("Own", (braintrace.D_RTRL,), {"_solve_weight_gradients": solve})
    learner = braintrace.compile(Leaky(), kind, XS[0], batch_size=B)
    return learner.etrace_grad(XS, step_fn=lambda x: (learner(x) ** 2).sum())


@pytest.mark.parametrize(
    "solve, error, match",
    [
        (lambda self, i, traces, *_: {k: 0 for k in traces}, etrax.NotSupportedError, "etrace_h2w_at_t"),
        (lambda self, i, traces, to_hidden, *_: to_hidden[0], etrax.NotSupportedError, "dl_to_hidden_groups"),
        (lambda self, *given: jax.tree.map(lambda a: a * 2, given[4]), etrax.NotSupportedError, "dl_to_nonetws"),
        (lambda self, *_: {("w",): START["w",]}, ValueError, "each of the parameters"),
        (lambda self, *_: None, ValueError, "NoneType"),
        (lambda self, *_: START | {("out",): jnp.ones(3)}, ValueError, r"\[\(3,\)\] for parameter"),
    ],
)
def test_what_the_hook_cannot_read_or_return_is_an_error(solve, error, match):
    with pytest.raises(error, match=match):
        gradients_of(solve)


@pytest.mark.parametrize("base", ["D_RTRL", "pp_prop", "UORO", "EProp", "ETraceVjpAlgorithm", "DNI"])
@pytest.mark.parametrize("name", REFUSED)
def test_other_hooks_are_refused_when_the_class_is_made(base, name):
    with pytest.raises(etrax.NotSupportedError, match=rf"`Own` has `{name}`.*own_rule"):
        type("Own", (getattr(braintrace, base),), {name: lambda self, *args: None})


def test_a_hook_from_another_base_class_is_refused():
    class Mixin:
        def _update_etrace_data(self, *args):
            return None

    with pytest.raises(etrax.NotSupportedError, match="_update_etrace_data"):
        type("Own", (Mixin, braintrace.D_RTRL), {})


def uncompiled(kind=braintrace.D_RTRL, **options):
    model = Leaky()
    brainstate.nn.init_all_states(model, batch_size=B)
    return kind(model, **options)


@pytest.mark.parametrize("name", REFUSED)
def test_a_hook_that_is_put_on_the_object_is_refused(name):
    """Before it is compiled and after; by whichever way, and in the words that a subclass is refused with."""
    learner = uncompiled()
    for _ in range(2):
        with pytest.raises(etrax.NotSupportedError, match=rf"`D_RTRL` has `{name}`.*own_rule"):
            setattr(learner, name, lambda *args: None)
        learner.compile_graph(XS[0])
    learner(XS[0])
    vars(learner)[name] = lambda *args: None
    with pytest.raises(etrax.NotSupportedError, match=rf"`D_RTRL` has `{name}`"):
        learner(XS[0])


def test_a_hook_that_is_put_on_the_class_later_is_refused(monkeypatch):
    learner = uncompiled()
    learner.compile_graph(XS[0])
    monkeypatch.setattr(braintrace.D_RTRL, "_update_etrace_data", lambda *args: None, raising=False)
    with pytest.raises(etrax.NotSupportedError, match="_update_etrace_data"):
        learner(XS[0])
    with pytest.raises(etrax.NotSupportedError, match="_update_etrace_data"):
        uncompiled().compile_graph(XS[0])


def test_gradients_that_an_object_changes_are_served():
    """As those of a subclass; the function may call that of the class."""
    learner = uncompiled()
    plain = learner._solve_weight_gradients
    learner._solve_weight_gradients = lambda *args: clipped(plain(*args))
    learner.compile_graph(XS[0])
    found = learner.etrace_grad(XS, step_fn=lambda x: (learner(x) ** 2).sum(), reduction="sum")
    steps = [clipped(jax.grad(loss_at)(START, XS[: t + 1])) for t in range(T)]
    assert_close(found, jax.tree.map(lambda *g: sum(g), *steps))


def test_gradients_that_are_changed_too_late_are_refused(monkeypatch):
    learner, other = uncompiled(), uncompiled()
    learner.compile_graph(XS[0])
    other.compile_graph(XS[0])
    learner._solve_weight_gradients = lambda *args: None
    with pytest.raises(etrax.NotSupportedError, match="after it was compiled"):
        learner(XS[0])
    other(XS[0])
    monkeypatch.setattr(braintrace.D_RTRL, "_solve_weight_gradients", lambda *args: None, raising=False)
    with pytest.raises(etrax.NotSupportedError, match="after it was compiled"):
        other(XS[0])


def test_hooks_of_a_mapped_learner_are_refused():
    learner = braintrace.compile(Leaky(), braintrace.D_RTRL, XS[0], batch_size=B, vmap=True)
    with pytest.raises(etrax.NotSupportedError, match="has `_update_etrace_data`"):
        learner._update_etrace_data = lambda *args: None
    with pytest.raises(etrax.NotSupportedError, match="vmap=False"):
        learner._solve_weight_gradients = lambda *args: None


def test_a_class_may_bring_a_rule_of_its_own():
    class Own(braintrace.D_RTRL):
        def rule(self):
            return etrax.tbptt()

    learner = braintrace.compile(Leaky(), Own, XS[0], batch_size=B)
    assert learner.online.learner.rule == etrax.tbptt()
