r"""Traces brought up to date after an update, to first order.

A trace holds sensitivities at the parameters of the past. Where units do not act on each other and their states decay
by parameters alone, the trace of a unit depends on the parameters through the leak λ of that unit, so that

.. math::
    \zeta_t = \partial\varepsilon_t / \partial\lambda, \qquad \varepsilon \leftarrow \varepsilon + \zeta\, \Delta\lambda

follows an update. For h' = λ h + x w it is ζ ← λ ζ + ε for w, and ζ ← λ ζ + 2 ε for λ itself, whose data h depend on λ
too. Here ζ is the tangent of the step that moves the trace, along a change of the leaks of all units at once: no unit's
trace depends on another's leak. This holds for complex states, for leaks of any parametrisation, and for gains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import is_inexact
from .._errors import ArgumentError
from ..compiler.ir import PyTree, Role, format_path
from ..learn import Learner, LearnerState, check_learner
from ._tangents import moving_part, with_moving

_TOLERANCE = 1e-4  # relative; probes run in the precision of the model


class Tangents(NamedTuple):
    """Derivatives of the hidden state and of the trace by one parameter, unit by unit."""

    hidden: list[Array]
    trace: list[Array]


class Correction:
    """Made by `learner.correction()`; pure functions over one memory, one set of tangents for each leak.

    >>> import etrax, jax, jax.numpy as jnp
    >>> def step(p, h, x):
    ...     h = p["leak"] * h + x @ p["w"]
    ...     return h, h
    >>> params = {"leak": jnp.array([0.9, 0.8]), "w": jnp.ones((3, 2))}
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=params, hidden=jnp.zeros(2))
    >>> correction = learner.correction()
    >>> print(correction)
    correction of the traces by 'leak'
    >>> state, xs = learner.init(), jnp.ones((1, 3))
    >>> memory = correction.init(state)
    >>> for _ in range(2):
    ...     memory, (state, _) = correction.follow(memory, params, state, xs), learner.step(params, state, xs[0])
    >>> change = {"leak": jnp.array([0.01, 0.0]), "w": jnp.zeros((3, 2))}
    >>> now = correction.correct(memory, state, change)
    """

    def __init__(self, learner: Learner):
        check_learner(learner)
        learner.refuse_by_call("correction")
        self.learner = learner
        leaves = learner.facts.step.select(Role.PARAM)
        self._leaves = leaves
        vectors = [n for n, a in enumerate(leaves) if is_inexact(a.aval) and a.aval.ndim == 1 and a.aval.size]
        self._axes = {n: axes for n in vectors if (axes := self._axes_of(n)) is not None}
        if not self._axes:
            raise ArgumentError(
                "`correction`: no parameter is a leak, one number for each unit, of states that decay by parameters "
                "alone and do not act on other units: the traces of this model cannot be corrected."
            )

    def __str__(self) -> str:
        names = ", ".join(format_path(self._leaves[n].path, "params") for n in self._axes)
        return f"correction of the traces by {names}"

    def init(self, state: LearnerState) -> dict[int, Tangents]:
        """Nothing has moved yet: where a sequence begins."""
        zeros = jax.tree.map(jnp.zeros_like, (moving_part(state.hidden), moving_part(state.trace)))
        return {n: Tangents(*zeros) for n in self._axes}

    def follow(
        self, memory: Mapping[int, Tangents], params: PyTree, state: LearnerState, inputs: PyTree,
        reset: PyTree = None,
    ) -> dict[int, Tangents]:  # fmt: skip
        """Go through a window as the learner does: with the parameters, the state before it, its inputs and resets."""
        new = {}
        for n, axes in self._axes.items():
            ones = jnp.ones(self._leaves[n].aval.shape, self._leaves[n].aval.dtype)
            moved = self._pushed(params, state, inputs, reset, n, ones, memory[n])
            # Arrays of other units see all leaks at once, which is the derivative by none.
            new[n] = Tangents(*(
                [a if k in own else jnp.zeros_like(a) for k, a in enumerate(part)]
                for part, own in zip(moved, axes, strict=True)
            ))  # fmt: skip
        return new

    def correct(self, memory: Mapping[int, Tangents], state: LearnerState, change: PyTree) -> LearnerState:
        """The state with its trace at the changed parameters; `change` is the update, like the parameters."""
        changes, trace = self.learner.program.params(change, "change"), moving_part(state.trace)
        for n, tangents in memory.items():
            for k, axis in self._axes[n].trace.items():
                shape = [1] * trace[k].ndim
                shape[axis] = -1
                trace[k] = trace[k] + tangents.trace[k] * changes[n].reshape(shape).astype(trace[k].dtype)
        return state._replace(trace=with_moving(state.trace, trace))

    def _pushed(
        self, params: PyTree, state: LearnerState, inputs: PyTree, reset: PyTree, n: int, direction: Array,
        tangents: Tangents,
    ) -> Tangents:  # fmt: skip
        """Tangents after a window, along a change of parameter n."""
        learner = self.learner
        values = learner.program.params(params)

        def run(value: Array, hidden: list[Array], trace: list[Array]) -> Tangents:
            changed = jax.tree.unflatten(jax.tree.structure(params), [*values[:n], value, *values[n + 1 :]])
            start = state._replace(hidden=with_moving(state.hidden, hidden), trace=with_moving(state.trace, trace))

            def one(carry: LearnerState, xs: tuple[PyTree, PyTree]) -> tuple[LearnerState, None]:
                x = xs[0] if isinstance(xs[0], tuple) else (xs[0],)
                return learner.step(changed, carry, *x, reset=xs[1])[0], None

            end, _ = jax.lax.scan(one, start, (inputs, reset))
            return Tangents(moving_part(end.hidden), moving_part(end.trace))

        start = values[n], moving_part(state.hidden), moving_part(state.trace)
        return jax.jvp(run, start, (direction, *tangents))[1]

    def _axes_of(self, n: int) -> _Axes | None:
        """By array, the axis of its units, if parameter n is a leak of theirs; None if it is none.

        A change of one unit's leak must change what remains of the traces of that unit alone, by a number that does not
        depend on data.
        """
        leaf, state = self._leaves[n].aval, self.learner.init()
        zeros = Tangents(*jax.tree.map(jnp.zeros_like, (moving_part(state.hidden), moving_part(state.trace))))
        trace, units = _drawn(jax.random.key(0), zeros.trace), sorted({0, leaf.size - 1})

        def response(key: Array, filled: Array, direction: Array) -> Tangents:
            hidden, xs = jax.random.split(key)
            start = state._replace(
                hidden=with_moving(state.hidden, _drawn(hidden, zeros.hidden)),
                trace=with_moving(state.trace, [a * filled.astype(a.dtype) for a in trace]),
            )
            return self._pushed(self.learner.params, start, self._inputs(xs), None, n, direction, zeros)

        # Two draws of data, each with a trace and without; the leak of the first unit, and of the last.
        keys, filled = jnp.repeat(jax.random.split(jax.random.key(1)), 2), jnp.array([1.0, 0.0, 1.0, 0.0])
        directions = jnp.zeros((len(units), leaf.size), leaf.dtype).at[jnp.arange(len(units)), jnp.array(units)].set(1)
        found = jax.vmap(jax.vmap(response, (0, 0, None)), (None, None, 0))(keys, filled, directions)
        remains = [a[:, ::2] - a[:, 1::2] for a in found.trace]
        steady = [_close(a[:, 0], a[:, 1]) for a in remains]
        axes = [_axis(a, units) for a in remains]
        of_trace = {k: axis for k, axis in enumerate(axes) if axis is not None and steady[k]}
        of_hidden = {k: axis for k, a in enumerate(found.hidden) if (axis := _axis(a, units)) is not None}
        return _Axes(of_hidden, of_trace) if of_trace else None

    def _inputs(self, key: Array) -> PyTree:
        """Inputs of one step, drawn."""
        step = self.learner.facts.step
        avals = [leaf.aval for leaf in step.select(Role.INPUT)]
        zeros = [jnp.zeros((1, *aval.shape), aval.dtype) for aval in avals]
        moving = _drawn(key, [a for a in zeros if is_inexact(a)])
        return with_moving(jax.tree.unflatten(step.trees[Role.INPUT], zeros), moving)


class _Axes(NamedTuple):
    """By number of an array of the hidden state, or of the trace, the axis of its units."""

    hidden: dict[int, int]
    trace: dict[int, int]


def _drawn(key: Array, like: list[Array]) -> list[Array]:
    keys = jax.random.split(key, max(len(like), 1))
    return [jax.random.normal(k, a.shape, a.dtype) for k, a in zip(keys, like, strict=False)]


def _close(one: Array, other: Array) -> bool:
    """Equal up to rounding."""
    largest = float(jnp.max(jnp.abs(one), initial=0))
    return float(jnp.max(jnp.abs(one - other), initial=0)) <= _TOLERANCE * max(largest, 1e-12)


def _axis(responses: Array, units: list[int]) -> int | None:
    """The one axis of an array along which only the unit whose leak was changed responds.

    Responses have two axes more: the units that were changed, and draws of data.
    """
    size = np.abs(np.asarray(responses)).sum(1)
    fitting = [
        axis for axis, length in enumerate(size.shape[1:]) if length > units[-1]
        and all(part.any() and not np.delete(part, unit, axis).any() for unit, part in zip(units, size, strict=True))
    ]  # fmt: skip
    return fitting[0] if len(fitting) == 1 or (fitting and len(units) == 1) else None
