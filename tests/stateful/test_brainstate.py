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
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14), plain(grads), dict(want))


@pytest.mark.parametrize(
    "rule", ["d_rtrl", "pp_prop", "rtrl", "tbptt", etrax.e_prop(feedback="random", key=0)], ids=str
)
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


class Shown(Layer):
    """The same, which shows its state as well."""

    def update(self, x):
        return super().update(x), self.v.value / unit.mV


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_loss_sees_parameters_and_states(chunk):
    """A penalty on weights and one on the state at the end of a window count in full."""
    module, online = made()

    def step_fn(x):
        out = online(etrax.MultiStepData(x) if chunk > 1 else x)
        more = square(module.v.value / unit.mV) + 0.1 * (module.r.value**2).sum()
        return square(out) + more if chunk == 1 else jax.vmap(square)(out) + more / chunk

    grads = online.etrace_grad(XS, step_fn=step_fn, chunk_size=chunk, reduction="sum")
    shown = Shown()
    shown.init_state()
    learner = etrax.compile(shown, "d_rtrl", XS[0])
    last = jnp.arange(T) % chunk == chunk - 1
    run = learner.value_and_grad(lambda o, end: square(o[0]) + end * square(o[1]), window=chunk, reduction="sum")
    (_, want), _ = run(learner.params, learner.init(), XS, last.astype(float))
    assert_same(grads, {**want, "r": want["r"] + T / chunk * 0.2 * module.r.value})


def plain(grads):
    """`vector_grad` of brainstate takes all units away, of any module; `grad` gives quantities."""
    return {"w": {"in": unit.get_mantissa(grads["w",]["in"])}, "r": grads["r",], "out": grads["out",]}


def test_a_vector_of_losses_and_a_batch_by_the_librarys_own_transformations():
    """`vector_grad` sums over the losses of samples; `vmap` over samples, each with a state and a trace of its own."""
    module, online = made()
    weights = module.states(brainstate.ParamState)
    each = lambda x: jnp.mean(online(x) ** 2, 1)
    found = brainstate.transform.vector_grad(each, weights)(XS[0])
    module.init_state()
    online.reset_state()
    want = brainstate.transform.grad(lambda x: each(x).sum(), weights)(XS[0])
    assert_same(found, plain(want))
    assert unit.get_unit(want["w",]["in"]) == unit.mV

    one = Layer()
    one.init_state(1)
    single = etrax.Stateful(one, "d_rtrl", XS[0, :1])
    held = {"v": one.v, "trace": single.trace, "seen": one.seen}
    spread = lambda a: jnp.broadcast_to(a, (B, *jnp.shape(a)))
    start = {k: jax.tree.map(spread, s.value) for k, s in held.items()}
    for k, state in held.items():
        state.value = start[k]
    own = one.states(brainstate.ParamState)
    grad = brainstate.transform.grad(lambda x: square(single(x[None])), own)
    mapped = brainstate.transform.jit(brainstate.transform.vmap(grad, in_states=held, out_states=held))
    found = jax.tree.map(lambda *a: sum(a), *(mapped(x) for x in XS))
    module.init_state()
    online.reset_state()
    want = online.etrace_grad(XS, step_fn=lambda x: square(online(x)), reduction="sum")
    assert_same({k: jax.tree.map(lambda a: a.mean(0), g) for k, g in found.items()}, plain(want))


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


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_braintools_optimizers_take_the_gradients(name):
    """As they are, keys and units: what the optimizer does is what optax does to the numbers alone."""
    braintools = pytest.importorskip("braintools")
    module, online = made()
    weights = module.states(brainstate.ParamState)
    numbers = lambda tree: jax.tree.map(unit.get_mantissa, tree, is_leaf=lambda a: isinstance(a, unit.Quantity))
    want = numbers({k: s.value for k, s in weights.items()})
    optimizer, twin = getattr(braintools.optim, name)(lr=0.01), getattr(optax, name.lower())(0.01)
    optimizer.register_trainable_weights(weights)
    opt_state = twin.init(want)
    for grad in (
        lambda: online.etrace_grad(XS, step_fn=lambda x: square(online(x))),
        lambda: brainstate.transform.grad(lambda: square(online(XS[0])), weights)(),
    ):
        grads = grad()
        optimizer.update(grads)
        updates, opt_state = twin.update(numbers(grads), opt_state, want)
        want = optax.apply_updates(want, updates)
        jax.tree.map(np.testing.assert_allclose, numbers({k: s.value for k, s in weights.items()}), want)
    assert unit.get_unit(module.w.value["in"]) == unit.mV


