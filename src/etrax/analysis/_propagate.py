"""Sparsity of a linear program: which elements of which source each output of a jaxpr depends on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

import jax
import numpy as np

from .._compat import INLINED, Jaxpr, JaxprEqn, is_concrete, is_extended, run_equation
from .._errors import CompilationError
from ..ir import Site, interpret, source_of_eqn
from ..primitives import Call, Cause, Constant, Dep, Deps, Precision, conservative, identity, record_of, whole_numbers
from ._offset import find_offsets

# The problem with a primitive that has no record: nothing can be said about it, not even that it is linear.
UNKNOWN = "is not known to the analysis"
# Constants no larger than this are computed where an index depends on them.
MAX_CONSTANT = 1 << 24
# Names a source: a node, or a number.
Key = TypeVar("Key", bound=Hashable)


class Problem(NamedTuple, Generic[Key]):
    """A place where the program is not linear in its sources, or not known; `sources` are those that meet it.

    Where it rounds, `kept` is the type that it rounds to: no problem for a source that is no finer itself.
    """

    cause: Cause
    text: str
    sources: frozenset[Key] = frozenset()
    kept: Precision | None = None


class _Value:
    """What the walker carries: dependences, and how to get the value if it is a constant of the model."""

    __slots__ = ("_cached", "_thunk", "deps")

    def __init__(self, deps: Deps, thunk: Constant | None = None):
        self.deps, self._thunk = deps, thunk
        self._cached: np.ndarray | None = None

    def constant(self) -> np.ndarray | None:
        if self._cached is None and self._thunk is not None:
            self._cached, self._thunk = self._thunk(), None
        return self._cached


def propagate(
    jaxpr: Jaxpr, consts: Sequence[Any], sources: Mapping[int, Key]
) -> tuple[list[dict[Key, Dep]], list[Problem[Key]]]:
    """Dependence of each output on the inputs numbered in `sources`; `consts` are constants of the model."""
    problems: list[Problem[Key]] = []

    def note(eqn: JaxprEqn, text: str, met: frozenset[Hashable], kept: Precision | None = None) -> None:
        found = Problem(Cause(eqn.primitive.name, source_of_eqn(eqn)), text, cast("frozenset[Key]", met), kept)
        if found not in problems:
            problems.append(found)

    def handle(site: Site, eqn: JaxprEqn, values: list[Any]) -> list[_Value] | None:
        if eqn.primitive.name in INLINED:
            return None
        values = [v if isinstance(v, _Value) else _Value({}, lambda v=v: _as_array(v)) for v in values]
        if not any(v.deps for v in values):
            return [_Value({}, lambda i=i: _fold(eqn, values, i)) for i in range(len(eqn.outvars))]
        call = Call(eqn, [v.deps for v in values], lambda i: values[i].constant(), nested, note)
        return [_Value(deps) for deps in _outputs(call)]

    def nested(
        body: Jaxpr, consts: Sequence[Any], deps: Sequence[Deps], constants: Sequence[Constant] = ()
    ) -> list[Deps]:
        wrapped = [_Value({}, lambda c=c: _as_array(c)) for c in consts]
        thunks = [*constants, *(None for _ in range(len(deps) - len(constants)))]
        outs = interpret(body, wrapped, [_Value(d, t) for d, t in zip(deps, thunks, strict=True)], handle)
        return [o.deps if isinstance(o, _Value) else {} for o in outs]

    rows = nested(
        jaxpr,
        consts,
        [{sources[i]: identity(v.aval.shape)} if i in sources else {} for i, v in enumerate(jaxpr.invars)],
    )
    find_offsets(jaxpr, consts, sources, note)
    return [cast("dict[Key, Dep]", deps) for deps in rows], problems


def _outputs(call: Call) -> list[Deps]:
    """Dependences of the outputs of an equation, by the record of its primitive."""
    pattern = record_of(call.eqn.primitive.name).pattern
    if pattern is None:
        call.problem(UNKNOWN)
        pattern = conservative
    found = pattern(call)
    shapes = [v.aval.shape for v in call.eqn.outvars]
    fits = len(found) == len(shapes) and all(
        dep.shape == shape for deps, shape in zip(found, shapes, strict=True) for dep in deps.values()
    )
    if not fits:
        raise CompilationError(
            f"the `pattern` in the record of the primitive {call.cause} does not fit its outputs: it must return one "
            f"dictionary for each of them, in which every `Dep` has the output's shape ({shapes})."
        )
    return found


def _fold(eqn: JaxprEqn, values: Sequence[_Value], output: int) -> np.ndarray | None:
    """The value of an equation all of whose operands are constants of the model."""
    if any(v.aval.size > MAX_CONSTANT for v in eqn.outvars if hasattr(v.aval, "size")):
        return None
    args = [v.constant() for v in values]
    if any(a is None for a in args):
        return None
    if (found := whole_numbers(eqn, args)) is not None:
        return found
    with jax.ensure_compile_time_eval():
        return _as_array(run_equation(eqn, [a if is_extended(a) else jax.numpy.asarray(a) for a in args])[output])


def _as_array(x: Any) -> Any:
    """A constant as numpy knows it; PRNG keys stay as they are. None: a value of a trace around, which is not known."""
    if not is_concrete(x):
        return None
    return x if is_extended(x) else np.asarray(x)
