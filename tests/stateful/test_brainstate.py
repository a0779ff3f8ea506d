"""The stateful style: what brainstate's own transformations give is the online gradient of the pure learner."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import etrax

brainstate = pytest.importorskip("brainstate")
unit = pytest.importorskip("brainunit")

B, I, H, T = 2, 3, 4, 6
XS = jnp.asarray(np.random.RandomState(0).standard_normal((T, B, I)))
MASK = jnp.asarray([1.0, 0.0, 2.0, 1.0, 1.0, 0.5])


class Layer(brainstate.nn.Module):
    """A recurrent layer in millivolts, with a readout."""

    def __init__(self):
        super().__init__()
        rng = np.random.RandomState(1)
        self.w = brainstate.ParamState({"in": jnp.asarray(rng.standard_normal((I, H))) * unit.mV})
        self.r = brainstate.ParamState(jnp.asarray(rng.standard_normal((H, H)) * 0.3))
        self.out = brainstate.ParamState(jnp.asarray(rng.standard_normal((H, 2))))

    def init_state(self, batch_size=B):
        self.v = brainstate.HiddenState(jnp.zeros((batch_size, H)) * unit.mV)
        self.seen = brainstate.ShortTermState(jnp.zeros((), int))

    def update(self, x):
        back = jnp.tanh(self.v.value / unit.mV) @ self.r.value
        self.v.value = 0.8 * self.v.value + x @ self.w.value["in"] + back * unit.mV
        self.seen.value = self.seen.value + 1
        return (self.v.value / unit.mV) @ self.out.value


def made(rule="d_rtrl"):
    module = Layer()
    module.init_state()
    return module, etrax.Stateful(module, rule, XS[0])


def square(output):
    return (output**2).mean()


def pure(rule, window, mask=None, reduction="mean"):
    """Loss and gradients by path, by the functions of the learner beneath."""
    module = Layer()
    module.init_state()
    learner = etrax.compile(module, rule, XS[0])
    run = learner.value_and_grad(lambda o, _: square(o), window=window, reduction=reduction)
    (loss, grads), state = run(learner.params, learner.init(), XS, None, mask)
    return loss, grads, state


def assert_same(grads, want):
    found = {"w": {"in": grads["w",]["in"].mantissa}, "r": grads["r",], "out": grads["out",]}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14), found, dict(want))


@pytest.mark.parametrize("rule", ["d_rtrl", "pp_prop", "rtrl", "tbptt"])
@pytest.mark.filterwarnings("ignore::etrax.RuleWarning")
def test_gradient_of_a_sequence(rule):
    module, online = made(rule)
    weights = module.states(brainstate.ParamState)
    run = brainstate.transform.jit(
        lambda xs: online.etrace_grad(xs, step_fn=lambda x: square(online(x)), return_value=True, loss_output="scalar")
    )
    grads, loss = run(XS)
    want_loss, want, state = pure(rule, 1)
    assert grads.keys() == weights.keys()
    assert_same(grads, want)
    np.testing.assert_allclose(loss, want_loss, rtol=1e-12)
    np.testing.assert_allclose(module.v.value / unit.mV, state.hidden["v"], rtol=1e-12)
    assert int(module.seen.value) == T
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), online.trace.value, state.trace)


def test_windows_masks_and_what_is_returned():
    module, online = made()
    step_fn = lambda xs: (jax.vmap(square)(online(etrax.MultiStepData(xs))), xs.sum())
    grads, losses, aux = online.etrace_grad(
        XS, step_fn=step_fn, chunk_size=3, mask=MASK, has_aux=True, return_value=True, loss_output="masked"
    )
    loss, want, _ = pure("d_rtrl", 3, MASK)
    assert_same(grads, want)
    np.testing.assert_allclose(losses.sum() / MASK.sum(), loss, rtol=1e-12)
    assert losses.shape == (T,) and aux.shape == (2,)
    module.init_state()
    online.reset_state()
    grads = online.etrace_grad(XS, step_fn=lambda x: square(online(x)), reduction="sum", weights={("r",): module.r})
    assert grads.keys() == {("r",)}
    np.testing.assert_allclose(grads["r",], pure("d_rtrl", 1, reduction="sum")[1]["r"], rtol=1e-10)


def test_grad_around_a_loop():
    """A loop inside `grad` keeps nothing of its steps but what they sum: the online gradient again."""
    module, online = made()

    def total(xs):
        return brainstate.transform.for_loop(lambda x: square(online(x)), xs).mean()

    grads = brainstate.transform.grad(total, module.states(brainstate.ParamState))(XS)
    assert_same(grads, pure("d_rtrl", 1)[1])


def test_learning_as_brainstate_users_write_it():
    """Compiled inside `jit`, with updates at every step: the weights of now are read, and the loss falls."""
    module = Layer()
    module.init_state()
    weights, optimizer = module.states(brainstate.ParamState), optax.sgd(0.01)
    start = {k: s.value for k, s in weights.items()}
    opt_state = brainstate.ShortTermState(optimizer.init(start))

    @brainstate.transform.jit
    def epoch(xs):
        module.init_state()
        online = etrax.Stateful(module, "d_rtrl", xs[0])

        def step(x):
            grads, loss = brainstate.transform.grad(lambda: square(online(x) - 1), weights, return_value=True)()
            updates, opt_state.value = optimizer.update(grads, opt_state.value)
            for path, state in weights.items():
                state.value = jax.tree.map(jnp.add, state.value, updates[path])
            return loss

        return brainstate.transform.for_loop(step, xs)

    losses = [float(epoch(XS).mean()) for _ in range(40)]
    assert losses[-1] < 0.6 * losses[0]


def test_evolve():
    module, online = made()
    outs = online.etrace_evolve(XS, return_outputs=True)
    twin = Layer()
    twin.init_state()
    np.testing.assert_allclose(outs, [twin(x) for x in XS], rtol=1e-12)
    np.testing.assert_array_equal(module.v.value / unit.mV, twin.v.value / unit.mV)
    online.reset_state()
    assert online.etrace_evolve(XS, chunk_size=2) is None
    np.testing.assert_allclose(module.v.value / unit.mV, twin.v.value / unit.mV, rtol=1e-12)
    trace = pure("d_rtrl", 2)[2].trace
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), online.trace.value, trace)


def test_gradient_of_the_inputs():
    """What a step sends back to its own inputs."""
    _, online = made()
    found = brainstate.transform.grad(lambda x: square(online(x)), argnums=0)(XS[0])
    twin = Layer()
    twin.init_state()
    step = etrax.compile(twin, "tbptt", XS[0])
    want = jax.grad(lambda x: square(step.plain_step(step.params, step.hidden, x)[1]))(XS[0])
    np.testing.assert_allclose(found, want, rtol=1e-10)


def test_reset_and_look():
    module, online = made()
    online.etrace_evolve(XS)
    for weight in (("w", "in"), ("w",), module.w):
        (entry,) = online.get_etrace_of(weight)
        assert entry.shape[:2] == (B, I) and float(abs(entry).sum()) > 0
    assert online.get_etrace_of("out") == []  # a readout needs none
    online.reset_state(batch_size=5)
    assert module.v.value.shape == (5, H) and online(jnp.ones((5, I))).shape == (5, 2)
    online.reset_state(batch_size=5)
    assert not any(abs(a).sum() for a in jax.tree.leaves(online.trace.value))
    with pytest.raises(etrax.ArgumentError, match="no parameter at 'z'"):
        online.get_etrace_of("z")


def test_wrong_use():
    _, online = made()
    square_of = lambda x: square(online(x))
    for act, message in (
        (lambda: online.etrace_grad(XS, step_fn=lambda x: jnp.ones(())), "called the learner 0 times"),
        (lambda: online.etrace_grad(XS, step_fn=lambda x: square_of(x) + square_of(x)), "called the learner 2 times"),
        (lambda: online.etrace_grad(XS, step_fn=lambda x: online(x)), "expected one number"),
        (lambda: online.etrace_grad(step_fn=square_of), "no sequence was given"),
        (lambda: online.etrace_grad(XS, XS[:2], step_fn=square_of), "one length"),
        (lambda: online.etrace_grad(XS, step_fn=square_of, chunk_size=4), "does not divide"),
        (lambda: online.etrace_grad(XS, step_fn=square_of, mask=MASK[:2]), "`mask` has shape"),
        (lambda: online.etrace_grad(XS, step_fn=square_of, reduction="max"), "`reduction` is"),
        (lambda: online.etrace_grad(XS, step_fn=square_of, loss_output="all"), "`loss_output` is"),
        (lambda: online.etrace_grad(etrax.MultiStepData(XS), step_fn=square_of), "mark what `step_fn` passes on"),
        (lambda: online.etrace_grad(XS, step_fn=3), "`step_fn`"),
        (lambda: online(XS), "compiled with shape"),
        (lambda: etrax.Stateful(lambda x: x, "d_rtrl", XS[0]), "takes a `brainstate.nn.Module`"),
    ):
        with pytest.raises(etrax.EtraxError, match=message):
            act()
