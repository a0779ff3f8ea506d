"""Sums that a compiler gets wrong, and the flag that keeps it from doing so.

The CPU compiler of jaxlib 0.10.2 computes a product that is summed over its last axis and spread again,
`c * (c * x).sum(-1)[..., None]`, wrongly for more than 32,768 numbers of float32, in any JAX program: the derivative of
a norm for many cotangents at once is of this form. One of its passes is at fault, which a flag turns off.
`import etrax` sets the flag. Where it comes after the first computation of JAX, a program that holds such a sum is
looked for when it is traced, and only that is warned of.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import NamedTuple

import jax
import jaxlib.version
import numpy as np

from ._compat import Jaxpr, Literal, bodies_of, has_backends, open_jaxpr
from .compiler.ir import PyTree

VERSION, FAULTY = jaxlib.version.__version__, ("0.10.2",)
NAME = "--xla_cpu_experimental_ynn_fusion_type"
FLAG = f"{NAME}=-LIBRARY_FUSION_TYPE_REDUCE"
LARGEST_RIGHT = 32768  # numbers of a product whose sum still comes out right
# Operations that call a program with their own arguments.
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")
# Operations that a product may pass on its way to the sum.
SAME_VALUES = ("convert_element_type", "reshape", "transpose", "broadcast_in_dim", "copy", "squeeze", "neg")


def avoid_wrong_sums() -> None:
    """Turn the pass off in a version that has the fault, before JAX reads its flags: at its first computation."""
    flags = os.environ.get("XLA_FLAGS", "")
    if VERSION in FAULTY and NAME not in flags and not has_backends():
        os.environ["XLA_FLAGS"] = f"{flags} {FLAG}".strip()


@cache
def sums_go_wrong() -> bool:
    """Whether such a sum comes out wrong here. Whole numbers: nothing is rounded."""
    if jax.default_backend() != "cpu":
        return False
    rng = np.random.default_rng(0)
    x, c = (rng.integers(0, 4, shape).astype(np.float32) for shape in ((256, 20, 16), (20, 16)))

    def spread(x: np.ndarray, c: np.ndarray) -> np.ndarray:
        return c[None] * (c[None] * x).sum(-1)[..., None]

    with jax.ensure_compile_time_eval():  # also within a function that is being traced
        return bool((np.asarray(jax.jit(spread)(x, c)) != spread(x, c)).any())


def what_is_wrong(where: str = "in any JAX program") -> str:
    return (
        f"The CPU compiler of jaxlib {VERSION} computes some sums of float32 wrongly, {where}: a product of more than "
        "32,768 numbers that is summed over its last axis and spread again, as in the derivative of a norm. `import "
        "etrax` turns the faulty part off if it comes before the first computation of JAX: import it first, start "
        f"Python with `XLA_FLAGS={FLAG}`, or use another version of jaxlib."
    )


class Sums(NamedTuple):
    """Of a program: whether it spreads such a sum, and whether it returns one that its caller may spread."""

    spread: bool
    returned: bool


def holds_such_a_sum(jaxpr: Jaxpr) -> bool:
    """Whether a product of many float32 is summed over its last axis and then spread, in a program or its parts."""
    return _sums_of(jaxpr, [False] * len(jaxpr.invars)).spread


def _sums_of(jaxpr: Jaxpr, arguments_are_products: Sequence[bool]) -> Sums:
    products = {v for v, is_one in zip(jaxpr.invars, arguments_are_products, strict=True) if is_one}
    sums: set[object] = set()  # what depends on such a sum
    for eqn in jaxpr.eqns:
        name, arguments = eqn.primitive.name, [None if isinstance(v, Literal) else v for v in eqn.invars]
        of_product, of_sum = (any(v in some for v in arguments) for some in (products, sums))
        for body in bodies_of(eqn):
            # A call has the arguments of its body; those of a loop or branch are taken for products, to be safe.
            same = name in CALLS and len(body.invars) == len(arguments)
            inside = _sums_of(body, [v in products for v in arguments] if same else [True] * len(body.invars))
            if inside.spread:
                return Sums(True, True)
            of_sum = of_sum or inside.returned
        if name == "broadcast_in_dim" and of_sum:
            return Sums(True, True)
        if of_sum or (name == "reduce_sum" and of_product and _is_large(eqn.invars[0].aval, eqn.params["axes"])):
            sums.update(eqn.outvars)
        elif name == "mul" or (name in SAME_VALUES and of_product):
            products.update(eqn.outvars)
    return Sums(False, any(v in sums for v in jaxpr.outvars if not isinstance(v, Literal)))


def _is_large(aval: jax.ShapeDtypeStruct, axes: Sequence[int]) -> bool:
    return aval.dtype == np.float32 and aval.size > LARGEST_RIGHT and tuple(axes) == (len(aval.shape) - 1,)


def watched(run: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """`run`, which while it is traced warns of a sum in it that this compiler gets wrong."""

    @wraps(run)
    def traced(*args: PyTree) -> PyTree:
        if VERSION in FAULTY and sums_go_wrong() and holds_such_a_sum(open_jaxpr(jax.make_jaxpr(run)(*args))[0]):
            warnings.warn(what_is_wrong("and this program holds one"), stacklevel=2)
        return run(*args)

    return traced
