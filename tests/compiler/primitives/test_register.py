"""Records from outside: an op of one's own comes out exact, and what is left out or wrong is said."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive as JaxPrimitive
from jax.interpreters import ad, mlir

import etrax
from etrax.compiler.primitives import Primitive, all_zero, never_zero, pointwise, register_primitive
from etrax.compiler.primitives._record import _REGISTERED, TABLE
from examples import fft_convolution as fft

T, B, N = 11, 3, 6


@pytest.fixture
def table():
    """The table of primitives, forgotten again."""
    before, registered = dict(TABLE), set(_REGISTERED)
    yield TABLE
    TABLE.clear()
    TABLE.update(before)
    _REGISTERED.clear()
    _REGISTERED.update(registered)


def task():
    rng = np.random.RandomState(0)
    params = {"gains": jnp.asarray(rng.standard_normal(N // 2 + 1)), "out": jnp.asarray(rng.standard_normal((N, 2)))}
    hidden = {k: jnp.asarray(rng.standard_normal((B, N))) for k in ("wave", "h")}
    return params, hidden, jnp.asarray(rng.standard_normal((T, B, N))), jnp.asarray(rng.standard_normal((T, B, 2)))


def bptt(step, params, hidden, xs, ys):
    def total(params):
        def body(h, xy):
            h, out = step(params, h, xy[0])
            return h, fft.loss(out, xy[1])

        return jax.lax.scan(body, hidden, (xs, ys))[1].mean()

    return jax.grad(total)(params)


def plain(params, hidden, x):
    """The model of the example, written with `jnp.fft`."""
    wave = 0.8 * hidden["wave"] + x
    h = 0.9 * hidden["h"] + jnp.fft.irfft(jnp.fft.rfft(wave) * params["gains"], N)
    return {"wave": wave, "h": h}, jnp.tanh(h) @ params["out"]


@pytest.mark.parametrize("rule", ["d_rtrl", "rtrl"])
@pytest.mark.parametrize("window", [1, 4])
def test_an_outside_op_is_exact(rule, window):
    params, hidden, xs, ys = task()
    learner = etrax.compile(fft.step, rule, xs[0], params=params, hidden=hidden)
    assert {v.kind for v in learner.report.verdicts.values()} == {"exact"}
    (_, grads), _ = learner.value_and_grad(fft.loss, window=window)(params, learner.init(), xs, ys)
    want = bptt(plain, params, hidden, xs, ys)
    for name, g in grads.items():
        np.testing.assert_allclose(g, want[name], rtol=1e-10, atol=1e-12)


def test_the_records_are_those_of_the_jacobians():
    """The laws of the op's trace, and the pattern, against `jax.jacrev` of the plain function."""
    params, hidden, xs, _ = task()
    call = etrax.compiler.analysis.analyse(trace(fft.step, params, hidden, xs[0])).sites[0].call
    u, w, c = xs[:2], params["gains"], xs[2:4]
    trace_ = fft.FFT_CONV.outer(call, (), (u,), c)
    dense = jax.vmap(jax.jacrev(fft.filtered, argnums=1), (0, None))(u.reshape(2 * B, N), w).reshape(2, B, N, -1)
    assert trace_.shape == fft.FFT_CONV.trace_shape(call)
    np.testing.assert_allclose(trace_, jnp.einsum("kbnf,kbn->bfn", dense, c), atol=1e-12)
    np.testing.assert_allclose(fft.FFT_CONV.apply(call, (), trace_, xs[4]), jnp.einsum("bfn,bn->f", trace_, xs[4]))
    np.testing.assert_allclose(fft.FFT_CONV.grad(call, (), (u,), c), jnp.einsum("kbnf,kbn->f", dense, c), atol=1e-12)
    moved = fft.FFT_CONV.outer(call, (), (u,), c * xs[4])
    np.testing.assert_allclose(moved, trace_ * fft.FFT_CONV.spread(call, (), xs[4]), atol=1e-12)


def trace(step, params, hidden, x):
    from etrax.frontends import bind

    return bind(step, (x,), params=params, hidden=hidden, batch_size=None).step


def verdict_of_gains():
    params, hidden, xs, _ = task()
    return etrax.compile(fft.step, "d_rtrl", xs[0], params=params, hidden=hidden).report.verdicts["gains",]


def test_without_a_record_nothing_is_proved(table):
    del table["fft_conv"]
    found = verdict_of_gains()
    assert found.kind != "exact" and "`fft_conv`" in found.reason and "not known to the analysis" in found.reason


def test_a_pattern_that_does_not_fit_is_refused(table):
    register_primitive("fft_conv", Primitive(lambda call: [{}, {}], all_zero))
    with pytest.raises(etrax.CompilationError, match=r"record of the primitive `fft_conv`.* does not fit its outputs"):
        verdict_of_gains()


# y = x + 1 in reverse mode: its transpose is not linear, though each element depends on one.
shift_p = JaxPrimitive("shift_test")
shift_p.def_impl(lambda x: x + 1)
shift_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(shift_p, mlir.lower_fun(lambda x: x + 1, multiple_results=False))
ad.deflinear2(shift_p, lambda ct, x: [shift_p.bind(ct)])


@pytest.mark.parametrize(("zero", "kind"), [(all_zero, "exact"), (never_zero, "approximate")])
def test_an_affine_primitive_is_not_exact(table, zero, kind):
    """The record decides: told that it gives zero for zero, the analysis believes it."""
    register_primitive("shift_test", Primitive(pointwise, zero))
    step = lambda w, h, x: ((h := shift_p.bind(0.5 * h) + x @ w), h)
    found = etrax.compile(step, "d_rtrl", jnp.ones((2, 3)), params=jnp.ones((3, 4)), hidden=jnp.ones((2, 4)))
    assert found.report.verdicts[()].kind == kind


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        ((3, Primitive()), TypeError, "takes the name of a primitive, got int"),
        (("mine", pointwise), TypeError, "takes a `Primitive`, got function"),
        (("mul", Primitive()), ValueError, "Etrax knows `mul` itself"),
        (("jit", Primitive()), ValueError, "Etrax knows `jit` itself"),
        (("mine", Primitive(pointwise)), ValueError, "the record of `mine` has a `pattern` and no `zero`"),
        (("mine", Primitive(3, all_zero)), TypeError, "`Primitive.pattern` of `mine` is an int, not a function"),
    ],
)
def test_what_is_refused(table, args, error, text):
    with pytest.raises(error, match=text) as found:
        register_primitive(*args)
    assert isinstance(found.value, etrax.EtraxError)
    assert "mine" not in table


def test_a_record_can_be_given_again(table):
    register_primitive("mine", Primitive())
    again = Primitive(pointwise, all_zero)
    register_primitive("mine", again)
    assert table["mine"] is again
