"""An operation of your own, learned exactly: a convolution by FFT, y = irfft(rfft(x) * w), as a new JAX primitive.

    python examples/fft_convolution.py

Etrax has never seen the primitive. Two records tell it what it needs: what a trace of the op looks like
(`register_weight_op`), and how gradients pass through the primitive (`register_primitive`).
"""

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

import etrax
from etrax.compiler.primitives import along, any_zero


def filtered(x, w):
    """Each frequency of x, along its last axis, times its gain."""
    return jnp.fft.irfft(jnp.fft.rfft(x) * w, x.shape[-1])


def transposed(x, w, g):
    return jax.linear_transpose(lambda w: filtered(x, w), w)(g)[0]


# What JAX has to know. Real gains make a symmetric matrix: the transpose with respect to x is the op itself.
fft_conv_p = Primitive("fft_conv")
fft_conv_p.def_impl(filtered)
fft_conv_p.def_abstract_eval(lambda x, w: x.update(weak_type=False))
mlir.register_lowering(fft_conv_p, mlir.lower_fun(filtered, multiple_results=False))
ad.defbilinear(fft_conv_p, lambda ct, x, w: fft_conv_p.bind(ct, w), lambda ct, x, w: transposed(x, w.aval, ct))
batching.primitive_batchers[fft_conv_p] = lambda args, dims: (jax.vmap(filtered, dims)(*args), 0)


def shares(x):
    """∂y/∂w, (..., frequency, place): what each frequency of x adds at each place."""
    spectrum = jnp.fft.rfft(x)[..., None, :]
    return jnp.fft.irfft(spectrum * jnp.eye(spectrum.shape[-1]), x.shape[-1]).astype(x.dtype)


# What Etrax has to know. A trace has one entry for every pair of an element of y and a gain that it reads.
FFT_CONV = etrax.OpRule(
    name="fft convolution",
    mixes=True,
    accepts=lambda call: call.weight == 1 and len(call.w.shape) == 1,
    trace_shape=lambda call: (*call.out.shape[:-1], *call.w.shape, call.out.shape[-1]),
    outer=lambda call, fixed, u, c: (shares(u[0]) * c[..., None, :]).sum(0),
    spread=lambda call, fixed, p: p[..., None, :],
    apply=lambda call, fixed, trace, g: jnp.einsum("...fn,...n->f", trace, g),
    grad=lambda call, fixed, u, g: transposed(u[0], call.w, g),
)
# Linear in x and in w; along the last axis every element reaches every other, samples stay apart.
RECORD = etrax.Primitive(pattern=lambda call: along(call, 0, [-1]), zero=any_zero(0, 1), product=True)
etrax.register_weight_op("fft_conv", FFT_CONV)
etrax.register_primitive("fft_conv", RECORD)


def step(params, hidden, x):
    wave = 0.8 * hidden["wave"] + x
    h = 0.9 * hidden["h"] + fft_conv_p.bind(wave, params["gains"])
    return {"wave": wave, "h": h}, jnp.tanh(h) @ params["out"]


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def main(steps=200, batch=4, places=16, window=5, file="fft_convolution.png"):
    import matplotlib.pyplot as plt

    keys = jax.random.split(jax.random.key(0), 4)
    params = {"gains": jax.random.normal(keys[0], (places // 2 + 1,)), "out": jax.random.normal(keys[1], (places, 2))}
    hidden = {"wave": jnp.zeros((batch, places)), "h": jnp.zeros((batch, places))}
    xs, ys = (jax.random.normal(k, (steps, batch, n)) for k, n in zip(keys[2:], (places, 2), strict=True))
    learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=hidden)
    table = etrax.testing.compare(learner, loss, params, hidden, xs, ys, window=window)
    print(learner.report, table.check(), sep="\n")
    (_, online), _ = learner.value_and_grad(loss, window=window)(params, learner.init(), xs, ys)
    _, whole = etrax.testing.bptt(learner, loss)(params, hidden, xs, ys)
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.bar(range(len(online["gains"])), whole["gains"], color="lightgrey", label="BPTT")
    axes.plot(online["gains"], "o", label=f"d_rtrl, windows of {window} of {steps} steps")
    axes.set(xlabel="frequency", ylabel="gradient of its gain")
    axes.legend()
    figure.savefig(file, dpi=150)
    return table


if __name__ == "__main__":
    main()