@pytest.mark.parametrize("aware", [False, True])
def test_units_by_each_transformation_are_those_of_the_module(aware):
    """Whether a transformation keeps units, drops them or divides by them, it does so as over the module itself."""
    module, online = made()
    weights, transform = module.states(brainstate.ParamState), brainstate.transform
    for over in (transform.grad, transform.vector_grad):
        loss = square if over is transform.grad else lambda o: (o**2).mean(1)
        found, own = (over(lambda: loss(call(XS[0])), weights, unit_aware=aware)() for call in (online, module))  # noqa: B023
        assert unit.get_unit(found["w",]["in"]) == unit.get_unit(own["w",]["in"])


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
    for weight in (("w", "in"), ("w",), "w.in", module.w):
        (entry,) = online.get_etrace_of(weight)
        assert entry.shape[:2] == (B, I) and float(abs(entry).sum()) > 0
    assert online.get_etrace_of("out") == []  # a readout needs none
    online.reset_state(batch_size=5)
    assert module.v.value.shape == (5, H) and online(jnp.ones((5, I))).shape == (5, 2)
    online.reset_state(batch_size=5)
    assert not any(abs(a).sum() for a in jax.tree.leaves(online.trace.value))
    with pytest.raises(etrax.ArgumentError, match="no parameter at 'z'"):
        online.get_etrace_of("z")


def test_some_weights():
    """One parameter or a list, as brainstate's own `grad` takes them."""
    module, online = made()
    want = pure("d_rtrl", 1)[1]
    for weights, read in ((module.r, lambda g: g), ([module.r, module.out], lambda g: g[0])):
        module.init_state()
        online.reset_state()
        grads = online.etrace_grad(XS, step_fn=lambda x: square(online(x)), weights=weights)
        np.testing.assert_allclose(read(grads), want["r"], rtol=1e-10)


class Made(Layer):
    """States without a batch, unless one is asked for."""

    def init_state(self, batch_size=None):
        super().init_state(1 if batch_size is None else batch_size)
        if batch_size is None:
            self.v.value = self.v.value[0]


def test_a_new_sequence_has_the_batch_of_the_last():
    module = Made()
    online = etrax.Stateful(module, "d_rtrl", XS[0], batch_size=B)
    online.etrace_evolve(XS)
    online.reset_state()
    assert module.v.value.shape == (B, H) and not module.v.value.any()
    online.reset_state(batch_size=5)
    online.reset_state()
    assert module.v.value.shape == (5, H)

    module = Made()
    module.init_state(B)  # not by the learner
    online = etrax.Stateful(module, "d_rtrl", XS[0])
    online.reset_state()
    assert module.v.value.shape == (B, H)
    module.init_state = lambda batch_size=None: setattr(module.v, "value", jnp.zeros((7, H)) * unit.mV)
    with pytest.raises(etrax.ArgumentError, match="pass `batch_size=`"):
        online.reset_state()
    assert module.v.value.shape == (B, H)  # as it was
    with pytest.raises(etrax.ArgumentError, match="`batch_size` is 0"):
        online.reset_state(batch_size=0)


def test_wrong_use():
    module, online = made()
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
        (lambda: online(XS), r"'inputs\[0\]' has shape .* compiled with shape"),
        (lambda: online(), r"the arguments are nothing, .* compiled with 'inputs\[0\]'"),
        (lambda: online.etrace_grad(XS, step_fn=lambda x: online(x).mean(1), has_aux=True), "must return a pair"),
        (lambda: online.etrace_grad(XS, step_fn=square_of, has_aux=True), "must return a pair"),
        (lambda: online.etrace_grad(XS, step_fn=lambda x: (square_of(x), 1)), "To return more, pass `has_aux=True`"),
        (lambda: online.etrace_grad(XS, step_fn=lambda x: square_of(x) * unit.mV), "a loss in mV"),
        (lambda: online.etrace_grad(XS, step_fn=lambda x: (online(x) > 0).sum()), "has no derivative"),
        (lambda: online.etrace_grad(XS, step_fn=lambda x: [online(x), None][1]), "returned nothing as its loss"),
        (lambda: online.etrace_grad(XS, step_fn=square_of, mask="all"), "`mask` is a str"),
        (lambda: online.etrace_grad(XS, step_fn=square_of, mask=MASK * 1j), "`mask` is complex"),
        (lambda: online.etrace_grad(XS, step_fn=square_of, weights="r"), "`weights` holds a str"),
        (lambda: online.etrace_grad(XS, step_fn=square_of, weights={"v": module.v}), "`weights` holds a HiddenState"),
        (lambda: online.etrace_grad(XS, step_fn=square_of, weights=[]), "`weights` holds nothing"),
        (lambda: etrax.Stateful(lambda x: x, "d_rtrl", XS[0]), "takes a `brainstate.nn.Module`"),
    ):
        with pytest.raises(etrax.EtraxError, match=message):
            act()
    for act in (
        lambda: online.etrace_grad(XS, step_fn=square_of, chunk_size=1.5),
        lambda: online.etrace_grad(etrax.SingleStepData(XS), step_fn=square_of),
    ):
        with pytest.raises(TypeError, match=r"chunk_size|plain arrays"):
            act()


