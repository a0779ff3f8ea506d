"""The invariants of a `Step`. A broken one is a fault of a front end or a pass, not of the user's model."""

from __future__ import annotations

from ..._compat import INLINED, Literal, Var
from ..._errors import EtraxError
from ._step import Role, Step

_ORDER_IN = (Role.PARAM, Role.HIDDEN, Role.OTHER, Role.INPUT)
_ORDER_OUT = (Role.HIDDEN, Role.OTHER, Role.OUTPUT)


def check_step(step: Step) -> Step:
    """Return the step, or raise if it breaks what README.md in this folder promises."""
    jaxpr = step.jaxpr
    _require(not jaxpr.constvars, "its jaxpr has constvars")
    _require(len(jaxpr.invars) == len(step.consts) + len(step.ins), "inputs and leaves differ in number")
    _require(len(jaxpr.outvars) == len(step.outs), "outputs and leaves differ in number")
    for order, leaves in ((_ORDER_IN, step.ins), (_ORDER_OUT, step.outs)):
        ranks = [order.index(leaf.role) if leaf.role in order else -1 for leaf in leaves]
        _require(ranks == sorted(ranks) and -1 not in ranks, "leaves are not in the order of their roles")
    carried = tuple(leaf for leaf in step.ins if leaf.role in (Role.HIDDEN, Role.OTHER))
    _require(carried == tuple(leaf for leaf in step.outs if leaf.role is not Role.OUTPUT), "states in and out differ")
    for side, leaves, variables in (
        ("input", step.ins, jaxpr.invars[len(step.consts) :]),
        ("output", step.outs, jaxpr.outvars),
    ):
        for leaf, v in zip(leaves, variables, strict=True):
            if (v.aval.shape, v.aval.dtype) != (leaf.aval.shape, leaf.aval.dtype):
                _require(False, f"{side} leaf {leaf.path} is {leaf.aval} and its variable {v.aval}")
    _check_order(step)
    for role, tree in step.trees.items():
        _require(tree.num_leaves == len(step.select(role)), f"the tree of {role.value} has another number of leaves")
    return step


def _check_order(step: Step) -> None:
    defined: set[Var] = set(step.jaxpr.invars)
    for eqn in step.jaxpr.eqns:
        name = eqn.primitive.name
        _require(name not in INLINED, f"`{name}` is not inlined")
        _require(
            defined.issuperset(v for v in eqn.invars if not isinstance(v, Literal)), f"`{name}` reads the undefined"
        )
        defined.update(eqn.outvars)
    _require(all(isinstance(v, Literal) or v in defined for v in step.jaxpr.outvars), "an output is undefined")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise EtraxError(f"a step is malformed: {what}. Please report this model.")
