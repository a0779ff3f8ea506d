"""Sparsity of a linear program: which elements of which source each output of a jaxpr depends on.

What an equation does to dependences stands in the record of its primitive. What is made of constants alone depends on
nothing; its value is computed where a pattern asks for it (indices of a gather).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar, cast

import jax
import numpy as np

from ..._compat import JaxprEqn, ScanParts, Var, is_concrete, is_extended, run_equation
from ..._errors import CompilationError
from ..ir import Address, source_of_eqn
from ..primitives import (
    Call,
    Cause,
    Constant,
    Deps,
    Precision,
    conservative,
    everything,
    record_of,
    reduce,
    same_dep,
    union,
)
from ._solver import Domain, Note

# The problem with a primitive that has no record: nothing can be said about it, not even that it is linear.
UNKNOWN = "is not known to the analysis"
# Constants no larger than this are computed where an index depends on them.
MAX_CONSTANT = 1 << 24
# A scan this short is followed step by step; a longer one with scanned gradients is followed for all steps at once.
MAX_STEPS = 64
# After so many rounds of a loop, elements that keep spreading are taken to reach everything.
MAX_ROUNDS = 12
# Names a source: a node, or a number.
Key = TypeVar("Key", bound=Hashable)


class Problem(NamedTuple, Generic[Key]):
    """A place where the program is not linear in its sources, or not known; `sources` are those that meet it.

    Where it rounds, `precision` is that of the type that it rounds to: no problem for a source that is no finer itself.
    """

    cause: Cause
    text: str
    sources: frozenset[Key] = frozenset()
    precision: Precision | None = None


class Value:
    """The dependences of an array, and how to get its value if it is a constant of the model."""

    __slots__ = ("_cached", "_thunk", "deps")

    def __init__(self, deps: Deps, thunk: Constant | None = None):
        self.deps, self._thunk = deps, thunk
        self._cached: np.ndarray | None = None

    def constant(self) -> np.ndarray | None:
        if self._cached is None and self._thunk is not None:
            self._cached, self._thunk = self._thunk(), None
        return self._cached


class Dependence(Domain[Value, Problem]):
    """Every array's `Deps`; what is noted are the places where a program is not linear in its sources."""

    def constant(self, value: object) -> Value:
        return Value({}, lambda: _as_array(value))

    def join(self, a: Value, b: Value) -> Value:
        return a if a is b else Value(_join(a.deps, b.deps))

    def transfer(self, at: Address, eqn: JaxprEqn, values: list[Value], note: Note[Problem]) -> list[Value]:
        if not any(v.deps for v in values):
            # One thunk for each output: a pattern may ask for the value of any of them.
            return [Value({}, lambda i=i: _fold(eqn, values, i)) for i in range(len(eqn.outvars))]
        call = Call(
            eqn,
            [v.deps for v in values],
            lambda i: values[i].constant(),
            lambda text, precision: note(_problem(eqn, text, values, precision)),
        )
        return [Value(deps) for deps in _outputs(call)]

    def enters(self, at: Address, eqn: JaxprEqn, values: list[Value]) -> bool:
        return any(v.deps for v in values)

    def decide(self, eqn: JaxprEqn, predicate: Value, values: list[Value], note: Note[Problem]) -> None:
        if predicate.deps:
            does = "loops" if eqn.primitive.name == "while" else "branches"
            note(_problem(eqn, f"{does} on the value of a gradient", values))

    def carried(self, at: Address, value: Value) -> Value:
        """A counter starts from a constant and is none."""
        return Value(value.deps)

    def settled(self, old: list[Value], new: list[Value]) -> bool:
        return all(
            a is b or (a.deps.keys() == b.deps.keys() and all(same_dep(a.deps[s], b.deps[s]) for s in a.deps))
            for a, b in zip(old, new, strict=True)
        )

    def widen(self, eqn: JaxprEqn, old: list[Value], new: list[Value], rounds: int) -> list[Value]:
        """Elements that keep spreading: each array depends on all that any carried array depends on."""
        if rounds < MAX_ROUNDS:
            return new
        cause, total = Cause(eqn.primitive.name, source_of_eqn(eqn)), Deps()
        for value in new:
            total = _join(total, {s: everything(d, (), cause) for s, d in value.deps.items()})
        # The carry is what a `while` gives, and what a `scan` gives first.
        shapes = [v.aval.shape for v in eqn.outvars[: len(new)]]
        return [Value({s: everything(d, shape, cause) for s, d in total.items()}) for shape in shapes]

    def follows(self, scan: ScanParts, slices: list[Value]) -> bool:
        return 0 < scan.length <= MAX_STEPS and any(v.deps for v in slices)

    def sliced(self, at: Address, eqn: JaxprEqn, value: Value, i: int | None) -> Value:
        if i is not None:
            return Value({s: d.relocate(lambda m: m[i]) for s, d in value.deps.items()})
        cause = Cause(eqn.primitive.name, source_of_eqn(eqn))
        return Value({s: reduce(d, (0,), cause) for s, d in value.deps.items()})

    def stacked(self, values: Sequence[Value], var: Var) -> Value:
        shape, out = var.aval.shape, Deps()
        if len(values) == 1:  # one slice stands for all
            (every,) = values
            return Value({s: d.relocate(lambda m: np.broadcast_to(m, shape)) for s, d in every.deps.items()})
        for t, value in enumerate(values):

            def place(m: np.ndarray, t: int = t) -> np.ndarray:
                full = np.full(shape, -1, np.int32)
                full[t] = m
                return full

            out = _join(out, {s: d.relocate(place) for s, d in value.deps.items()})
        return Value(out)


