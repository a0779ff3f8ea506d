"""Vocabulary shared by the rules: what a rule is given, what it returns, and where it is registered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from ..._compat import JaxprEqn
from ...ir import source_of_eqn
from ._dep import Cause, Dep

# Dependence of one array on each source; an absent source is no dependence.
SourceKey: TypeAlias = Any  # names a source: a node, or a number
Deps: TypeAlias = dict[SourceKey, Dep]


class Precision(NamedTuple):
    """What a type of real or complex numbers can tell apart: bits of the exponent and of the fraction."""

    exponent: int
    fraction: int

    @classmethod
    def of(cls, dtype: Any) -> Precision:
        found = jnp.finfo(dtype)
        return cls(int(found.nexp), int(found.nmant))

    def holds(self, other: Precision) -> bool:
        """Whether numbers of the other type are not rounded by this one."""
        return self.exponent >= other.exponent and self.fraction >= other.fraction


@dataclass(frozen=True)
class Call:
    """One equation, the dependences of its operands, and its operands' values where these are constants."""

    eqn: JaxprEqn
    deps: Sequence[Deps]
    value: Callable[[int], np.ndarray | None]
    nested: Callable[..., list[Deps]]
    note: Callable[..., None]

    @property
    def params(self) -> dict[str, Any]:
        return self.eqn.params

    @property
    def cause(self) -> Cause:
        return Cause(self.eqn.primitive.name, source_of_eqn(self.eqn))

    def problem(self, text: str, kept: Precision | None = None) -> None:
        """Note that the equation is not linear in what it is given, or not known; or that it rounds to what is kept."""
        self.note(self.eqn, text, frozenset().union(*self.deps), kept)

    def in_shape(self, i: int) -> tuple[int, ...]:
        return self.eqn.invars[i].aval.shape

    def out_shape(self, i: int = 0) -> tuple[int, ...]:
        return self.eqn.outvars[i].aval.shape


Rule: TypeAlias = Callable[[Call], list[Deps]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for primitives."""

    def register(f: Rule) -> Rule:
        for name in names:
            RULES[name] = f
        return f

    return register


def on_operand(call: Call, f: Callable[[Dep], Dep], operand: int = 0) -> list[Deps]:
    """One output that depends, through one operand only, by `f`; other operands must carry no dependence."""
    if any(deps for i, deps in enumerate(call.deps) if i != operand):
        return conservative(call)
    return [{source: f(dep) for source, dep in call.deps[operand].items()}]


def conservative(call: Call) -> list[Deps]:
    """Named worst case: every output element depends on all that any operand depends on."""
    from ._dep import everything, union

    out = []
    for v in call.eqn.outvars:
        merged: dict[SourceKey, list[Dep]] = {}
        for deps in call.deps:
            for source, dep in deps.items():
                merged.setdefault(source, []).append(everything(dep, v.aval.shape, call.cause))
        out.append({source: union(found) for source, found in merged.items()})
    return out
