"""Which synapses a product with a fixed connectivity has, and what an event counts for in it.

Both are held against the product itself, and its own derivative, when a model is compiled: libraries differ, and one
library from release to release, in what counts as an event.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..._compat import is_concrete
from ..._errors import CompilationError
from ..primitives import PRODUCTS, Stored
from ._base import OpCall, Operands, size
from ._entries import Entries, entries_of

AnyArray = TypeVar("AnyArray", Array, np.ndarray)
# What data count for, element by element; of arrays of JAX or numpy.
Count: TypeAlias = Callable[[AnyArray], AnyArray]
Answer = TypeVar("Answer")
# What an event may count for: its value, or one where it is positive, or one where it is not zero.
_COUNTS: tuple[Count, ...] = (lambda x: x, lambda x: x > 0, lambda x: x != 0)


class Counts(NamedTuple):
    """What data count for in the product, and in its derivative by the weights."""

    forward: Count
    backward: Count


def columns_of(call: OpCall) -> int:
    """How many elements of the data, along their first axis, the matrix reads."""
    return call.operands[PRODUCTS[call.primitive].data].shape[0]


def synapses(call: OpCall, fixed: Operands, rows: int) -> Entries:
    """Row and column of each weight: `along` is the axis that the storage goes through, `across` the other one."""
    xp = np if is_concrete(fixed) else jnp
    stored = PRODUCTS[call.primitive].stored
    first, *others = (xp.asarray(a) for a in fixed) if fixed else (np.indices(call.w.shape)[1],)
    if stored is Stored.COO:
        along, across = first, others[0]
    elif stored in (Stored.ELL, Stored.DENSE):
        # Row by row equally many: the indices are a rectangle.
        along, across = xp.repeat(xp.arange(first.shape[0]), first.shape[1]), first.reshape(-1)
    else:
        # The second array says where each row starts, and the last one ends.
        n = others[0].shape[0] - 1
        repeat = np.repeat if xp is np else partial(jnp.repeat, total_repeat_length=first.shape[0])
        along, across = repeat(xp.arange(n), xp.diff(others[0])), first
    if stored is Stored.CSR_BY_SLOT:
        # Weights lie in slots of their own order: weight s belongs to the entry whose slot is s.
        order = xp.argsort(others[1])
        along, across = along[order], across[order]
    return entries_of(*((across, along) if call.params["transpose"] else (along, across)), (rows, columns_of(call)))


def _some(call: OpCall, operand: int) -> np.ndarray:
    """An operand for a trial: a connectivity of that shape, or numbers that tell ways to count apart."""
    product, struct = PRODUCTS[call.primitive], call.operands[operand]
    n, count = size(struct.shape), np.arange(size(struct.shape))
    if operand in product.weights:
        values = np.cos(count)
    elif operand == product.data:
        values = np.resize([-1.0, 0.5, 2.0, 0.0, 1.0, -0.5, 3.0], n)
    elif product.stored in (Stored.CSR, Stored.CSR_BY_SLOT) and operand == 2:
        values = np.linspace(0, size(call.operands[1].shape), n).astype(int)
    elif product.stored is Stored.CSR_BY_SLOT and operand == 3:
        values = count[::-1]
    elif operand in (1, 2) and product.stored is not Stored.NOT:
        # Indices within the matrix, some of them twice; those of operand 1 of a COO are of the other axis.
        outer = product.stored is Stored.COO and operand == 1
        rows, columns = call.out.shape[0], columns_of(call)
        values = (3 * count + count // 5) % (rows if outer is not bool(call.params["transpose"]) else columns)
    else:
        values = np.full(n, 2)
    return values.reshape(struct.shape).astype(struct.dtype)


_TRIED: dict[Hashable, object] = {}


def counts_of(call: OpCall) -> Counts | None:
    """What data count for, by a trial; None if the product is not the one that its row of the table says."""
    return _remembered(call, _find_counts, None)


def is_linear(call: OpCall) -> bool:
    """Whether the derivative by a weight that all synapses share is the product for a weight of one, by a trial."""
    return _remembered(call, _find_unit, False)


def _remembered(call: OpCall, find: Callable[[OpCall], Answer], otherwise: Answer) -> Answer:
    """What a trial finds for a call of these shapes; `otherwise` if its operands are not those of the table."""
    params = (repr(call.params.get(p)) for p in ("transpose", "weighted", "backend"))
    key = find, call.primitive, call.weight, call.operands, *params
    if key not in _TRIED:
        product = PRODUCTS[call.primitive]
        as_listed = call.run is not None and len(call.operands) == 1 + len(product.weights) + len(product.fixed)
        _TRIED[key] = find(call) if as_listed else otherwise
    return cast("Answer", _TRIED[key])


class _Trial(NamedTuple):
    """Operands, the product, a cotangent of it, and what its own derivative makes of that."""

    values: list[np.ndarray]
    y: np.ndarray
    bar: np.ndarray
    w_bar: np.ndarray


def _trial(call: OpCall) -> _Trial:
    values = [_some(call, i) for i in range(len(call.operands))]
    bar = np.sin(1.0 + np.arange(size(call.out.shape))).reshape(call.out.shape).astype(call.out.dtype)

    def product_and_derivative(w: Array, bar: Array) -> tuple[Array, Array]:
        y, pull = jax.vjp(lambda w: with_weight(call, values, w), w)
        return y, pull(bar)[0]

    try:
        y, w_bar = _run(product_and_derivative, values[call.weight], bar)
    except Exception as e:
        raise CompilationError(
            f"`{call.primitive}`, a product of the model with its connections, cannot be computed here: {e}\n"
            "brainevent computes on CPU by numba: `pip install numba`, or, where it can do without, "
            '`brainevent.config.set_backend("cpu", "jax_raw")` before the model is compiled.'
        ) from e
    return _Trial(values, np.asarray(y), bar, np.asarray(w_bar))


def _run(f: Callable[..., Answer], *args: np.ndarray) -> Answer:
    """f of arrays, as one program, even while something else is traced.

    Where a derivative rule asks for the numbers of its connections, it runs equation by equation.
    """
    try:
        return jax.jit(f).lower(*args).compile()(*args)
    except jax.errors.TracerArrayConversionError:
        with jax.ensure_compile_time_eval():
            return f(*map(jnp.asarray, args))


def with_weight(call: OpCall, values: Operands, w: Array) -> Array:
    """The product with another weight."""
    assert call.run is not None
    return call.run([w if i == call.weight else v for i, v in enumerate(values)])


def _alike(a: np.ndarray, b: np.ndarray) -> bool:
    return np.allclose(a.reshape(-1).astype(float), b.reshape(-1).astype(float), rtol=1e-3, atol=1e-5)


def _find_counts(call: OpCall) -> Counts | None:
    """The product, and its derivative by the weights, computed synapse by synapse for each way to count."""
    product, (values, y, bar, w_bar) = PRODUCTS[call.primitive], _trial(call)
    w, x = values[call.weight].reshape(-1, 1), values[product.data]
    at = synapses(call, [values[i] for i in product.fixed], call.out.shape[0])
    keep = 1 if at.counts is None else at.counts[:, None]

    def by_synapse(count: Count) -> tuple[np.ndarray, np.ndarray]:
        u = count(x).astype(float).reshape(x.shape[0], -1)[at.cols] * keep
        y = np.zeros((call.out.shape[0], u.shape[1]))
        np.add.at(y, at.rows, w * u)
        return y, np.sum(u * bar.reshape(y.shape)[at.rows], 1)

    by = [(count, *by_synapse(count)) for count in _COUNTS]
    forward = next((count for count, counted, _ in by if _alike(y, counted)), None)
    backward = next((count for count, _, counted in by if _alike(w_bar, counted)), None)
    return None if forward is None or backward is None else Counts(forward, backward)


def _find_unit(call: OpCall) -> bool:
    values, _, bar, w_bar = _trial(call)
    for i in PRODUCTS[call.primitive].weights:
        values[i] = np.full_like(values[i], i == call.weight)
    unit = np.asarray(_run(lambda w: with_weight(call, values, w), values[call.weight]))
    return _alike(w_bar, np.sum(unit * bar, keepdims=True))
