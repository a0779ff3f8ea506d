"""What a model that tries to fool the analysis is made of: `MODELS[name] = (model, verdict of each parameter)`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

EXACT, APPROXIMATE, TRUNCATED, UNUSED = "exact", "approximate", "truncated", "unused"


class Model(NamedTuple):
    step: Callable
    params: Any
    hidden: Any
    make_inputs: Callable


_rng = np.random.RandomState(0)
MODELS: dict[str, tuple[Model, dict[str, str]]] = {}


def array(*shape):
    return jnp.asarray(_rng.standard_normal(shape))


def inputs(*shapes):
    return lambda T, seed: tuple(
        jnp.asarray(np.random.RandomState(seed + i).standard_normal((T, *s))) for i, s in enumerate(shapes)
    )


def model(name, new, params, hidden, x, output=lambda p, h: h, **verdicts):
    """h' = new(params, h, x), seen through `output`."""

    def step(params, hidden, x):
        hidden = new(params, hidden, x)
        return hidden, output(params, hidden)

    MODELS[name] = Model(step, params, hidden, inputs(x)), verdicts


def backward(rule):
    """The identity, with a derivative rule ct ↦ rule(ct, x)."""
    f = jax.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, x), lambda x, ct: (rule(ct, x),))
    return f


def leaky(f):
    return lambda p, h, x: f(0.9 * h + x @ p["w"])


W, V = {"w": array(3, 4)}, {"w": array(3, 4), "a": array(4)}
