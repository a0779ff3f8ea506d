"""The constants of a step, copied when it is traced: who changes an array in place afterwards does not change the step.

JAX keeps numpy arrays that a function closes over by reference, as constants of a jaxpr and as literals, also inside
loops and branches. A derivative rule of the user's is a Python function, which JAX calls whenever a derivative is
taken. It is traced here, once, and what it was then stands for it from then on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from ..._compat import CUSTOM, Jaxpr, JaxprEqn, Literal, close_jaxpr, open_jaxpr
from ._custom import Body, call_with_rule, has_rule_of_jax, is_rule_of_jax, keeps_rule, moving_operands, rule_of


def with_own_constants(closed: Any) -> tuple[Jaxpr, tuple[Any, ...]]:
    """The bare jaxpr and its constants, in which no array is anyone else's."""
    return _Copying().body(*open_jaxpr(closed))


class _Copying:
    """Copies a jaxpr once; an array that is read in two places is one array in the copy, too."""

    def __init__(self, inside_rule: bool = False) -> None:
        # A rule may call its own function (that of `odeint` does), so that rules inside of rules have no end.
        self.inside_rule = inside_rule
        self.copies: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.shared = False

    def value(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        self.shared |= _is_shared(value)
        return self.copies.setdefault(id(value), (value, value.copy()))[1]

    def body(self, jaxpr: Jaxpr, consts: Sequence[Any]) -> tuple[Jaxpr, tuple[Any, ...]]:
        eqns = [self.equation(eqn) for eqn in jaxpr.eqns]
        return jaxpr.replace(eqns=eqns, outvars=self.atoms(jaxpr.outvars)), tuple(map(self.value, consts))

    def atoms(self, atoms: Sequence[Any]) -> list[Any]:
        return [Literal(self.value(v.val), v.aval) if isinstance(v, Literal) else v for v in atoms]

    def equation(self, eqn: JaxprEqn) -> JaxprEqn:
        params = {key: self.param(value) for key, value in eqn.params.items()}
        if "transpose_thunk" in params:  # of `linear_call`: a jaxpr and its constants, which are asked for later
            transpose = self.param(params["transpose_thunk"]())
            params["transpose_thunk"] = lambda: transpose
        eqn = eqn.replace(invars=self.atoms(eqn.invars), params=params)
        return _with_own_rule(eqn) if eqn.primitive.name in CUSTOM and not self.inside_rule else eqn

    def param(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return _with_items(value, map(self.param, value))
        jaxpr, consts = open_jaxpr(value)
        if not hasattr(jaxpr, "eqns"):
            return self.value(value)
        jaxpr, consts = self.body(jaxpr, consts)
        return jaxpr if not hasattr(value, "consts") else close_jaxpr(jaxpr, consts)


def _with_items(sequence: tuple[Any, ...] | list[Any], items: Iterable[Any]) -> Any:
    """A tuple, list or named tuple with other items; what is made in another way (`PartitionSpec`) as it is."""
    if hasattr(sequence, "_fields"):
        return type(sequence)(*items)
    return type(sequence)(items) if type(sequence) in (tuple, list) else sequence


def _is_shared(value: np.ndarray) -> bool:
    """Whether somebody beside JAX holds the memory of an array, who can change it.

    JAX makes arrays of plain numbers, too: those that nothing but a view of JAX's own refers to.
    """
    count, root = _references(value)
    return root.flags.writeable and (root.base is not None or count > _ALONE)


def _references(value: np.ndarray) -> tuple[int, np.ndarray]:
    """How often Python refers to the array that has the memory of this one, and that array."""
    root = value
    while isinstance(root.base, np.ndarray):
        root = root.base
    return sys.getrefcount(root), root


_ALONE = _references(np.zeros(1).view())[0]  # as of an array that nothing but its view refers to


def _may_be_called_again(eqn: JaxprEqn, forward: Body) -> bool:
    """Whether a rule that no array of the caller's was seen in stays a Python function.

    A rule of the user's may read numbers that change (the slope of a surrogate, or what numpy makes of an array), which
    no jaxpr tells. One that asks which operands have derivatives has another answer for each set of them.
    """
    return bool(eqn.params.get("symbolic_zeros")) or (is_rule_of_jax(eqn) and keeps_rule(eqn, forward))


def _with_own_rule(eqn: JaxprEqn) -> JaxprEqn:
    """A call with its derivative rule as it is now, if that may change or would be lost."""
    if has_rule_of_jax(eqn):  # tracing the rule of every `relu` is a third of the time of compiling
        return eqn
    structs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    moving = moving_operands(eqn)
    try:
        rule = rule_of(eqn, structs, moving)
    except Exception:  # the user's rule may raise anything; it is reported where a derivative is asked for
        return eqn
    copying = _Copying(inside_rule=True)
    forward, backward = (copying.body(*body) for body in rule)
    if not copying.shared and _may_be_called_again(eqn, forward):
        return eqn
    call = call_with_rule(eqn, (forward, backward), moving)
    traced, consts = open_jaxpr(jax.make_jaxpr(call)(*structs))
    (new,) = traced.eqns
    atoms = {v: Literal(c, v.aval) for v, c in zip(traced.constvars, consts, strict=True)}
    atoms |= dict(zip(traced.invars, eqn.invars, strict=True))
    invars = [v if isinstance(v, Literal) else atoms[v] for v in new.invars]
    return eqn.replace(primitive=new.primitive, params=new.params, invars=invars)
