"""Cells with one state and at most one gate."""

import jax

from ._base import ORTHOGONAL, XAVIER, ZEROS, Activation, Cell, Initializer, Size, activation_function, join
from ._linear import Linear


class VanillaRNNCell(Cell):
    r"""The simple recurrent network.

    .. math:: h_t = \phi(W [x_t, h_{t-1}] + b)

    >>> import jax.numpy as jnp
    >>> cell = VanillaRNNCell(3, 4, activation="tanh")
    >>> cell.init_state(batch_size=5)
    >>> cell(jnp.ones((5, 3))).shape
    (5, 4)
    """

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        state_init: Initializer = ZEROS,
        w_init: Initializer = XAVIER,
        b_init: Initializer | None = ZEROS,
        activation: Activation = "relu",
        name: str | None = None,
    ):
        super().__init__(in_size, out_size, state_init=state_init, name=name)
        n, m = self.n_in, self.n_out
        self.activation = activation_function(activation)
        self.W = Linear(n + m, m, w_init=w_init, b_init=b_init)

    def update(self, x: jax.Array) -> jax.Array:
        new = self.activation(self.W(join(x, self.h.value)))
        self.h.value = new
        return new


ValinaRNNCell = VanillaRNNCell


class MinimalRNNCell(Cell):
    r"""The minimal recurrent network (Chen, 2017, arXiv:1711.06788): the state moves towards an embedding of the input.

    .. math::
        z_t &= \phi(W_x x_t + b_x) \\
        u_t &= \sigma(W_u [z_t, h_{t-1}] + b_u) \\
        h_t &= u_t \odot h_{t-1} + (1 - u_t) \odot z_t

    >>> import jax.numpy as jnp
    >>> cell = MinimalRNNCell(3, 4)
    >>> cell.init_state()
    >>> cell(jnp.ones(3)).shape
    (4,)
    """

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = ORTHOGONAL,
        b_init: Initializer | None = ZEROS,
        state_init: Initializer = ZEROS,
        activation: Activation = "tanh",
        name: str | None = None,
    ):
        super().__init__(in_size, out_size, state_init=state_init, name=name)
        n, m = self.n_in, self.n_out
        self.activation = activation_function(activation)
        self.Wx = Linear(n, m, w_init=w_init, b_init=b_init)
        self.Wu = Linear(m + m, m, w_init=w_init, b_init=b_init)

    def update(self, x: jax.Array) -> jax.Array:
        h = self.h.value
        z = self.activation(self.Wx(x))
        u = jax.nn.sigmoid(self.Wu(join(z, h)))
        new = u * h + (1 - u) * z
        self.h.value = new
        return new
