"""Readouts with a memory of their own."""

import math

import jax

from ._base import KAIMING, ZEROS, Cell, Hidden, Initializer, Size
from ._linear import Linear


class LeakyReadout(Cell):
    r"""A leaky sum of the input, as read from spikes.

    .. math:: r_t = \kappa r_{t-1} + W x_t + b, \quad \kappa = e^{-1/\tau}

    `tau` counts steps.

    >>> import jax.numpy as jnp
    >>> readout = LeakyReadout(3, 2, tau=10.0)
    >>> readout.init_state(batch_size=5)
    >>> readout(jnp.ones((5, 3))).shape
    (5, 2)
    """

    r: Hidden

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        tau: float = 20.0,
        w_init: Initializer = KAIMING,
        *,
        b_init: Initializer | None = ZEROS,
        state_init: Initializer = ZEROS,
        name: str | None = None,
    ):
        super().__init__(in_size, out_size, state_init=state_init, name=name)
        self.decay = math.exp(-1 / tau)
        self.W = Linear(self.n_in, self.n_out, w_init=w_init, b_init=b_init)

    def initial_states(self, batch_size: int | None) -> dict[str, jax.Array]:
        return {"r": self.initial_value(self.state_init, batch_size)}

    def update(self, x: jax.Array) -> jax.Array:
        new = self.decay * self.r.value + self.W(x)
        self.r.value = new
        return new
