"""Cells of the long short-term memory family."""

from collections.abc import Sequence
from typing import ClassVar

import brainstate
import jax
import jax.numpy as jnp

from ._base import XAVIER, ZEROS, Activation, Hidden, Initializer, Linear, Size, join, parameter
from ._gated import GatedCell


class LSTMCell(GatedCell):
    r"""Long short-term memory (Hochreiter & Schmidhuber, 1997) with one weight for its four gates.

    .. math::
        [i_t, g_t, f_t, o_t] &= W [x_t, h_{t-1}] + b \\
        c_t &= \sigma(f_t + 1) \odot c_{t-1} + \sigma(i_t) \odot \phi(g_t) \\
        h_t &= \sigma(o_t) \odot \phi(c_t)

    The one added to :math:`f_t` keeps the memory open at the start of learning (Jozefowicz et al., 2015).

    >>> import jax.numpy as jnp
    >>> cell = LSTMCell(3, 4)
    >>> cell.init_state(batch_size=5)
    >>> cell(jnp.ones((5, 3))).shape, cell.c.value.shape, cell.W.weight.value["weight"].shape
    ((5, 4), (5, 4), (7, 16))
    """

    reads: ClassVar = {"W": "xh"}
    gates: ClassVar = 4
    W: Linear
    c: Hidden

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = XAVIER,
        b_init: Initializer | None = ZEROS,
        state_init: Initializer = ZEROS,
        activation: Activation = "tanh",
        name: str | None = None,
    ):
        super().__init__(in_size, out_size, w_init, b_init, state_init, activation, name)

    def initial_states(self, batch_size: int | None) -> dict[str, jax.Array]:
        return {name: self.initial_value(self.state_init, batch_size) for name in ("c", "h")}

    def update(self, x: jax.Array) -> jax.Array:
        i, g, f, o = jnp.split(self.W(join(x, self.h.value)), 4, axis=-1)
        return self._read(jax.nn.sigmoid(f + 1) * self.c.value + jax.nn.sigmoid(i) * self.activation(g), o)

    def _read(self, c: jax.Array, o: jax.Array) -> jax.Array:
        """Set the new memory c, and the new output that the gate o reads of it."""
        h = jax.nn.sigmoid(o) * self.activation(c)
        self.c.value, self.h.value = c, h
        return h


def uniform_gate(shape: Sequence[int]) -> jax.Array:
    r"""Biases whose sigmoid is uniform: :math:`b = -\log(1/u - 1)` with :math:`u \sim U(1/n, 1 - 1/n)` for n units.

    >>> uniform_gate((6,)).shape
    (6,)
    """
    # One or two units leave an empty interval: they start at u = 1/2.
    margin = 1 / max(shape[-1], 2)
    u = margin + (1 - 2 * margin) * brainstate.random.uniform(size=shape)
    return -jnp.log(1 / u - 1)


class URLSTMCell(LSTMCell):
    r"""LSTM with uniform gate initialisation and a refine gate (Gu et al., 2020, arXiv:1910.09890).

    .. math::
        [f_t, r_t, u_t, o_t] &= W [x_t, h_{t-1}] \\
        F_t &= \sigma(f_t + b), \quad R_t = \sigma(r_t - b) \\
        g_t &= 2 R_t \odot F_t + (1 - 2 R_t) \odot F_t^2 \\
        c_t &= g_t \odot c_{t-1} + (1 - g_t) \odot \phi(u_t) \\
        h_t &= \sigma(o_t) \odot \phi(c_t)

    `b_init` gives the one bias b; by default its sigmoid is uniform.

    >>> import jax.numpy as jnp
    >>> cell = URLSTMCell(3, 4)
    >>> cell.init_state()
    >>> cell(jnp.ones(3)).shape, cell.bias.value.shape
    ((4,), (4,))
    """

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = XAVIER,
        state_init: Initializer = ZEROS,
        activation: Activation = "tanh",
        name: str | None = None,
        *,
        b_init: Initializer = uniform_gate,
    ):
        super().__init__(
            in_size, out_size, w_init=w_init, b_init=None, state_init=state_init, activation=activation, name=name
        )
        self.bias = brainstate.ParamState(parameter(b_init, (self.n_out,)))

    def update(self, x: jax.Array) -> jax.Array:
        f, r, u, o = jnp.split(self.W(join(x, self.h.value)), 4, axis=-1)
        forget = jax.nn.sigmoid(f + self.bias.value)
        refine = jax.nn.sigmoid(r - self.bias.value)
        g = 2 * refine * forget + (1 - 2 * refine) * forget * forget
        return self._read(g * self.c.value + (1 - g) * self.activation(u), o)
