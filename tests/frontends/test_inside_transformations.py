"""Compiling inside brainstate's transformations: the values are those of now, and nothing of the trace stays behind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

brainstate = pytest.importorskip("brainstate")
u = pytest.importorskip("saiunit")

import etrax  # noqa: E402
import etrax.nn  # noqa: E402

T, I, H = 5, 3, 4
transform = brainstate.transform
X = jnp.asarray(np.random.RandomState(0).standard_normal((T, I)))
Y = jnp.asarray(np.random.RandomState(1).standard_normal((T, H)))


class Leaky(brainstate.nn.Module):
    """A leaky layer, with or without units; its gain is a state outside of every role, its noise a random state's."""

    def __init__(self, unit=1.0, noisy=False):
        super().__init__()
        rng = np.random.RandomState(2)
        self.w = brainstate.ParamState(jnp.asarray(rng.standard_normal((I, H))) * unit)
        self.unused = brainstate.ParamState(jnp.ones(2))
        self.h = brainstate.HiddenState(jnp.zeros(H) * unit)
        self.gain = brainstate.ShortTermState(jnp.asarray(1.0))
        self.unit, self.noisy = unit, noisy

    def update(self, x):
        noise = brainstate.random.normal(size=H) if self.noisy else 0.0
        self.h.value = 0.9 * self.h.value + self.gain.value * (x @ self.w.value) + noise * self.unit
        self.gain.value = self.gain.value * 1.1
        return self.h.value / self.unit


