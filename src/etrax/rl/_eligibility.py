r"""Eligibility traces of the return (Sutton, 1988), for recurrent actors and critics.

A score s_t is what a step's output is to be credited with: the value for a critic, the logarithm of the action's
probability for an actor, or their sum. With the temporal-difference error :math:`\delta_t`, known one step later,

.. math::
    z_t = \gamma\lambda\, z_{t-1} + \nabla_\theta s_t, \qquad \theta \leftarrow \theta + \alpha\, \delta_t z_t

:math:`\nabla_\theta s_t` reaches through all steps before t: it is the learner's gradient, with windows of one step,
and as good as its verdicts. Two traces of different kinds are carried, then: the learner's, of the states, and z, of
the return. Memory is constant in the length of an episode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._arguments import check_decay
from .._compat import transfers_meant
from .._errors import ArgumentError
from ..compiler.ir import LossFunction, PyTree
from ..learn import Learner, LearnerState, check_learner


class Credit(NamedTuple):
    """What the next step needs: the learner's state, the trace of the return, and the gradient of the last score.

    The last two have the structure of the parameters.
    """

    state: LearnerState
    trace: PyTree
    grads: PyTree


class Eligibility(NamedTuple):
    """Pure functions over one `Credit`; usable under `jit`, `vmap` and `scan`."""

    init: Callable[..., Credit]
    step: Callable[..., tuple[Credit, jax.Array]]
    gradient: Callable[[Credit, jax.Array], PyTree]
    cut: Callable[[Credit, jax.Array], Credit]
    reset: Callable[..., Credit]


def eligibility(learner: Learner, score_fn: LossFunction, decay: float | PyTree) -> Eligibility:
    r"""Traces of `score_fn(output, target) -> scalar` with `decay` :math:`= \gamma\lambda`.

    `decay` is one number, or a tree of numbers that begins like the parameters: one λ for the actor's and another for
    the critic's.

    - `init(params=None, hidden=None) -> credit` at the beginning of an episode;
    - `step(params, credit, inputs, target=None) -> (credit, score)` takes the inputs of one step;
    - `gradient(credit, error)` is :math:`-\delta_t z_t`, for an optimizer that descends;
    - `cut(credit, where)` empties the trace of the return, and keeps the learner's: Watkins' Q(λ) does so after an
      action that was not the best one;
    - `reset(credit, where, params=None)` begins a new episode where `where` is true.

    >>> import etrax, jax.numpy as jnp
    >>> def step(w, h, x):
    ...     h = 0.5 * h + w * x
    ...     return h, h
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(()), params=jnp.ones(()), hidden=jnp.zeros(()))
    >>> value = etrax.rl.eligibility(learner, lambda output, target: output, decay=0.5)
    >>> credit = value.init()
    >>> for x in (1.0, 0.0):
    ...     credit, score = value.step(learner.params, credit, jnp.float32(x))
    >>> float(credit.trace)  # of a value of 1, then 0.5, in the one parameter: 0.5 * 1 + 0.5
    1.0
    >>> float(value.gradient(credit, jnp.float32(2.0)))
    -2.0
    """
    check_learner(learner)
    learner.refuse_by_call("eligibility")
    decays = _decay_of_each(decay, learner.params)
    score_and_grad = learner.value_and_grad(score_fn, window=1, reduction="sum")

    @transfers_meant()
    def init(params: PyTree = None, hidden: PyTree = None) -> Credit:
        zeros = jax.tree.map(jnp.zeros_like, learner.params if params is None else params)
        # Two trees of arrays: a state that is given away may not hold an array twice.
        return Credit(learner.init(params, hidden), zeros, jax.tree.map(jnp.copy, zeros))

    def step(params: PyTree, credit: Credit, inputs: PyTree, target: PyTree = None) -> tuple[Credit, jax.Array]:
        inputs, target = jax.tree.map(lambda a: jnp.asarray(a)[None], (inputs, target))
        (score, grads), state = score_and_grad(params, credit.state, inputs, target)
        return Credit(state, decayed(credit.trace, grads), grads), score

    @jax.jit
    def decayed(trace: PyTree, grads: PyTree) -> PyTree:
        return jax.tree.map(lambda rate, z, g: (rate * z + g).astype(g.dtype), decays, trace, grads)

    @jax.jit
    def gradient(credit: Credit, error: jax.Array) -> PyTree:
        return jax.tree.map(lambda z: -error * z, credit.trace)

    @jax.jit
    def cut(credit: Credit, where: jax.Array) -> Credit:
        return credit._replace(trace=jax.tree.map(lambda z: jnp.where(where, jnp.zeros_like(z), z), credit.trace))

    @jax.jit
    def reset(credit: Credit, where: jax.Array, params: PyTree = None) -> Credit:
        return jax.tree.map(lambda new, old: jnp.where(where, new, old), init(params), credit)

    return Eligibility(init, step, gradient, cut, reset)


def _decay_of_each(decay: float | PyTree, params: PyTree) -> PyTree:
    """One number per parameter, from one for all or from a tree that begins like that of the parameters."""
    leaves, tree = jax.tree.flatten(decay)
    checked = tree.unflatten([check_decay("eligibility", "decay", leaf, closed=True) for leaf in leaves])
    try:
        return jax.tree.map(lambda rate, below: jax.tree.map(lambda _: rate, below), checked, params)
    except (ValueError, TypeError) as error:
        raise ArgumentError(
            "`eligibility`: `decay` is a tree that does not begin like the parameters "
            f"({jax.tree.structure(params)}); pass one number, or one for each of their branches."
        ) from error
