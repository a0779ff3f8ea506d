# %% [markdown]
# # An operation and a primitive of your own
#
# Weights are recognised in ordinary primitives; most models need nothing more. Your own primitive is handled
# automatically where each element of its weight reaches one position. For the rest there are two records. Here is a
# convolution by FFT, y = irfft(rfft(x) w), as a new JAX primitive: first what JAX has to know.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

import etrax
from etrax.compiler.primitives import along, any_zero


def filtered(x, w):
    """Each frequency of x, along its last axis, times its gain."""
    return jnp.fft.irfft(jnp.fft.rfft(x) * w, x.shape[-1])


def transposed(x, w, g):
    return jax.linear_transpose(lambda w: filtered(x, w), w)(g)[0]


fft_p = Primitive("fft_filter")
fft_p.def_impl(filtered)
fft_p.def_abstract_eval(lambda x, w: x.update(weak_type=False))
mlir.register_lowering(fft_p, mlir.lower_fun(filtered, multiple_results=False))
ad.defbilinear(fft_p, lambda ct, x, w: fft_p.bind(ct, w), lambda ct, x, w: transposed(x, w.aval, ct))
batching.primitive_batchers[fft_p] = lambda args, dims: (jax.vmap(filtered, dims)(*args), 0)

# %% [markdown]
# `register_primitive` tells the analysis how elements of the operands reach those of the output, so that gradients
# *through* the op can be proved exact: along the last axis every element reaches every other, samples stay apart.

# %%
etrax.register_primitive(
    "fft_filter", etrax.Primitive(pattern=lambda call: along(call, 0, [-1]), zero=any_zero(0, 1), product=True)
)

# %% [markdown]
# `register_weight_op` gives the op its trace: the shape, how a step adds to it (`outer`), how a factor of the state
# is laid over it (`spread`), how a gradient is read from it (`apply`), and the gradient of the present step (`grad`).
# One entry for every pair of an element of y and a gain that it reads.


# %%
def shares(x):
    """∂y/∂w, (..., frequency, place): what each frequency of x adds at each place."""
    spectrum = jnp.fft.rfft(x)[..., None, :]
    return jnp.fft.irfft(spectrum * jnp.eye(spectrum.shape[-1]), x.shape[-1]).astype(x.dtype)


rule = etrax.OpRule(
    name="fft filter",
    mixes=True,
    accepts=lambda call: call.weight == 1 and len(call.w.shape) == 1,
    trace_shape=lambda call: (*call.out.shape[:-1], *call.w.shape, call.out.shape[-1]),
    outer=lambda call, fixed, u, c: (shares(u[0]) * c[..., None, :]).sum(0),
    spread=lambda call, fixed, p: p[..., None, :],
    apply=lambda call, fixed, trace, g: jnp.einsum("...fn,...n->f", trace, g),
    grad=lambda call, fixed, u, g: transposed(u[0], call.w, g),
)
etrax.register_weight_op("fft_filter", rule)

# %% [markdown]
# A model that uses it, and its gradient in windows of two steps beside BPTT.

# %%
keys = jax.random.split(jax.random.key(0), 3)
params, hidden = {"gains": jax.random.normal(keys[0], (5,))}, jnp.zeros((4, 8))
xs, ys = jax.random.normal(keys[1], (50, 4, 8)), jax.random.normal(keys[2], (50, 4, 8))
step = lambda p, h, x: (0.9 * h + fft_p.bind(x, p["gains"]),) * 2
loss = lambda output, target: jnp.mean((output - target) ** 2)
learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=hidden)
print(etrax.testing.compare(learner, loss, params, hidden, xs, ys, window=2).check())

(_, online), _ = learner.value_and_grad(loss, window=2)(params, learner.init(), xs, ys)
_, whole = etrax.testing.bptt(learner, loss)(params, hidden, xs, ys)
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.bar(range(5), whole["gains"], color="lightgrey", label="BPTT")
axes.plot(online["gains"], "o", label="windows of two steps")
axes.set(xlabel="frequency", ylabel="gradient of its gain")
_ = axes.legend()

# %% [markdown]
# `examples/fft_convolution.py` is the same as one file to copy. What the pieces compute is a table in the docstring
# of [`OpRule`](../api/compiler.md), what is known of primitives one in that of `Primitive`.
