"""Modules of Flax NNX: its own cells and a user's, against BPTT written with NNX alone."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from tests.learn.harness import in_numpy

import etrax

nnx = pytest.importorskip("flax.nnx")

B, I, H, T = 2, 3, 4, 7
RNG = np.random.RandomState(0)
XS, YS = jnp.asarray(RNG.standard_normal((T, B, I))), jnp.asarray(RNG.standard_normal((T, B, H)))
WIDE = {"param_dtype": jnp.float64, "dtype": jnp.float64}


def loss(output, target):
    return ((output - target) ** 2).mean()


def bptt(module, carry=None, call=None):
    """Loss and gradients as a user of NNX would write them."""
    graph, params, rest = nnx.split(module, nnx.Param, ...)

    def total(params):
        def body(held, xy):
            carry, rest = held
            own = nnx.merge(graph, params, rest)
            carry, out = call(own, carry, xy[0])
            return (carry, nnx.split(own, nnx.Param, ...)[2]), loss(out, xy[1])

        return lax.scan(body, (carry, rest), (XS, YS))[1].mean()

    return jax.value_and_grad(total)(params)


def online(learner, window):
    run = learner.value_and_grad(loss, window=window)
    return in_numpy(lambda *a: run(*a)[0], learner.params, learner.init(), XS, YS)


def assert_same(got, want, tolerance=1e-10):
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want) > 1
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance / 10)


CELLS = {
    "gru": lambda: nnx.GRUCell(I, H, rngs=nnx.Rngs(0), **WIDE),
    "lstm": lambda: nnx.LSTMCell(I, H, rngs=nnx.Rngs(0), **WIDE),
    "optimized lstm": lambda: nnx.OptimizedLSTMCell(I, H, rngs=nnx.Rngs(0), **WIDE),
    "simple": lambda: nnx.SimpleCell(I, H, rngs=nnx.Rngs(0), **WIDE),
}


@pytest.mark.parametrize("name", CELLS)
def test_own_cells(name):
    """Exact RTRL with windows shorter than the sequence is BPTT, and so is any rule with one window."""
    cell = CELLS[name]()
    carry = jax.tree.map(lambda a: a.astype(float), cell.initialize_carry((B, I), nnx.Rngs(1)))
    want = bptt(cell, carry, lambda cell, carry, x: cell(carry, x))
    for rule, window in (("rtrl", 3), ("d_rtrl", T)):
        learner = etrax.compile(cell, rule, XS[0], hidden=carry)
        assert_same(online(learner, window), want)
        assert {v.kind for v in learner.report.verdicts.values()} <= {"exact", "approximate"}


class Norm(nnx.Module):
    """Statistics of what passes: a running mean, and a sample's own in its place."""

    def __init__(self):
        self.mean, self.bias = nnx.BatchStat(jnp.zeros(H)), nnx.Param(jnp.zeros(H))

    def __call__(self, x):
        self.mean[...] = 0.9 * self.mean[...] + 0.1 * lax.stop_gradient(x.mean(0))
        return x - self.mean[...] + self.bias[...]


class Leaky(nnx.Module):
    """A leaky layer with its state in a variable, and one of each kind of other variable."""

    def __init__(self, rngs, rate=0.5):
        self.read_in = nnx.Linear(I, H, rngs=rngs, param_dtype=float)
        self.norm = Norm()
        self.drop = nnx.Dropout(rate, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(H, H, rngs=rngs, param_dtype=float)])
        self.leak = nnx.Variable(jnp.full(H, 0.9))
        self.count = nnx.Variable(jnp.zeros((), int))
        self.v = nnx.Variable(jnp.zeros((B, H)))

    def __call__(self, x):
        self.count[...] = self.count[...] + 1
        self.v[...] = self.leak[...] * self.v[...] + self.drop(self.norm(self.read_in(x)))
        return self.layers[0](self.v[...])


def test_variables():
    module = Leaky(nnx.Rngs(0))
    before = jax.tree.map(lambda a: a, nnx.state(module))
    learner = etrax.compile(module, "d_rtrl", XS[0])
    assert {leaf.path for leaf in learner.facts.step.select(etrax.compiler.ir.Role.HIDDEN)} == {("v",)}
    others = {leaf.path for leaf in learner.facts.step.select(etrax.compiler.ir.Role.OTHER)}
    assert {("count",), ("leak",), ("norm", "mean"), ("drop", "rngs", "count")} <= others
    assert {v.kind for v in learner.report.verdicts.values()} == {"exact"}
    assert ("layers", 0, "kernel") in learner.report.verdicts
    want = bptt(module, None, lambda module, _, x: (None, module(x)))
    assert_same(online(learner, 3), want)
    assert_equal(before, nnx.state(module))


def assert_equal(one, two):
    """Bit for bit, random keys too."""
    numbers = lambda a: jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(numbers(a), numbers(b)), one, two)


