"""The record of a primitive, the table that holds one for each, and what a rule about patterns is given."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from ..._compat import CUSTOM, INLINED, JaxprEqn, is_inexact
from ..._errors import ArgumentError, ArgumentTypeError
from ..ir import source_of_eqn
from ._dep import Cause, Dep, everything, union
from ._name import Naming
from ._range import Bounds, Poles

# Dependence of one array on each source, which any key may name; an absent source is no dependence.
Deps: TypeAlias = dict[Hashable, Dep]
# How to get the value of an operand, if it is a constant of the model.
Constant: TypeAlias = Callable[[], np.ndarray | None]


class Precision(NamedTuple):
    """What a type of real or complex numbers can tell apart: bits of the exponent and of the fraction."""

    exponent: int
    fraction: int

    @classmethod
    def of(cls, dtype: np.dtype) -> Precision:
        info = jnp.finfo(dtype)
        return cls(int(info.nexp), int(info.nmant))

    def holds(self, other: Precision) -> bool:
        """Whether numbers of the other type are not rounded by this one."""
        return self.exponent >= other.exponent and self.fraction >= other.fraction


@dataclass(frozen=True)
class Call:
    """One equation, the dependences of its operands, and its operands' values where these are constants."""

    eqn: JaxprEqn
    deps: Sequence[Deps]
    value: Callable[[int], np.ndarray | None]
    note: Callable[[str, Precision | None], None]

    @property
    def params(self) -> dict[str, Any]:
        return self.eqn.params

    @property
    def cause(self) -> Cause:
        return Cause(self.eqn.primitive.name, source_of_eqn(self.eqn))

    def problem(self, text: str, precision: Precision | None = None) -> None:
        """Note that the equation is not linear in what it is given, or not known; or that it rounds to what is kept."""
        self.note(text, precision)

    def in_shape(self, i: int) -> tuple[int, ...]:
        return self.eqn.invars[i].aval.shape

    def out_shape(self, i: int = 0) -> tuple[int, ...]:
        return self.eqn.outvars[i].aval.shape


Pattern: TypeAlias = Callable[[Call], list[Deps]]
# Whether the outputs are zero, given which operands are.
Zero: TypeAlias = Callable[[JaxprEqn, Sequence[bool]], bool]
# Per axis of an array, whether all of its elements along that axis are equal.
Along: TypeAlias = tuple[bool, ...]
# Axes along which each output is uniform, given those of the operands.
Uniformity: TypeAlias = Callable[[JaxprEqn, Sequence[Along]], list[Along]]
# The result of an equation, given arrays of whole numbers or truth values.
Numbers: TypeAlias = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Primitive:
    """What is known of a primitive. Whatever is left out takes the careful path, and is reported where it matters.

    | field | says |
    |---|---|
    | `pattern(call)` | which elements of the sources each output depends on; it notes where that is not linear |
    | `zero(eqn, zeros)` | whether the outputs are zero, given which operands are: `all_zero`, `any_zero(0, 1)` |
    | `bounds(eqn, ranges)` | the `Range` of the output, given those of the operands |
    | `elementwise` | element e of the output is made of element e of each operand (scalars are spread) |
    | `product` | the first operand is multiplied with, or divided by, the second |
    | `uniform(eqn, along)` | axes along which all elements of an output are equal, given those of the operands |
    | `name(eqn, names)` | the name of the output, up to a unit, given those of the operands (`_name.py`) |
    | `numbers(eqn, *arrays)` | the output, by numpy, for whole numbers and truth values |
    | `poles(eqn)` | by operand, where the output is infinite: `pole(1)`, `anywhere` |
    | `steep(eqn)` | the operands by which a slope has no bound: `slope_in(0)` |
    | `differentiable` | False: real numbers have a derivative of zero everywhere |
    | `light` | moves, repeats, drops or sums elements: it costs about what it reads and writes |
    | `reshapes` | gives all elements of its operand, in another shape, order or type, perhaps repeated |
    | `casts` | converts to the type of its output |
    | `rounds` | rounds to fewer digits than the type of its output has |

    >>> import etrax
    >>> etrax.Primitive(elementwise=True).elementwise
    True
    """

    pattern: Pattern | None = None
    zero: Zero | None = None
    bounds: Bounds | None = None
    elementwise: bool = False
    product: bool = False
    uniform: Uniformity | None = None
    name: Naming | None = None
    numbers: Numbers | None = None
    poles: Poles | None = None
    steep: Callable[[JaxprEqn], Sequence[int]] | None = None
    differentiable: bool = True
    light: bool = False
    reshapes: bool = False
    casts: bool = False
    rounds: bool = False


