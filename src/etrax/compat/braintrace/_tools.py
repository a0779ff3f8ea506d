"""Small states and records beside the algorithms: accumulated gradients, filters, fixed feedback."""

from __future__ import annotations

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp

from ..._errors import ArgumentTypeError
from ...compiler.ir import PyTree


class GradExpon(brainstate.nn.Module):
    """A leaky sum of gradients, g ← decay g + grads; `tau_or_decay` is the decay, or a time constant with its unit.

    >>> import jax.numpy as jnp
    >>> total = GradExpon(jnp.zeros(2), 0.5)
    >>> total.update(jnp.ones(2)); total.update(jnp.ones(2))
    >>> total.gradients.value.tolist()
    [1.5, 1.5]
    """

    def __init__(self, grad_shape: PyTree, tau_or_decay: u.Quantity | float):
        super().__init__()
        if isinstance(tau_or_decay, u.Quantity):
            # Decay over one time step of the environment.
            self.decay = jnp.exp(-1.0 / u.maybe_decimal(tau_or_decay / brainstate.environ.get_dt()))
        elif isinstance(tau_or_decay, float):
            assert 0 < tau_or_decay < 1, f"`tau_or_decay` must be between 0 and 1; got {tau_or_decay}"
            self.decay = tau_or_decay
        else:
            raise ArgumentTypeError(f"`tau_or_decay` must be a float or a time; got {tau_or_decay!r}.")
        self.gradients = brainstate.ShortTermState(jax.tree.map(u.math.zeros_like, grad_shape))

    def update(self, grads: PyTree) -> None:
        self.gradients.value = jax.tree.map(lambda old, new: self.decay * old + new, self.gradients.value, grads)


class KappaFilter(brainstate.ShortTermState):
    """A low-pass filter that holds its value, y ← κ y + (1 − κ) x."""

    def __init__(self, init_value: PyTree, kappa: float):
        super().__init__(init_value)
        self.kappa = kappa

    def update(self, x: jax.Array) -> jax.Array:
        self.value = self.kappa * self.value + (1 - self.kappa) * x
        return self.value

    def reset_state(self, batch_size: int | None = None, **_: object) -> None:
        self.value = jax.tree.map(u.math.zeros_like, self.value)


class FixedRandomFeedback:
    """A random matrix B (targets, layer) that is never trained: errors go back by it."""

    def __init__(self, n_target: int, n_layer: int, key: jax.Array, init_scale: float = 0.1):
        self.B = init_scale * jax.random.normal(key, (n_target, n_layer))

    def project(self, y_target: jax.Array) -> jax.Array:
        return y_target @ jax.lax.stop_gradient(self.B)