class Gated(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = etrax.nn.GRUCell(I, H)
        brainstate.nn.init_all_states(self.cell)

    def update(self, x):
        return self.cell(x)


MODELS = {
    "leaky": Leaky,
    "units": lambda: Leaky(u.mV),
    "noise": lambda: Leaky(noisy=True),
    "gru": Gated,
    "lstm": lambda: initialised(etrax.nn.LSTMCell(I, H)),
}


def initialised(cell):
    brainstate.nn.init_all_states(cell)
    return cell


def change(model):
    """An update of the weights, and of the states."""
    for state in model.states().values():
        state.value = jax.tree.map(lambda a: 1.5 * a + 0.1, state.value)


def by_learner(model):
    learner = etrax.compile(model, "d_rtrl", X[0])
    run = learner.value_and_grad(lambda o, y: ((o - y) ** 2).sum(), window=2)
    (loss, grads), state = run(learner.params, learner.init(), X, Y)
    return loss, grads, state.hidden


def by_graph(model):
    graph = etrax.compile_etrace_graph(model, X[0])
    moved = [p + 0.5 for p in graph.hidden_perturb.init_perturb_data()]
    return graph.module_info.jaxpr_call(X[0])[:3], graph.call_hidden_perturb((X[0],), moved)[:3]


def by_executor(model):
    executor = etrax.ETraceGraphExecutor(model)
    executor.compile_graph(X[0])
    out, hidden, other, (h2w, h2h) = executor.solve_h2w_h2h_jacobian(X[0])
    *_, pull = executor.solve_h2w_h2h_l2h_jacobian(X[0])
    return out, hidden, other, [v.dense() for v in h2w.values()], h2h, pull(out)


def nested(run):
    inner = transform.jit(run)
    return transform.jit(lambda: jax.tree.map(lambda a: a, inner()))


def in_grad(run):
    """Gradient in a number that changes nothing, so that the result itself can be compared."""
    w = brainstate.ParamState(jnp.zeros(()))
    return transform.jit(transform.grad(lambda: (w.value * 1.0, run()), w, has_aux=True))


WAYS = {
    "jit": transform.jit,
    "nested jit": nested,
    "for_loop": lambda run: lambda: jax.tree.map(lambda a: a[1], transform.for_loop(lambda k: run(), jnp.arange(2))),
    "scan": lambda run: (
        lambda: jax.tree.map(lambda a: a[1], transform.scan(lambda c, k: (c, run()), 0.0, jnp.arange(2))[1])
    ),
    "cond": lambda run: transform.jit(lambda: transform.cond(jnp.asarray(True), run, run)),
    "checkpoint": lambda run: transform.jit(transform.checkpoint(run)),
    "vmap": lambda run: lambda: jax.tree.map(lambda a: a[1], transform.vmap(lambda k: run())(jnp.arange(2))),
    "grad": lambda run: lambda: in_grad(run)()[1],
}


def numbers(tree):
    """Leaves by path; keys of random states as numbers."""
    found = jax.tree.map(lambda a: jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a, tree)
    return [np.asarray(a) for a in jax.tree.leaves(found)]


def check_same(found, expected):
    for a, b in zip(numbers(found), numbers(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def check_untouched(model, before):
    """No state was written, and none holds a tracer."""
    for path, state in model.states().items():
        assert not any(isinstance(a, jax.core.Tracer) for a in jax.tree.leaves(state.value))
        check_same(state.value, before[path])


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("run", [by_learner, by_graph, by_executor])
def test_values_of_now(run, way):
    """The same function, transformed once, before and after the weights and states change."""
    model = Leaky()
    transformed = WAYS[way](lambda: run(model))
    for _ in range(3):
        before = {path: state.value for path, state in model.states().items()}
        check_same(transformed(), run(model))
        check_untouched(model, before)
        change(model)


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("run", [by_learner, by_graph, by_executor])
def test_models(run, name):
    model = MODELS[name]()
    transformed = transform.jit(lambda: run(model))
    brainstate.random.seed(7)
    key = brainstate.random.DEFAULT.value
    for _ in range(2):
        check_same(transformed(), run(model))
        check_same(brainstate.random.DEFAULT.value, key)
        change(model)


@pytest.mark.parametrize("run", [by_learner, by_graph, by_executor])
def test_states_changed_within_the_trace(run):
    """What the function itself writes before it compiles counts, and nothing else is written back."""

    def updated(model):
        model.w.value = 2.0 * model.w.value
        model(X[1])
        return run(model)

    model, other = Leaky(), Leaky()
    transformed = transform.jit(lambda: updated(model))
    for _ in range(2):
        check_same(transformed(), updated(other))
        for path, state in model.states().items():
            check_same(state.value, other.states()[path].value)


def test_initial_values_are_those_of_compiling():
    """In a trace as outside: what the model does after compiling does not change what the learner starts from."""

    def run(model):
        learner = etrax.compile(model, "d_rtrl", X[0])
        model(X[1])
        return learner.init().hidden, learner.params, learner.hidden

    model, other = Leaky(), Leaky()
    transformed = transform.jit(lambda: run(model))
    for _ in range(2):
        check_same(transformed(), run(other))


def test_what_was_compiled_inside_serves_outside():
    model, kept = Leaky(), {}

    def run():
        kept["learner"] = etrax.compile(model, "d_rtrl", X[0])
        kept["executor"] = etrax.ETraceGraphExecutor(model)
        kept["executor"].compile_graph(X[0])
        return kept["learner"].init().hidden["h"].sum()

    transform.jit(run)()
    change(model)
    fresh = etrax.compile(model, "d_rtrl", X[0])
    check_same((kept["learner"].params, kept["learner"].init()), (fresh.params, fresh.init()))
    out, *_ = kept["executor"].solve_h2w_h2h_jacobian(X[0])
    check_same(out, by_graph(model)[0][0])
    check_same(transform.jit(lambda: kept["learner"].init().hidden)(), fresh.init().hidden)
    check_same(kept["learner"].init(), fresh.init())


def test_nothing_of_the_trace_is_kept():
    model = Leaky(u.mV)
    with jax.checking_leaks():
        transform.jit(lambda: by_learner(model)[0])()
        transform.jit(lambda: by_graph(model)[0][0])()


def test_compiling_is_no_write():
    """A transformation that asks which states a function writes is told of none."""
    model = Leaky()
    stateful = transform.StatefulFunction(lambda: by_graph(model)[0][0]).make_jaxpr()
    assert not any(stateful.get_state_trace().been_writen)
    assert {id(model.w), id(model.h), id(model.gain)} <= set(map(id, stateful.get_states()))


def test_mapped_states():
    """One model per row of its states: each is compiled on its own values."""

    def run():
        return by_graph(model)[0][0]

    model = Leaky()
    rows = jnp.stack([model.h.value, model.h.value + 1.0])
    expected = []
    for row in rows:
        model.h.value = row
        expected.append(run())
    model.h.value = rows
    mapped = transform.vmap(run, in_states=model.states(brainstate.HiddenState), axis_size=2)
    check_same(mapped(), jnp.stack(expected))


def test_training_in_jit():
    """Compiled within the training step, as brainstate users write it: the loss falls as it does outside."""

    def train(model):
        learner = etrax.compile(model, "d_rtrl", X[0])
        run = learner.value_and_grad(lambda o, y: ((o - y) ** 2).sum(), window=1)
        (loss, grads), _ = run(learner.params, learner.init(), X, Y)
        model.w.value = model.w.value - 0.01 * grads["w"]
        return loss

    model, other = Leaky(), Leaky()
    step = transform.jit(lambda: train(model))
    losses = [float(step()) for _ in range(10)]
    np.testing.assert_allclose(losses, [float(train(other)) for _ in range(10)], rtol=1e-9)
    assert losses[-1] < 0.9 * losses[0]


def test_plain_function_inside_jit():
    """The values given are the values used, tracers or not."""

    def step(p, h, x):
        h = 0.9 * h + x @ p
        return h, h

    @transform.jit
    def run(w):
        learner = etrax.compile(step, "d_rtrl", X[0], params=w, hidden=jnp.zeros(H))
        return learner.value_and_grad(lambda o, y: ((o - y) ** 2).sum(), window=1)(learner.params, learner.init(), X, Y)

    w = jnp.ones((I, H))
    learner = etrax.compile(step, "d_rtrl", X[0], params=w, hidden=jnp.zeros(H))
    for k in (1.0, 2.0):
        expected = learner.value_and_grad(lambda o, y: ((o - y) ** 2).sum(), window=1)(k * w, learner.init(), X, Y)
        check_same(run(k * w), expected)