def _problem(eqn: JaxprEqn, text: str, values: Sequence[Value], precision: Precision | None = None) -> Problem:
    sources = frozenset().union(*(v.deps for v in values))
    return Problem(Cause(eqn.primitive.name, source_of_eqn(eqn)), text, sources, precision)


def _join(a: Deps, b: Deps) -> Deps:
    return {s: union([d[s] for d in (a, b) if s in d]) for s in {**a, **b}}


def _outputs(call: Call) -> list[Deps]:
    """Dependences of the outputs of an equation, by the record of its primitive."""
    pattern = record_of(call.eqn.primitive.name).pattern
    if pattern is None:
        call.problem(UNKNOWN)
        pattern = conservative
    outs = pattern(call)
    shapes = [v.aval.shape for v in call.eqn.outvars]
    fits = len(outs) == len(shapes) and all(
        dep.shape == shape for deps, shape in zip(outs, shapes, strict=True) for dep in deps.values()
    )
    if not fits:
        raise CompilationError(
            f"the `pattern` in the record of the primitive {call.cause} does not fit its outputs: it must return one "
            f"dictionary for each of them, in which every `Dep` has the output's shape ({shapes})."
        )
    return outs


def whole_numbers(eqn: JaxprEqn, values: Sequence[object]) -> np.ndarray | None:
    """The result of an equation on whole numbers or truth values, by numpy; None if it is another.

    JAX would compile a program for every equation of an arithmetic on indices.
    """
    numbers, out = record_of(eqn.primitive.name).numbers, eqn.outvars[0].aval
    plain = all(isinstance(a, np.ndarray) and a.dtype.kind in "biu" for a in values)
    if numbers is None or not plain or getattr(out.dtype, "kind", "") not in "biu":
        return None
    with np.errstate(over="ignore"):  # they wrap around, as JAX's do
        return np.broadcast_to(np.asarray(numbers(eqn, *values)), out.shape).astype(out.dtype)


def _fold(eqn: JaxprEqn, values: Sequence[Value], output: int) -> np.ndarray | None:
    """The value of an equation all of whose operands are constants of the model."""
    if any(v.aval.size > MAX_CONSTANT for v in eqn.outvars if hasattr(v.aval, "size")):
        return None
    args = [v.constant() for v in values]
    return None if any(a is None for a in args) else fold(eqn, args, output)


def fold(eqn: JaxprEqn, args: Sequence[np.ndarray | None], output: int = 0) -> np.ndarray | None:
    """One output of an equation, computed while compiling."""
    if (number := whole_numbers(eqn, args)) is not None:
        return number
    with jax.ensure_compile_time_eval():
        return _as_array(run_equation(eqn, [a if is_extended(a) else jax.numpy.asarray(a) for a in args])[output])


def _as_array(x: object) -> np.ndarray | None:
    """A constant as numpy knows it; PRNG keys stay as they are. None: a value of a trace around, which is not known."""
    if not is_concrete(x):
        return None
    return cast("np.ndarray", x) if is_extended(x) else np.asarray(x)
