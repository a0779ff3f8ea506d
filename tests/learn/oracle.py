"""Independent of the library: BPTT of a zoo model by `jax.grad` over `lax.scan`."""

import jax
import jax.numpy as jnp
import numpy as np


def bptt(model, inputs, targets, run=lambda function, *args: jax.jit(function)(*args)):
    """Gradient of the mean loss over the steps; `run(function, *args)` evaluates it."""

    def total(moving):
        def body(h, xs):
            h, output = model.step(put(model.params, moving), h, *xs[0])
            return h, model.loss(output, xs[1])

        return jax.lax.scan(body, model.hidden, (inputs, targets))[1].mean()

    return put(jax.tree.map(jnp.zeros_like, model.params), run(jax.grad(total), moving(model.params)))


def moving(tree):
    return [a for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.inexact)]


def put(tree, values):
    found = iter(values)
    return jax.tree.map(lambda a: next(found) if jnp.issubdtype(a.dtype, jnp.inexact) else a, tree)


def relative_error(got, want):
    got, want = (np.asarray(jnp.asarray(a)).astype(complex).ravel() for a in (got, want))
    size = np.linalg.norm(want)
    return np.linalg.norm(got - want) / size if size else np.linalg.norm(got)
