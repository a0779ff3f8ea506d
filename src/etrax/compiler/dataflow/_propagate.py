"""Sparsity of a linear program: which elements of which source each output of a jaxpr depends on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

import jax
import numpy as np

from ..._compat import INLINED, Jaxpr, JaxprEqn, is_concrete, is_extended, run_equation
from ..._errors import CompilationError
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


class Value:
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
    walk: Propagation[Key] = Propagation()
    given: list[Deps] = [
        {sources[i]: identity(v.aval.shape)} if i in sources else {} for i, v in enumerate(jaxpr.invars)
    ]
    rows = walk.through(jaxpr, consts, given)
    find_offsets(jaxpr, consts, sources, walk.note)
    return [cast("dict[Key, Dep]", deps) for deps in rows], walk.problems


class Propagation(Generic[Key]):
    """A walk over programs that are linear in their sources; `problems` are where one is not."""

    def __init__(self) -> None:
        self.problems: list[Problem[Key]] = []

    def note(self, eqn: JaxprEqn, text: str, met: frozenset[Hashable], kept: Precision | None = None, /) -> None:
        problem = Problem(Cause(eqn.primitive.name, source_of_eqn(eqn)), text, cast("frozenset[Key]", met), kept)
        if problem not in self.problems:
            self.problems.append(problem)

    def through(
        self, body: Jaxpr, consts: Sequence[Any], deps: Sequence[Deps], constants: Sequence[Constant | None] = ()
    ) -> list[Deps]:
        """Dependences of the outputs of a program, from those of its inputs; `constants` are for the first of these."""
        wrapped = [known(c) for c in consts]
        thunks = [*constants, *(None for _ in range(len(deps) - len(constants)))]
        outs = interpret(body, wrapped, [Value(d, t) for d, t in zip(deps, thunks, strict=True)], self._equation)
        return [o.deps if isinstance(o, Value) else {} for o in outs]

    def _equation(self, site: Site, eqn: JaxprEqn, values: list[Any]) -> list[Value] | None:
        if eqn.primitive.name in INLINED:
            return None
        values = [v if isinstance(v, Value) else known(v) for v in values]
        if not any(v.deps for v in values):
            return folded(eqn, values)
        call = Call(eqn, [v.deps for v in values], lambda i: values[i].constant(), self.through, self.note)
        return [Value(deps) for deps in _outputs(call)]


def known(x: Any) -> Value:
    """A constant of the model."""
    return Value({}, lambda: _as_array(x))


def folded(eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    """What an equation makes of values without dependences; computed where a value is asked for."""
    return [Value({}, lambda i=i: _fold(eqn, values, i)) for i in range(len(eqn.outvars))]


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


def _fold(eqn: JaxprEqn, values: Sequence[Value], output: int) -> np.ndarray | None:
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
