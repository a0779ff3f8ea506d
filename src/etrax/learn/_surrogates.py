"""Derivatives of a learner's results, where the step has derivative rules of the user's.

JAX loses such a rule, or gives it the residuals of another iteration, once a loop around it has been differentiated and
the result is differentiated again. The number would be wrong and nothing would say so; it is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax

from .._compat import CUSTOM, is_concrete
from .._errors import NotSupportedError
from ..compiler.ir import PyTree, Step, equations, is_rule_of_jax


def has_user_rules(step: Step) -> bool:
    """Whether a step calls functions with derivative rules that are not JAX's own."""
    return any(eqn.primitive.name in CUSTOM and not is_rule_of_jax(eqn) for eqn in equations(step.jaxpr))


def without_derivatives(step: Step, tree: PyTree) -> PyTree:
    """The values of a tree, whose derivatives are refused if the step has derivative rules of the user's."""
    return refuse_derivatives(tree) if has_user_rules(step) else tree


def with_guarded_constants(step: Step) -> Step:
    """A step with such rules that closes over values of a transformation around it: derivatives in them are refused."""
    if is_concrete(step.consts) or not has_user_rules(step):
        return step
    return replace(step, consts=tuple(c if is_concrete(c) else refuse_derivatives(c) for c in step.consts))


@jax.custom_vjp
def refuse_derivatives(tree: PyTree) -> PyTree:
    """A tree as it is, which cannot be differentiated."""
    return tree


def _refuse(_: Any, cotangents: PyTree) -> Any:
    raise NotSupportedError(
        "the result of a learner is differentiated, but its step has derivative rules of its own (a surrogate spike by "
        "`jax.custom_vjp` or `jax.custom_jvp`), which JAX loses in a second derivative. Use the gradients that "
        "`value_and_grad` returns, or write the surrogate as `x + jax.lax.stop_gradient(spike(x) - x)`."
    )


refuse_derivatives.defvjp(lambda tree: (tree, None), _refuse)