TABLE: dict[str, Primitive] = {}
_UNKNOWN = Primitive()
_REGISTERED: set[str] = set()


def define(*names: str, **facts: object) -> None:
    """Put one record, with these fields, for each of these primitives into the table."""
    TABLE.update(dict.fromkeys(names, Primitive(**facts)))  # type: ignore[arg-type]


def record_of(name: str) -> Primitive:
    """The record of a primitive: an empty one if nothing is known."""
    return TABLE.get(name, _UNKNOWN)


def is_own(name: str) -> bool:
    """Whether Etrax knows a primitive itself, so that its record never changes."""
    return name in TABLE and name not in _REGISTERED


def register_primitive(name: str, record: Primitive) -> None:
    """Tell the analysis what a primitive of your own does, so that gradients through it can be proved exact.

    The record is about the primitives that reverse mode meets: register the primitive and those of its transpose.
    Compile after that. What it says is taken on trust: hold it against `jax.jacrev`, as Etrax's own tests do.

    >>> import etrax
    >>> from etrax.compiler.primitives import all_zero, along
    >>> smooth = etrax.Primitive(pattern=lambda call: along(call, 0, [-1]), zero=all_zero)
    >>> etrax.register_primitive("smooth", smooth)   # linear, mixes along the last axis, keeps samples apart

    `examples/fft_convolution.py` is a whole op of one's own.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"`register_primitive` takes the name of a primitive, got {type(name).__name__}: `primitive.name`."
        )
    if not isinstance(record, Primitive):
        raise ArgumentTypeError(
            f"`register_primitive` takes a `Primitive`, got {type(record).__name__}: "
            "`etrax.Primitive(pattern=..., zero=...)`."
        )
    if name in INLINED or is_own(name):
        raise ArgumentError(
            f"`register_primitive`: Etrax knows `{name}` itself, and its verdicts rest on that. Give a primitive of "
            "your own another name."
        )
    for field in (f.name for f in fields(record) if f.default is None):
        value = getattr(record, field)
        if value is not None and not callable(value):
            raise ArgumentTypeError(f"`Primitive.{field}` of `{name}` is a {type(value).__name__}, not a function.")
    if record.pattern is not None and record.zero is None:
        raise ArgumentError(
            f"the record of `{name}` has a `pattern` and no `zero`: an affine map has the pattern of a linear one. Say "
            "`zero=all_zero` if it gives zero for zero, `zero=any_zero(i)` if operand i alone decides, or "
            "`zero=never_zero`."
        )
    TABLE[name] = record
    _REGISTERED.add(name)


def all_zero(eqn: JaxprEqn, zeros: Sequence[bool]) -> bool:
    """Zero if all numbers among the operands are."""
    numbers = [zero for zero, v in zip(zeros, eqn.invars, strict=True) if is_inexact(v.aval)]
    return all(numbers or zeros)


def any_zero(*operands: int) -> Zero:
    """Zero if one of these operands is: factors of a product, a numerator, the right-hand side of a solve."""
    return lambda eqn, zeros: any(zeros[i] for i in operands)


def never_zero(eqn: JaxprEqn, zeros: Sequence[bool]) -> bool:
    """Not linear, or affine: nothing that passes is exact."""
    return False


def slope_in(*operands: int) -> Callable[[JaxprEqn], Sequence[int]]:
    """The slope by these operands has no bound; by any operand, if none is named."""
    return lambda eqn: operands or range(len(eqn.invars))


def on_operand(call: Call, f: Callable[[Dep], Dep], operand: int = 0) -> list[Deps]:
    """One output that depends, through one operand only, by `f`; other operands must carry no dependence."""
    if any(deps for i, deps in enumerate(call.deps) if i != operand):
        return conservative(call)
    return [{source: f(dep) for source, dep in call.deps[operand].items()}]


def conservative(call: Call) -> list[Deps]:
    """Named worst case: every output element depends on all that any operand depends on."""
    out = []
    for v in call.eqn.outvars:
        merged: dict[Hashable, list[Dep]] = {}
        for deps in call.deps:
            for source, dep in deps.items():
                merged.setdefault(source, []).append(everything(dep, v.aval.shape, call.cause))
        out.append({source: union(parts) for source, parts in merged.items()})
    return out


# What hands its operands on, or holds programs: the solver of `compiler/dataflow` walks these itself.
define("cond", "linear_call", "optimization_barrier", "scan", "shard_map", "while", *CUSTOM)
