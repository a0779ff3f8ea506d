"""The simple recurrent network."""

import jax

from ._base import XAVIER, ZEROS, Activation, Cell, Initializer, Size, activation_function, join
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