def test_state_goes_on_and_dropout_draws_anew():
    module = Leaky(nnx.Rngs(0))
    learner = etrax.compile(module, "d_rtrl", XS[0])
    state, outputs = learner.init(), []
    for x in XS:
        state, output = learner.step(learner.params, state, x)
        outputs.append(output)
    want = [module(x) for x in XS]  # the module itself, which keeps its own state
    np.testing.assert_allclose(outputs, want, rtol=1e-12)
    assert_equal(state.hidden["drop"], nnx.state(module, nnx.Not(nnx.Param))["drop"])
    assert int(state.hidden["count"][...]) == T and isinstance(state.hidden, nnx.State)


def test_statistics_are_carried():
    """Statistics that the step updates are those of the module itself."""
    module = Leaky(nnx.Rngs(0), rate=0.0)
    learner = etrax.compile(module, "d_rtrl", XS[0])
    (_, grads), state = learner.value_and_grad(loss, window=3)(learner.params, learner.init(), XS, YS)
    want = bptt(module, None, lambda module, _, x: (None, module(x)))[1]
    assert_same(grads, want)
    for x in XS:
        module(x)
    np.testing.assert_allclose(state.hidden["norm"]["mean"][...], module.norm.mean[...], rtol=1e-12)


class Both(nnx.Module):
    """A carry given from outside, and a state in a variable."""

    def __init__(self, rngs):
        self.w = nnx.Param(rngs.params.normal((I, H), float))
        self.slow = nnx.Variable(jnp.zeros((B, H)))

    def __call__(self, fast, x):
        fast = 0.5 * fast + x @ self.w[...]
        self.slow[...] = 0.9 * self.slow[...] + fast
        return fast, self.slow[...]


def test_carry_and_variables():
    module, carry = Both(nnx.Rngs(0)), jnp.zeros((B, H))
    learner = etrax.compile(module, "d_rtrl", XS[0], hidden=carry)
    assert learner.report.verdicts["w",].kind == "exact"
    assert learner.hidden.keys() == {"carry", "variables"}
    assert_same(online(learner, 2), bptt(module, carry, lambda module, carry, x: module(carry, x)))


def test_called_in_another_way():
    module, carry = Both(nnx.Rngs(0)), jnp.zeros((B, H))

    def call(module, carry, x):
        carry, output = module(carry, 2 * x)
        return carry, output - 1

    learner = etrax.compile(module, "d_rtrl", XS[0], hidden=carry, call=call)
    assert_same(online(learner, 2), bptt(module, carry, call))


def test_gradients_are_for_the_optimizer():
    module = Leaky(nnx.Rngs(0))
    learner = etrax.compile(module, "d_rtrl", XS[0])
    (_, grads), _ = learner.value_and_grad(loss, window=3)(learner.params, learner.init(), XS, YS)
    assert isinstance(grads, nnx.State)
    optimizer, twin = optax.adam(1e-2), Leaky(nnx.Rngs(0))
    nnx.Optimizer(module, optimizer, wrt=nnx.Param).update(module, grads)
    updates, _ = optimizer.update(grads, optimizer.init(learner.params), learner.params)
    nnx.update(twin, optax.apply_updates(learner.params, updates))
    jax.tree.map(np.testing.assert_array_equal, nnx.state(module, nnx.Param), nnx.state(twin, nnx.Param))


def test_train():
    module = Leaky(nnx.Rngs(0), rate=0.0)
    learner, optimizer = etrax.compile(module, "d_rtrl", XS[0]), optax.sgd(0.05)
    params, opt_state, state = learner.params, optimizer.init(learner.params), learner.init()
    run, losses = learner.train(optimizer, loss, window=1), []
    for _ in range(30):
        params, opt_state, _, found = run(params, opt_state, state, XS, YS)
        losses.append(float(found.mean()))
    assert losses[-1] < 0.7 * losses[0]


def test_wrong_calls():
    cell, linear = nnx.GRUCell(I, H, rngs=nnx.Rngs(0)), nnx.Linear(I, H, rngs=nnx.Rngs(0))
    with pytest.raises(etrax.CompilationError, match="initialize_carry"):
        etrax.compile(cell, "d_rtrl", XS[0])
    with pytest.raises(etrax.CompilationError, match="writes none of its variables"):
        etrax.compile(linear, "d_rtrl", XS[0])
    with pytest.raises(etrax.CompilationError, match="not a pair"):
        etrax.compile(linear, "d_rtrl", XS[0], hidden=jnp.zeros(H), call=lambda m, h, x: m(x))
    with pytest.raises(etrax.CompilationError, match="do not pass `params=`"):
        etrax.compile(cell, "d_rtrl", XS[0], params={}, hidden=jnp.zeros((B, H)))
    with pytest.raises(etrax.CompilationError, match=r"compile its cell, `module.cell`"):
        etrax.compile(nnx.RNN(cell), "d_rtrl", XS[0])
    with pytest.raises(etrax.CompilationError, match="batch_size"):
        etrax.compile(cell, "d_rtrl", XS[0], hidden=jnp.zeros((B, H)), batch_size=2)


class Grows(nnx.Module):
    def __init__(self):
        self.v = nnx.Variable(jnp.zeros(I))

    def __call__(self, x):
        self.v[...] = self.v[...] + x
        self.late = nnx.Variable(x)
        return x


def test_variables_made_in_the_step():
    with pytest.raises(etrax.CompilationError, match="makes or removes variables"):
        etrax.compile(Grows(), "d_rtrl", jnp.ones(I))