def cosine(output, target):
    """Not finite for a target of zeros, nor is its derivative."""
    return 1 - ((output * target).sum(-1) / jnp.sqrt((target**2).sum(-1))).mean()


@pytest.mark.parametrize("chunk", [None, 2])
def test_what_is_masked_may_be_nan(chunk):
    """Inputs and targets at steps that do not count: gradients are those of the pure learner on finite data."""
    ys = jnp.asarray(np.random.RandomState(3).standard_normal((T, B, 2)))
    off = (MASK == 0)[:, None, None]
    xs, missing = (jnp.where(off, jnp.nan, a) for a in (XS, ys))
    _, online = made()
    step = lambda x, y: cosine(online(x), y) if chunk is None else jax.vmap(cosine)(online(etrax.MultiStepData(x)), y)
    grads, loss = online.etrace_grad(
        xs, missing, step_fn=step, mask=MASK, chunk_size=chunk, return_value=True, loss_output="scalar"
    )
    learner = online.learner
    (want, wanted), _ = learner.value_and_grad(cosine, window=chunk or 1)(
        learner.params, learner.init(), jnp.where(off, 0.0, XS), ys, MASK
    )
    np.testing.assert_allclose(loss, want, rtol=1e-10)
    assert_same(grads, wanted)
    assert np.isfinite(online.module.v.value / unit.mV).all()


class Halved(brainstate.nn.Module):
    """The input goes through a `while_loop`, which has no reverse derivative, or through the same products."""

    def __init__(self, loop):
        super().__init__()
        self.loop = loop
        self.w = brainstate.ParamState(jnp.asarray(np.random.RandomState(1).standard_normal((3, 4))))

    def init_state(self, batch_size=None):
        self.h = brainstate.HiddenState(jnp.zeros((2, 4)))

    def update(self, x):
        halve = lambda c: (c[0] + 1, 0.5 * c[1])
        x = jax.lax.while_loop(lambda c: c[0] < 3, halve, (0, x))[1] if self.loop else x / 8
        self.h.value = 0.9 * self.h.value + x @ self.w.value
        return jnp.tanh(self.h.value)


def test_a_loop_between_input_and_weight_needs_no_derivative():
    """Gradients of the weight are BPTT's; only a derivative in the input itself is an error."""
    xs = jnp.asarray(np.random.RandomState(0).standard_normal((5, 2, 3)))

    def bptt(w):
        step = lambda h, x: (0.9 * h + (x / 8) @ w,) * 2
        return (jnp.tanh(jax.lax.scan(step, jnp.zeros((2, 4)), xs)[1]) ** 2).sum()

    model = Halved(loop=True)
    brainstate.nn.init_all_states(model)
    online = etrax.Stateful(model, "d_rtrl", xs[0])
    grads = online.etrace_grad(xs, step_fn=lambda x: (online(x) ** 2).sum(), reduction="sum")
    np.testing.assert_allclose(grads["w",], jax.grad(bptt)(model.w.value), rtol=1e-10)
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        brainstate.transform.grad(lambda x: (online(x) ** 2).sum(), argnums=0)(xs[0])


def test_the_derivative_in_the_input_of_a_step():
    x = jnp.asarray(np.random.RandomState(0).standard_normal((2, 3)))
    model = Halved(loop=False)
    brainstate.nn.init_all_states(model)
    online = etrax.Stateful(model, "d_rtrl", x)
    found = brainstate.transform.grad(lambda x: (online(x) ** 2).sum(), argnums=0)(x)
    want = jax.grad(lambda x: (jnp.tanh((x / 8) @ model.w.value) ** 2).sum())(x)
    np.testing.assert_allclose(found, want, rtol=1e-12)
