"""Records in words: every field, each on one line, without what differs from run to run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from .._compat import Primitive, is_jaxpr, open_jaxpr, shape_struct
from ..compiler.ir import Source, format_path

_MANY = 12


def show(record: NamedTuple) -> str:
    """A named tuple with all its fields."""
    rows = [f"  {name}={brief(value)}," for name, value in record._asdict().items()]
    return "\n".join([f"{type(record).__name__}(", *rows, ")"])


def brief(value: Any) -> str:
    """One line for the value of a field. Records of this package say theirs in `_brief`."""
    if hasattr(type(value), "_brief"):
        return value._brief
    if value is None or isinstance(value, str | bool | int | float | Enum):
        return str(value) if isinstance(value, Enum) else repr(value)
    if isinstance(value, Source | Primitive):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + _joined(f"{_key(k)}: {brief(v)}" for k, v in value.items()) + "}"
    if _is_path(value):
        return format_path(value)
    if isinstance(value, list | tuple):
        return "[" + _joined(brief(v) for v in value) + "]"
    if is_jaxpr(value):
        return f"jaxpr of {counted(len(open_jaxpr(value)[0].eqns), 'equation')}"
    if hasattr(value, "aval"):  # a variable of a jaxpr, a leaf of a step
        return _array(value.aval)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _array(value)
    return type(value).__name__


def _key(key: object) -> str:
    # The number of an object is another in every run.
    return "id" if isinstance(key, int) else brief(key)


def _is_path(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], str) and not hasattr(value, "_fields")


def _array(value: object) -> str:
    struct = shape_struct(value)
    return f"{struct.dtype}[{','.join(map(str, struct.shape))}]"


def _joined(parts: Iterable[str]) -> str:
    texts = list(parts)
    more = [f"{len(texts) - _MANY} more"] if len(texts) > _MANY else []
    return ", ".join([*texts[:_MANY], *more])


def counted(n: int, name: str) -> str:
    """A number of things in words."""
    return f"{n} {name}{'' if n == 1 else 's'}"
