r"""Step sizes for learning from a stream, where one large error must not undo what was learned.

Each is an optax transformation of the trace of the return :math:`z`. It takes the temporal-difference error
:math:`\delta` (`error=`) and, where it needs it, the gradient of the last score (`grads=`), and gives what is to be
*added* to the parameters:

    updates, opt_state = step_size.update(credit.trace, opt_state, params, error=error, grads=credit.grads)
    params = optax.apply_updates(params, updates)

The state of each holds `step_size`, the length of the last update over that of :math:`\delta z`. Norms and second
moments of long traces are large, so that step sizes shrink as :math:`\lambda` grows: look at it before you compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .._arguments import check_decay, check_number
from .._errors import ArgumentError, MissingPackageError
from .._install import install_advice
from ..compiler.ir import PyTree

if TYPE_CHECKING:
    from optax import GradientTransformationExtraArgs


class BoundedState(NamedTuple):
    """State of `obgd`: the last effective step size."""

    step_size: Array


def obgd(learning_rate: float = 1.0, kappa: float = 2.0) -> GradientTransformationExtraArgs:
    r"""Overshooting-bounded gradient descent: no update changes the score by more than the error asks for.

    .. math::
        \theta \leftarrow \theta + \frac{\alpha}{\max(1,\; \kappa\alpha \max(|\delta|, 1)\, \|z\|_1)}\; \delta z

    Elsayed, Vasan and Mahmood, "Streaming deep reinforcement learning finally works", 2024.

    >>> import jax.numpy as jnp
    >>> rule = obgd(learning_rate=1.0, kappa=2.0)
    >>> z = jnp.array([1.0, -3.0])
    >>> updates, state = rule.update(z, rule.init(z), error=jnp.float32(0.5))
    >>> print(updates, float(state.step_size))  # 1 / (2 * 1 * 1 * 4) of 0.5 z
    [ 0.0625 -0.1875] 0.125
    """
    alpha = _positive("obgd", "learning_rate", learning_rate)
    kappa = _positive("obgd", "kappa", kappa)

    def init(params: PyTree) -> BoundedState:
        return BoundedState(jnp.zeros(()))

    def update(
        trace: PyTree, state: BoundedState, params: PyTree = None, *, error: Array, **_: object
    ) -> tuple[PyTree, BoundedState]:
        norm = _sum_over_leaves(lambda z: jnp.abs(z).sum(), trace)
        step = alpha / jnp.maximum(1.0, kappa * alpha * jnp.maximum(jnp.abs(error), 1.0) * norm)
        return jax.tree.map(lambda z: (step * error * z).astype(z.dtype), trace), BoundedState(step)

    return _transformation(init, update)


class IntentionalState(NamedTuple):
    """State of `intentional`.

    `second_moment` is that of the gradients, `energy` the running mean of Σ g²/m, `error_square` that of δ²; `steps` is
    the number of updates, which corrects running means for their start at zero.
    """

    step_size: Array
    second_moment: PyTree
    energy: Array
    error_square: Array
    steps: Array


def intentional(
    learning_rate: float, decay: float, *, moment_decay: float = 0.999, clip: float = 20.0, epsilon: float = 1e-8
) -> GradientTransformationExtraArgs:
    r"""Updates that change the score by a chosen fraction of the error, in coordinates scaled by past gradients.

    With :math:`m = \sqrt{\hat v} + \epsilon`, v the running mean of g² (`moment_decay`), σ that of :math:`\sum g^2/m`
    at the rate :math:`1 - \gamma\lambda` (`decay` is :math:`\gamma\lambda`, as in `etrax.rl.eligibility`),

    .. math::
        \theta \leftarrow \theta + \frac{\eta}{\sqrt{\hat\sigma \sum z^2/m}}\; \bar\delta\, \frac{z}{m}

    where :math:`\bar\delta` is the error, clipped at `clip` times its root mean square.

    >>> import jax.numpy as jnp
    >>> rule = intentional(0.1, decay=0.0)
    >>> z = jnp.array([3.0, 4.0])
    >>> updates, state = rule.update(z, rule.init(z), error=jnp.float32(1.0), grads=z)
    >>> bool(abs((updates * z).sum() - 0.1) < 1e-6)  # without a trace, the score changes by 0.1 of the error
    True
    """
    eta = _positive("intentional", "learning_rate", learning_rate)
    decay = check_decay("intentional", "decay", decay, closed=True)
    moment_decay = check_decay("intentional", "moment_decay", moment_decay)
    clip, epsilon = _positive("intentional", "clip", clip), _positive("intentional", "epsilon", epsilon)

    def init(params: PyTree) -> IntentionalState:
        zero = jnp.zeros(())
        return IntentionalState(zero, jax.tree.map(jnp.zeros_like, params), zero, zero, jnp.zeros((), jnp.int32))

    def update(
        trace: PyTree, state: IntentionalState, params: PyTree = None, *, error: Array, grads: PyTree = None,
        **_: object,
    ) -> tuple[PyTree, IntentionalState]:  # fmt: skip
        grads = _last_gradient("intentional", grads, trace)
        count = state.steps + 1
        moment = jax.tree.map(lambda v, g: moment_decay * v + (1 - moment_decay) * g**2, state.second_moment, grads)
        corrected = 1 - moment_decay**count
        scale = jax.tree.map(lambda v: jnp.sqrt(v / corrected) + epsilon, moment)
        energy_now = _sum_over_leaves(lambda g, m: (g**2 / m).sum(), grads, scale)
        # A running mean that is corrected for its start at zero; at γλ = 1, the mean of all steps.
        rate = (1 - decay) / (1 - decay**count) if decay < 1 else 1 / count
        energy = state.energy + rate * (energy_now - state.energy)
        square = moment_decay * state.error_square + (1 - moment_decay) * error**2
        bound = clip * jnp.sqrt(square / corrected)
        bounded = jnp.clip(error, -bound, bound)
        trace_energy = _sum_over_leaves(lambda z, m: (z**2 / m).sum(), trace, scale)
        step = eta / jnp.sqrt(jnp.where(trace_energy > 0, energy * trace_energy, 1.0))
        step = jnp.where(trace_energy > 0, step, 0.0)
        updates = jax.tree.map(lambda z, m: (step * bounded * z / m).astype(z.dtype), trace, scale)
        return updates, IntentionalState(effective_step_size(updates, trace, error), moment, energy, square, count)

    return _transformation(init, update)


class AdaptiveState(NamedTuple):
    """State of `adaptive_q`: the last effective step size, and the running mean of squared gradients."""

    step_size: Array
    second_moment: PyTree


def adaptive_q(
    learning_rate: float = 4.6e-4, *, decay: float, clip: float = 1.0, epsilon: float = 0.1
) -> GradientTransformationExtraArgs:
    r"""A step size for each parameter by its squared gradients over the length of the trace, for Q-learning.

    .. math::
        v \leftarrow \gamma\lambda\, v + (1 - \gamma\lambda)\, g^2, \qquad
        \theta \leftarrow \theta + \eta\, \mathrm{clip}(\delta, \pm 1)\, \frac{z}{\sqrt v + \epsilon}

    >>> import jax.numpy as jnp
    >>> rule = adaptive_q(1.0, decay=0.0, epsilon=1.0)
    >>> z = jnp.array([3.0])
    >>> updates, state = rule.update(z, rule.init(z), error=jnp.float32(5.0), grads=z)
    >>> float(updates[0])  # 3 / (3 + 1), the error clipped at 1
    0.75
    """
    eta = _positive("adaptive_q", "learning_rate", learning_rate)
    decay = check_decay("adaptive_q", "decay", decay, closed=True)
    clip, epsilon = _positive("adaptive_q", "clip", clip), _positive("adaptive_q", "epsilon", epsilon)

    def init(params: PyTree) -> AdaptiveState:
        return AdaptiveState(jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))

    def update(
        trace: PyTree, state: AdaptiveState, params: PyTree = None, *, error: Array, grads: PyTree = None, **_: object
    ) -> tuple[PyTree, AdaptiveState]:
        grads = _last_gradient("adaptive_q", grads, trace)
        moment = jax.tree.map(lambda v, g: decay * v + (1 - decay) * g**2, state.second_moment, grads)
        bounded = jnp.clip(error, -clip, clip)
        updates = jax.tree.map(
            lambda z, v: (eta * bounded * z / (jnp.sqrt(v) + epsilon)).astype(z.dtype), trace, moment
        )
        return updates, AdaptiveState(effective_step_size(updates, trace, error), moment)

    return _transformation(init, update)


def _transformation(init: Callable[..., object], update: Callable[..., object]) -> GradientTransformationExtraArgs:
    try:
        import optax
    except ImportError as error:
        raise MissingPackageError(
            "step sizes of `etrax.rl` are optax transformations, and optax is not installed: `pip install optax`, or "
            f"{install_advice('train')}."
        ) from error
    return optax.GradientTransformationExtraArgs(init, update)  # type: ignore[arg-type]


def takes_error(optimizer: object) -> bool:
    """Whether an optimizer is one of the step sizes here, which are given the trace and the error apart."""
    return getattr(getattr(optimizer, "update", None), "__module__", None) == __name__


def _positive(rule: str, name: str, value: object) -> float:
    return check_number(rule, name, value, 0, math.inf, "above 0", ends="()")


def _last_gradient(rule: str, grads: PyTree, trace: PyTree) -> PyTree:
    """The gradient of the last score, which must be like the trace."""
    if grads is None:
        raise ArgumentError(
            f"`{rule}` needs the gradient of the last score beside the trace: "
            "`update(credit.trace, opt_state, params, error=error, grads=credit.grads)`."
        )
    if jax.tree.structure(grads) != jax.tree.structure(trace):
        raise ArgumentError(f"`{rule}`: `grads` has another structure than the trace; pass `credit.grads`.")
    return grads


def _sum_over_leaves(of: Callable[..., Array], *trees: PyTree) -> Array:
    return sum(jax.tree.leaves(jax.tree.map(of, *trees)), jnp.zeros(()))


def effective_step_size(updates: PyTree, trace: PyTree, error: Array) -> Array:
    """‖update‖ / ‖δ z‖, and zero where nothing was to be done."""
    length = jnp.sqrt(_sum_over_leaves(lambda u: jnp.vdot(u, u).real, updates))
    asked = jnp.abs(error) * jnp.sqrt(_sum_over_leaves(lambda z: jnp.vdot(z, z).real, trace))
    return jnp.where(asked > 0, length / jnp.where(asked > 0, asked, 1.0), 0.0)
