"""Elements that are zero whatever the numbers are: `jnp.diag(a)` off its diagonal, a weight times a constant mask.

A pattern is computed where it is asked for, and not before: few values of a program are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..._compat import JaxprEqn, Var, is_inexact
from ..ir import Address, Step
from ..primitives import record_of
from ._dependence import Dependence, Value, fold
from ._solver import Domain, Note, Solver

# Arrays of more elements than these are taken to be full.
MAX_ELEMENTS = 1 << 22
# Beside those that cost no more than what they read and write (`Primitive.light`), these move or add elements as well.
_MOVES = ("scatter", "scatter-add", "dynamic_update_slice", "dynamic_slice", "stack", "tile")


class Zeros:
    """Which elements of an array may be nonzero, and the array itself where it is a constant of the model."""

    __slots__ = ("_cached", "_thunk", "value")

    def __init__(self, value: Value, thunk: Callable[[], np.ndarray | None] | None = None):
        self.value, self._thunk = value, thunk
        self._cached: np.ndarray | None = None

    def nonzero(self) -> np.ndarray | None:
        """True where an element may be nonzero; None if all may be."""
        if self._thunk is not None:
            number = self.value.constant()
            plain = number is not None and number.dtype.kind in "biufc"
            mask = number != 0 if plain else self._thunk()
            self._cached, self._thunk = None if mask is None or mask.all() else mask, None
        return self._cached


def zeros_of_variables(step: Step) -> dict[Var, Zeros]:
    """The zeros of every variable of a step, for any parameters, states and inputs."""
    domain = ZeroPatterns()
    inputs = [*map(domain.constant, step.consts), *(Zeros(Value({})) for _ in step.ins)]
    return Solver(domain).variables(step.jaxpr, (), inputs)


class ZeroPatterns(Domain[Zeros, None]):
    """Notes nothing. Loops, branches and derivative rules are not entered: what they give may be nonzero."""

    def __init__(self) -> None:
        self.folding = Dependence()

    def constant(self, value: object) -> Zeros:
        return Zeros(self.folding.constant(value), lambda: None)

    def join(self, a: Zeros, b: Zeros) -> Zeros:
        return a if a is b else Zeros(Value({}))

    def enters(self, at: Address, eqn: JaxprEqn, values: list[Zeros]) -> bool:
        return False

    def transfer(self, at: Address, eqn: JaxprEqn, values: list[Zeros], note: Note[None]) -> list[Zeros]:
        folded = self.folding.transfer(at, eqn, [v.value for v in values], lambda problem: None)
        if len(folded) != 1 or eqn.outvars[0].aval.size > MAX_ELEMENTS:
            return [Zeros(value) for value in folded]
        return [Zeros(folded[0], lambda: _nonzero(eqn, values))]


def _nonzero(eqn: JaxprEqn, values: Sequence[Zeros]) -> np.ndarray | None:
    """Which elements of the result of an equation may be nonzero, given those of its operands; None if all may be."""
    record, shape = record_of(eqn.primitive.name), eqn.outvars[0].aval.shape
    if record.zero is None:
        return None
    if eqn.primitive.name == "select_n":
        return _chosen(values[0].value.constant(), [_mask(v, var, shape) for v, var in _pairs(eqn, values)[1:]])
    if record.elementwise:
        masks = [_mask(v, var, shape) for v, var in _pairs(eqn, values)]
        out = np.ones(shape, bool)
        # Every way in which some operands are zero and others are not, for the elements where it is so.
        for zeros in np.ndindex(*(2,) * len(masks)):
            if any(zeros) and record.zero(eqn, [bool(z) for z in zeros]):
                out &= ~np.all([mask != bool(z) for mask, z in zip(masks, zeros, strict=True)], axis=0)
        return out
    return _moved(eqn, values) if record.light or eqn.primitive.name in _MOVES else None


def _moved(eqn: JaxprEqn, values: Sequence[Zeros]) -> np.ndarray | None:
    """What moves, repeats, drops or adds elements does to ones and zeros what it does to numbers."""
    pairs, numbers = _pairs(eqn, values), record_of(eqn.primitive.name).numbers
    if all(v.nonzero() is None for v, var in pairs if is_inexact(var.aval)):
        return None
    if numbers is not None:  # by numpy: JAX would compile a program for each
        return numbers(eqn, *(_mask(v, var) for v, var in pairs))
    # Operands that are no real numbers are indices, of which the values count.
    ones = [_mask(v, var).astype(var.aval.dtype) if is_inexact(var.aval) else v.value.constant() for v, var in pairs]
    moved = None if any(a is None for a in ones) else fold(eqn, ones)
    return None if moved is None else moved != 0


def _pairs(eqn: JaxprEqn, values: Sequence[Zeros]) -> list[tuple[Zeros, Var]]:
    return list(zip(values, eqn.invars, strict=True))


def _mask(zeros: Zeros, var: Var, shape: Sequence[int] | None = None) -> np.ndarray:
    """Where an operand may be nonzero, in its own shape or spread over that of an elementwise result."""
    mask = zeros.nonzero()
    return np.broadcast_to(np.True_ if mask is None else mask, var.aval.shape if shape is None else tuple(shape))


def _chosen(which: np.ndarray | None, cases: Sequence[np.ndarray]) -> np.ndarray:
    """The masks of cases, each where it is chosen by a constant; where it may be chosen, if nobody knows."""
    if which is None:
        return np.any(cases, axis=0)
    which = np.broadcast_to(which.astype(int), cases[0].shape)
    return np.select([which == k for k in range(len(cases))], list(cases), True)
