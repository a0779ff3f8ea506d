"""Methods that the peer tells its users to override: `_solve_weight_gradients` is served, the others are refused.

Etrax computes the traces and the gradients of a rule in another order, so it has no moment at which it could call most
of them. The gradients of a step exist, and an override that changes them is given them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import brainunit as u
import jax
import jax.numpy as jnp

from ..._errors import ArgumentError, NotSupportedError
from ...compiler.ir import Path, PyTree, Role, format_path
from ...stateful import Stateful

SERVED = "_solve_weight_gradients"
# By method, what it computes there.
REFUSED = {
    "_update_etrace_data": "the trace after a step",
    "_make_etrace_stepper": "the trace after a step inside a window",
    "_get_etrace_data": "the traces that a step begins with",
    "_assign_etrace_data": "where the traces of a step are kept",
    "_compute_learning_signal": "the learning signal",
    "_get_update_aux": "what the learning signal is given",
    "_inject_exit_cotangent": "the gradient at the exit of a window",
    "_solve_previous_trace_gradients": "gradients that bypass the new state",
    "_substitute_hidden_jacobians": "the Jacobian that the trace follows",
    "_update_fn": "the step",
    "_update_fn_fwd": "the step",
    "_update_fn_bwd": "the gradients of a step",
    "_update_impl": "the step",
    "_make_scan_fn": "the loop over a window",
    "_wrap_etrace_stepper": "the trace after a step inside a window",
    "_substitutes_hidden_jacobians": "the Jacobian that the trace follows",
    "_exit_cotangent_grads": "the gradient at the exit of a window",
    "_draw_projection": "the random signs of a step",
    "_initial_projection_key": "the random signs of a step",
    "_project": "the projection of the parameters' influence",
    "_contract_trace": "the gradients of a step",
    "_default_config": "the coordinates of the rule",
}


def check_overrides(owner: object, name: str) -> None:
    """Refuse a class, or an object of it, with a method that is called there and would be ignored here."""
    for method in REFUSED:
        if hasattr(owner, method):
            refuse_override(method, name)


def refuse_override(method: str, name: str) -> None:
    """Raise if a class or object of this name may not have a method; its name alone decides."""
    if method in REFUSED:
        raise NotSupportedError(
            f"`{name}` has `{method}`, which computes {REFUSED[method]} in braintrace. Etrax never calls it, so it "
            "would change nothing. Write a rule of Etrax instead (docs/tutorials/own_rule.md) and return it from the "
            f"method `rule` of the class; to change the gradients of a step, override `{SERVED}`."
        )


class Absent:
    """An argument of a hook that Etrax has no value for: it can be passed on, and any use of it is an error."""

    def __init__(self, name: str):
        self.name = name

    def _fail(self, *_: object, **__: object):
        raise NotSupportedError(
            f"`{SERVED}` reads `{self.name}`, which Etrax does not compute in braintrace's form: call "
            f"`super().{SERVED}(...)` for the gradients and change these, or write a rule of Etrax "
            "(docs/tutorials/own_rule.md)."
        )

    # Python looks for these on the class, so that `__getattr__` does not serve them.
    __iter__ = __len__ = __getitem__ = __contains__ = __bool__ = __call__ = __array__ = __jax_array__ = _fail
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __matmul__ = __neg__ = _fail

    def __getattr__(self, name: str):
        if name.startswith("__"):  # libraries ask for protocols that an object may lack
            raise AttributeError(name)
        self._fail()


class Solved(Absent):
    """In the place of the traces: the gradients that Etrax made of them."""

    def __init__(self, gradients: dict[Path, PyTree]):
        super().__init__("etrace_h2w_at_t")
        self.gradients = gradients


class Solver(Protocol):
    """An algorithm with the hook."""

    def _solve_weight_gradients(
        self, running_index, etrace_h2w_at_t, dl_to_hidden_groups, weight_vals, dl_to_nonetws_at_t, dl_to_etws_at_t
    ) -> dict[Path, PyTree]: ...


class HookedStateful(Stateful):
    """A learner that reads its parameters through a function, whose derivative is the last to see a gradient."""

    _through: Callable[[list[jax.Array]], list[jax.Array]] | None = None

    def _read(self) -> tuple[list[jax.Array], list[jax.Array]]:
        params, states = super()._read()
        return params if self._through is None else self._through(params), states

    def advance_hooked(
        self, solver: Solver, index: jax.Array, trace: PyTree, inputs: tuple[object, ...], named: dict[str, object]
    ) -> tuple[PyTree, PyTree]:
        """`advance`, with the gradients of the step given to the solver; `index` is the number of the step."""
        self._through = gradient_hook(solver, self, index)
        try:
            return self.advance(trace, inputs, named)
        finally:  # it holds values of the transformation that this call is in
            self._through = None


def gradient_hook(solver: Solver, online: Stateful, index: jax.Array) -> Callable[[list[jax.Array]], list[jax.Array]]:
    """The identity on the leaves of the parameters, whose derivative is what the hook makes of their gradients."""

    def same(leaves: list[jax.Array], index: jax.Array) -> list[jax.Array]:
        return leaves

    def back(residuals: tuple[list[jax.Array], jax.Array], cotangents: list[jax.Array]) -> tuple[list[jax.Array], None]:
        leaves, index = residuals
        grads = _by_path(online, cotangents)
        absent = map(Absent, ("dl_to_hidden_groups", "dl_to_nonetws_at_t", "dl_to_etws_at_t"))
        to_hidden, to_plain, to_traced = absent
        changed = solver._solve_weight_gradients(
            index, Solved(grads), to_hidden, _by_path(online, leaves), to_plain, to_traced
        )
        return _leaves(online, changed, grads, cotangents), None

    # `index` is an argument, since a derivative may not close over values of the transformation around it.
    passed = jax.custom_vjp(same)
    passed.defvjp(lambda leaves, index: (passed(leaves, index), (leaves, index)), back)
    return lambda leaves: passed(leaves, jnp.asarray(index))


def _by_path(online: Stateful, leaves: list[jax.Array]) -> dict[Path, PyTree]:
    """Leaves of parameters as the module holds them, by path, without units."""
    bound, values = online.learner.bound, {}
    for entry in bound.states:
        if entry.role is Role.PARAM:
            # The parameter's own structure is that of any value; a quantity in it stands for its number.
            blank = bound.decode_state(entry.path, [jnp.zeros(()) for _ in entry.leaves])
            tree = jax.tree.structure(blank, is_leaf=lambda a: isinstance(a, u.Quantity))
            values[entry.path] = jax.tree.unflatten(tree, [leaves[i] for i in entry.leaves])
    return values


def _leaves(
    online: Stateful, changed: dict[Path, PyTree], grads: dict[Path, PyTree], cotangents: list[jax.Array]
) -> list[jax.Array]:
    """The leaves of what a hook returned, in the order of the parameters."""
    if not isinstance(changed, dict) or changed.keys() != grads.keys():
        names = sorted(map(format_path, changed)) if isinstance(changed, dict) else type(changed).__name__
        raise ArgumentError(
            f"`{SERVED}` returned {names}; expected a dictionary with the gradient of each of the parameters "
            f"{sorted(map(format_path, grads))}."
        )
    out = list(cotangents)
    for entry in online.learner.bound.states:
        if entry.role is not Role.PARAM:
            continue
        path, new, old = entry.path, changed[entry.path], grads[entry.path]
        shapes = [[jnp.shape(a) for a in jax.tree.leaves(tree)] for tree in (new, old)]
        if jax.tree.structure(new) != jax.tree.structure(old) or shapes[0] != shapes[1]:
            raise ArgumentError(
                f"`{SERVED}` returned a gradient of shape {shapes[0]} for parameter {format_path(path)}, which has "
                f"shape {shapes[1]}."
            )
        for i, leaf in zip(entry.leaves, jax.tree.leaves(new), strict=True):
            if jnp.issubdtype(jnp.result_type(cotangents[i]), jnp.inexact):  # whole numbers have no gradient
                out[i] = jnp.asarray(leaf, cotangents[i].dtype)
    return out
