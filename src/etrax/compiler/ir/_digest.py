"""A digest of a program: what it computes, whatever its variables are called and wherever its code stands.

Two jaxprs have one digest if they are the same operations on the same inputs with the same constants. Names of
variables, source lines, addresses of objects, and functions that were jitted on the way do not count.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._compat import INLINED, Jaxpr, Literal, Var, inner_jaxpr, is_extended, is_jaxpr, open_jaxpr
from ._types import PyTree

SHOWN = 16  # hexadecimal digits
# Of an equation: names for people, and what does not change a number.
_NOT_COUNTED = frozenset({"name", "debug_info", "weak_type", "sharding", "out_sharding", "ctx_mesh"})
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|0x[0-9a-fA-F]{6,}")


def digest_of(*parts: object) -> str:
    """A digest of numbers, texts, arrays, programs, and containers of these.

    >>> digest_of({"a": 1.0}) == digest_of({"a": 1.0}), digest_of(1) == digest_of(True)
    (True, False)
    """
    sink = hashlib.sha256()
    _add(sink, parts)
    return sink.hexdigest()[:SHOWN]


def digest_of_function(function: Callable[..., PyTree], *avals: PyTree) -> str:
    """A digest of what a function computes from arrays of given shapes, and of its derivative where it has one.

    The derivative counts since rules of the user's (`jax.custom_jvp`) are functions inside the jaxpr, which say nothing
    until they are traced.
    """
    values = jax.make_jaxpr(function)(*avals)
    return digest_of(values, _derivative(function, avals))


def _derivative(function: Callable[..., PyTree], avals: Sequence[PyTree]) -> object:
    """The program of the reverse derivative by all leaves of floating point; None where JAX knows none."""
    leaves, tree = jax.tree.flatten(tuple(avals))
    moving = [i for i, a in enumerate(leaves) if jnp.issubdtype(a.dtype, np.inexact)]

    def pulled(leaves: list[jax.Array]) -> PyTree:
        def values(some: list[jax.Array]) -> list[jax.Array]:
            inputs = list(leaves)
            for i, value in zip(moving, some, strict=True):
                inputs[i] = value
            outs = jax.tree.leaves(function(*jax.tree.unflatten(tree, inputs)))
            return [a for a in outs if jnp.issubdtype(a.dtype, np.inexact)]

        outs, pull = jax.vjp(values, [leaves[i] for i in moving])
        return pull([jnp.ones_like(a) for a in outs])

    try:
        return jax.make_jaxpr(pulled)(leaves)
    except Exception:  # an operation without a derivative, or a rule of the user's that raises
        return None


def _add(sink: Any, value: object) -> None:
    """Feed a value to the hash, by its kind and content."""
    if is_jaxpr(value):
        _add_program(sink, value)
    elif isinstance(value, enum.Enum):
        _tell(sink, "enum", type(value).__name__, value.name)
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        _tell(sink, type(value).__name__, value.hex() if isinstance(value, float) else repr(value))
    elif isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        _tell(sink, "dtype", np.dtype(value).name)
    elif isinstance(value, np.ndarray | np.generic | jax.Array):
        _add_array(sink, value)
    elif isinstance(value, Mapping):
        entries = [(digest_of(k), k, v) for k, v in value.items()]
        _add(sink, ("mapping", [(k, v) for _, k, v in sorted(entries, key=lambda e: e[0])]))
    elif isinstance(value, set | frozenset):
        _add(sink, ("set", sorted(map(digest_of, value))))
    elif isinstance(value, Sequence):
        _tell(sink, type(value).__name__ if hasattr(value, "_fields") else "sequence", str(len(value)))
        for item in value:
            _add(sink, item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        _add(sink, (type(value).__name__, fields))
    elif callable(value):
        _tell(sink, "function", getattr(value, "__qualname__", type(value).__name__))
    else:
        _tell(sink, type(value).__name__, _ADDRESS.sub("", repr(value)))


def _tell(sink: Any, *words: str) -> None:
    for word in words:
        data = word.encode("utf-8", "surrogatepass")
        sink.update(len(data).to_bytes(8, "little") + data)


def _add_array(sink: Any, value: Any) -> None:
    kind = str(value.dtype)
    if is_extended(value):
        value = jax.random.key_data(value)
    numbers = np.ascontiguousarray(np.asarray(value))
    _tell(sink, "array", kind, str(numbers.shape))
    sink.update(numbers.reshape(-1).view(np.uint8).data if numbers.size else b"")


def _add_program(sink: Any, program: Any) -> None:
    jaxpr, consts = open_jaxpr(program)
    names = {v: f"value {i}" for i, v in enumerate((*jaxpr.constvars[len(consts) :], *jaxpr.invars))}
    _tell(sink, "program", str(len(names)), *(_type_of(v.aval) for v in names))
    names.update(zip(jaxpr.constvars, map(_constant, consts), strict=False))
    _add_equations(sink, jaxpr, names, itertools.count(len(names)))
    _tell(sink, "results", *(_operand(v, names) for v in jaxpr.outvars))


def _add_equations(sink: Any, jaxpr: Jaxpr, names: dict[Var, str], numbers: Iterator[int]) -> None:
    """Every equation by its operation, settings and operands; calls that may be written out are.

    `known` says of every variable what it stands for: a constant by its content, all else by a number in the order of
    the program.
    """
    for eqn in jaxpr.eqns:
        operands = [_operand(v, names) for v in eqn.invars]
        if eqn.primitive.name in INLINED:
            body, consts = inner_jaxpr(eqn)
            names.update(zip(body.constvars, map(_constant, consts), strict=False))
            names.update(zip((*body.constvars[len(consts) :], *body.invars), operands, strict=True))
            _add_equations(sink, body, names, numbers)
            results = [_operand(v, names) for v in body.outvars]
        else:
            results = [f"value {next(numbers)}" for _ in eqn.outvars]
            _tell(sink, "equation", eqn.primitive.name, *operands, *(_type_of(v.aval) for v in eqn.outvars))
            _add(sink, {k: v for k, v in eqn.params.items() if k not in _NOT_COUNTED})
        names.update(zip(eqn.outvars, results, strict=True))


def _operand(v: Any, names: Mapping[Var, str]) -> str:
    if not isinstance(v, Literal):
        return names[v]
    return _constant(v.val if is_extended(v.aval) else np.asarray(v.val, v.aval.dtype))


def _constant(value: object) -> str:
    return f"constant {digest_of(value)}"


def _type_of(aval: Any) -> str:
    return f"{getattr(aval, 'dtype', type(aval).__name__)}{list(getattr(aval, 'shape', ()))}"
