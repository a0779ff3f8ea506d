"""Constants of one derivative: values that it does not differentiate, and that every derivative around it does.

`lax.stop_gradient` stops all derivatives. A gradient that is computed inside a learner needs constants of its own (what
a trace records of a step is not differentiated by the window), but a user who differentiates the learner is to get the
derivative of what it computes. Each derivative that has such constants therefore has a mark, one more number that it
differentiates and nobody else does. `detach` joins a value with the mark: its derivative is zero for who differentiates
the mark, and that of the value for everyone else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array
from jax.interpreters import ad, batching, mlir

from ..._compat import Primitive, is_inexact
from ._types import PyTree

# A tree of values → the same values as constants of one derivative.
Detach: TypeAlias = Callable[[Any], Any]

_detach = Primitive("detach")
_detach.def_impl(lambda x, mark: x)
_detach.def_abstract_eval(lambda x, mark: x)
mlir.register_lowering(_detach, lambda ctx, x, mark: [x])


def _jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Array, Any]:
    if isinstance(tangents[1], ad.Zero):
        return _detach.bind(*primals), tangents[0]
    return primals[0], ad.Zero(jax.typeof(primals[0]).to_tangent_aval())


ad.primitive_jvps[_detach] = _jvp
batching.primitive_batchers[_detach] = lambda args, dims: (_detach.bind(*args), dims[0])


def detaching_vjp(function: Callable[..., Any], *args: PyTree, has_aux: bool = False) -> tuple[Any, ...]:
    """`jax.vjp` of `function(detach, *args)`, where `detach(tree)` are constants of this derivative alone.

    >>> import jax
    >>> product = lambda w: detaching_vjp(lambda detach, x: detach(w * x) * x, 2.0)[1](1.0)[0]
    >>> print(product(3.0), jax.grad(product)(3.0))
    6.0 2.0
    """

    def run(mark: Array, *args: PyTree) -> Any:
        return function(partial(jax.tree.map, partial(_detached, mark)), *args)

    out, pull, *aux = jax.vjp(run, jnp.zeros(()), *args, has_aux=has_aux)
    return out, lambda cotangents: pull(cotangents)[1:], *aux


def _detached(mark: Array, x: Any) -> Any:
    return _detach.bind(x, mark) if is_inexact(jax.typeof(x)) else x
