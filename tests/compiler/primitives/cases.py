"""Small functions of one array, by name: what a backward pass may contain.

`CASES[name] = Case(f, x, data, precise)`: f(x, *data) is linear in x. `precise` says that the pattern must be exactly
where its Jacobian is not zero for some data; else it may be larger, never smaller.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Case(NamedTuple):
    f: Callable
    x: Any
    data: tuple[Any, ...] = ()
    precise: bool = True


def struct(shape, dtype=float):
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


X = struct((3, 4))
CASES: dict[str, Case] = {}


def linear(name, f, x=X, *data, precise=True):
    CASES[name] = Case(f, x, data, precise)


def transposed(name, f, x=X, precise=True):
    """The reverse mode of f, as a function of the cotangent, with the point as data."""
    out = jax.eval_shape(f, x)
    CASES["back " + name] = Case(lambda ct, at: jax.vjp(f, at)[1](ct)[0], out, (x,), precise)


def draw(struct, seed: int):
    """Random numbers for a shape and dtype."""
    rng = np.random.RandomState(seed)
    if jnp.issubdtype(struct.dtype, jnp.complexfloating):
        return jnp.asarray(rng.standard_normal(struct.shape) + 1j * rng.standard_normal(struct.shape))
    return jnp.asarray(rng.standard_normal(struct.shape), struct.dtype)
