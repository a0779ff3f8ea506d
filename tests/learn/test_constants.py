"""Arrays of numpy that are changed in place after `compile` change nothing: a learner keeps what it was compiled with.

Everything is compiled with the values of then, whatever sequence lengths come later; the oracle is BPTT over a step
that was never changed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_derivatives import linear_call

import etrax

W, H0 = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2))), jnp.ones(2)
XS = jnp.asarray(np.random.default_rng(1).normal(size=(7, 3)))


def square(output, target):
    return (output**2).mean()


def closed_over(c):
    return lambda h, x: c * h


def jitted(c):
    inner = jax.jit(lambda h: c * h)
    return lambda h, x: inner(h)


def in_scan(c):
    return lambda h, x: lax.scan(lambda a, _: (c * a, None), h, None, 2)[0]


def in_jitted_scan(c):
    return jitted_function(in_scan(c))


def jitted_function(f):
    inner = jax.jit(f)
    return lambda h, x: inner(h, x)


def in_cond(c):
    return lambda h, x: lax.cond(x[0] > 0, lambda h: c * h, lambda h: c * c * h, h)


def in_while(c):
    def loop(h):
        return lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, c * s[1]), (0, h))[1]

    return lambda h, x: lax.stop_gradient(loop(h)) + 0.5 * h


def checkpointed(c):
    inner = jax.checkpoint(lambda h: c * h)
    return lambda h, x: inner(h)


def with_jvp(c):
    @jax.custom_jvp
    def f(h):
        return c * h

    f.defjvp(lambda primals, tangents: (c * primals[0], c * c * tangents[0]))
    return lambda h, x: f(h)


def with_vjp(c):
    @jax.custom_vjp
    def f(h):
        return c * h

    f.defvjp(lambda h: (c * h, h), lambda h, g: (c * c * g,))
    return lambda h, x: f(h)


def with_vjp_in_scan(c):
    inner = with_vjp(c)
    return lambda h, x: lax.scan(lambda a, _: (inner(a, x), None), h, None, 2)[0]


def with_vjp_that_calls_itself(c):
    @jax.custom_vjp
    def f(h):
        return c * h

    f.defvjp(lambda h: (f(h), None), lambda _, g: (c * g,))
    return lambda h, x: f(h)


def with_symbolic_zeros(c):
    @jax.custom_vjp
    def f(h):
        return c * h

    f.defvjp(lambda h: (c * h.value, None), lambda _, g: (c * c * g,), symbolic_zeros=True)
    return lambda h, x: f(h)


def in_linear_solve(c):
    return lambda h, x: lax.custom_linear_solve(lambda v: v / c, h, lambda _, b: c * b, lambda _, b: c * b)


def in_linear_call(c):
    return lambda h, x: linear_call(lambda _, h: c * h, lambda _, g: c * g, (), h)


def attribute(c):
    class Cell:
        leak = c

    return lambda h, x: Cell.leak * h


def entry(c):
    kept = {"leak": [c]}
    return lambda h, x: kept["leak"][0] * h


MODELS = (closed_over, jitted, in_scan, in_jitted_scan, in_cond, in_while, checkpointed, with_jvp, with_vjp,
          with_vjp_in_scan, with_vjp_that_calls_itself, with_symbolic_zeros, in_linear_solve, in_linear_call, attribute,
          entry)  # fmt: skip


def step_of(make, c):
    decay = make(c)

    def step(w, h, x):
        h = decay(h, x) + x @ w
        return h, h

    return step


def bptt(step, xs):
    def total(w):
        return lax.scan(lambda h, x: (lambda r: (r[0], square(r[1], None)))(step(w, h, x)), H0, xs)[1].mean()

    return jax.grad(total)(W)


@pytest.mark.parametrize("shape", [(2,), ()], ids=["array", "number"])
@pytest.mark.parametrize("make", MODELS, ids=lambda m: m.__name__)
def test_a_changed_constant_changes_nothing(make, shape):
    values = np.array([0.9, 0.8]) if shape else np.array(0.9)
    want = {n: bptt(step_of(make, values.copy()), XS[:n]) for n in (4, 5, 7)}
    constant = values.copy()
    learner = etrax.compile(step_of(make, constant), "d_rtrl", XS[0], params=W, hidden=H0)
    run = learner.value_and_grad(square, window=2)
    constant *= 0.3
    for n in (4, 5):
        np.testing.assert_allclose(run(W, learner.init(), XS[:n])[0][1], want[n], rtol=1e-12)
        constant *= 0.3
    np.testing.assert_allclose(etrax.testing.bptt(learner, square)(W, H0, XS, None)[1], want[7], rtol=1e-12)


FOREIGN = (closed_over, with_vjp_that_calls_itself, with_symbolic_zeros)


@pytest.mark.parametrize("make", FOREIGN, ids=lambda m: m.__name__)
def test_memory_that_is_not_an_arrays_own_changes_nothing(make):
    """A view of bytes that somebody else writes to, as of a file in memory or of shared memory."""
    values = np.array([0.9, 0.8])
    want = bptt(step_of(make, values.copy()), XS)
    memory = bytearray(values.tobytes())
    learner = etrax.compile(step_of(make, np.frombuffer(memory)), "d_rtrl", XS[0], params=W, hidden=H0)
    memory[:] = (0.3 * values).tobytes()
    (_, grads), _ = learner.value_and_grad(square, window=2)(W, learner.init(), XS)
    np.testing.assert_allclose(grads, want, rtol=1e-12)


@pytest.mark.parametrize("read", [lambda s: s["slope"], lambda s: np.exp(s["array"])], ids=["number", "by numpy"])
@pytest.mark.parametrize("itself", [True, False])
def test_a_slope_that_a_rule_reads_is_that_of_then(read, itself):
    """The slope of a surrogate that is annealed: a rule may read anything, whenever it is called."""
    settings = {"slope": 0.7, "array": np.array([0.3, -0.2])}

    @jax.custom_vjp
    def spike(h):
        return (h > 0.5) * 1.0

    first = spike if itself else lambda h: (h > 0.5) * 1.0
    spike.defvjp(lambda h: (first(h), h), lambda h, g: (g * read(settings) / (1 + abs(h)),))

    def step(w, h, x):
        h = 0.9 * h - 0.3 * spike(h) + x @ w
        return h, h

    want = {n: bptt(step, XS[:n]) for n in (4, 5)}
    learner = etrax.compile(step, "d_rtrl", XS[0], params=W, hidden=H0)
    for n in (4, 5):
        settings["slope"] *= 3
        settings["array"] *= 3
        (_, grads), _ = learner.value_and_grad(square, window=2)(W, learner.init(), XS[:n])
        np.testing.assert_allclose(grads, want[n], rtol=1e-12)


def test_a_model_that_is_compiled_again_has_the_values_of_then():
    constant = np.array([0.9, 0.8])
    step = step_of(jitted, constant)
    etrax.compile(step, "d_rtrl", XS[0], params=W, hidden=H0)
    constant *= 0.3
    learner = etrax.compile(step, "d_rtrl", XS[0], params=W, hidden=H0)
    (_, grads), _ = learner.value_and_grad(square, window=2)(W, learner.init(), XS)
    np.testing.assert_allclose(grads, bptt(step_of(closed_over, constant.copy()), XS), rtol=1e-12)


def test_a_mutable_array_of_jax_is_refused():
    leak = jax.new_ref(jnp.full(2, 0.9))
    with pytest.raises(etrax.CompilationError, match=r"reads a mutable array .* as an input or a state"):
        etrax.compile(lambda w, h, x: (leak[...] * h + x @ w,) * 2, "d_rtrl", XS[0], params=W, hidden=H0)


def test_parameters_and_states_as_they_were_given():
    params, hidden = {"w": np.ones((3, 2))}, {"h": np.ones(2)}
    step = lambda p, s, x: ({"h": 0.9 * s["h"] + x @ p["w"]}, s["h"])
    learner = etrax.compile(step, "d_rtrl", XS[0], params=params, hidden=hidden)
    params["w"][:] = 5
    hidden["h"][:] = 5
    params["more"] = np.zeros(1)
    assert list(learner.params) == ["w"]
    np.testing.assert_array_equal(learner.params["w"], 1)
    np.testing.assert_array_equal(learner.hidden["h"], 1)
    np.testing.assert_array_equal(learner.init().hidden["h"], 1)


def brainstate_module(c):
    brainstate = pytest.importorskip("brainstate")

    class Cell(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.leak = c
            self.w, self.h = brainstate.ParamState(W), brainstate.HiddenState(H0)

        def update(self, x):
            self.h.value = self.leak * self.h.value + x @ self.w.value
            return self.h.value

    return Cell(), {}


def equinox_module(c):
    eqx = pytest.importorskip("equinox")

    class Cell(eqx.Module):
        w: jax.Array

    def call(module, h, x):
        h = c * h + x @ module.w
        return h, h

    return Cell(W), {"hidden": H0, "call": call}


def nnx_module(c):
    nnx = pytest.importorskip("flax.nnx")

    class Cell(nnx.Module):
        def __init__(self):
            self.w, self.h = nnx.Param(W), nnx.Variable(H0)
            self.leak = nnx.data(c) if hasattr(nnx, "data") else c

        def __call__(self, x):
            self.h[...] = self.leak * self.h[...] + x @ self.w[...]
            return self.h[...]

    return Cell(), {}


@pytest.mark.parametrize("make", [brainstate_module, equinox_module, nnx_module], ids=lambda m: m.__name__)
def test_a_changed_attribute_of_a_module_changes_nothing(make):
    constant = np.array([0.9, 0.8])
    want = bptt(step_of(closed_over, constant.copy()), XS)
    module, options = make(constant)
    learner = etrax.compile(module, "d_rtrl", XS[0], **options)
    constant *= 0.3
    (_, grads), _ = learner.value_and_grad(square, window=2)(learner.params, learner.init(), XS)
    found = [g for g in jax.tree.leaves(grads) if g.shape == W.shape]
    np.testing.assert_allclose(found[0], want, rtol=1e-12)
