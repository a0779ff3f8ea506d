"""Gated cells with one state."""

import jax

from ._base import ORTHOGONAL, ZEROS, Activation, Cell, Initializer, Size, activation_function, join
from ._linear import Linear


class GRUCell(Cell):
    r"""The gated recurrent unit (Cho et al., 2014, arXiv:1406.1078). Each gate has its own weight.

    .. math::
        z_t &= \sigma(W_z [x_t, h_{t-1}] + b_z) \\
        r_t &= \sigma(W_r [x_t, h_{t-1}] + b_r) \\
        n_t &= \phi(W_h [x_t, r_t \odot h_{t-1}] + b_h) \\
        h_t &= (1 - z_t) \odot h_{t-1} + z_t \odot n_t

    >>> import jax.numpy as jnp
    >>> cell = GRUCell(3, 4)
    >>> cell.init_state(batch_size=5)
    >>> cell(jnp.ones((5, 3))).shape
    (5, 4)
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
        self.Wz = Linear(n + m, m, w_init=w_init, b_init=b_init)
        self.Wr = Linear(n + m, m, w_init=w_init, b_init=b_init)
        self.Wh = Linear(n + m, m, w_init=w_init, b_init=b_init)

    def update(self, x: jax.Array) -> jax.Array:
        h = self.h.value
        xh = join(x, h)
        z = jax.nn.sigmoid(self.Wz(xh))
        r = jax.nn.sigmoid(self.Wr(xh))
        n = self.activation(self.Wh(join(x, r * h)))
        new = (1 - z) * h + z * n
        self.h.value = new
        return new


class MGUCell(Cell):
    r"""The minimal gated unit (Zhou et al., 2016, arXiv:1603.09420): one gate forgets and resets.

    .. math::
        f_t &= \sigma(W_f [x_t, h_{t-1}] + b_f) \\
        n_t &= \phi(W_h [x_t, f_t \odot h_{t-1}] + b_h) \\
        h_t &= (1 - f_t) \odot h_{t-1} + f_t \odot n_t

    >>> import jax.numpy as jnp
    >>> cell = MGUCell(3, 4)
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
        self.Wf = Linear(n + m, m, w_init=w_init, b_init=b_init)
        self.Wh = Linear(n + m, m, w_init=w_init, b_init=b_init)

    def update(self, x: jax.Array) -> jax.Array:
        h = self.h.value
        f = jax.nn.sigmoid(self.Wf(join(x, h)))
        n = self.activation(self.Wh(join(x, f * h)))
        new = (1 - f) * h + f * n
        self.h.value = new
        return new


class MiniGRU(Cell):
    r"""A gated recurrent unit without reset gate, its candidate linear in the input.

    .. math::
        z_t &= \sigma(W_z [x_t, h_{t-1}] + b_z) \\
        h_t &= (1 - z_t) \odot h_{t-1} + z_t \odot (W_x x_t + b_x)

    >>> import jax.numpy as jnp
    >>> cell = MiniGRU(3, 4)
    >>> cell.init_state(batch_size=5)
    >>> cell(jnp.ones((5, 3))).shape
    (5, 4)
    """

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = ORTHOGONAL,
        b_init: Initializer | None = ZEROS,
        state_init: Initializer = ZEROS,
        name: str | None = None,
    ):
        super().__init__(in_size, out_size, state_init=state_init, name=name)
        n, m = self.n_in, self.n_out
        self.Wx = Linear(n, m, w_init=w_init, b_init=b_init)
        self.Wz = Linear(n + m, m, w_init=w_init, b_init=b_init)

    def update(self, x: jax.Array) -> jax.Array:
        h = self.h.value
        z = jax.nn.sigmoid(self.Wz(join(x, h)))
        new = (1 - z) * h + z * self.Wx(x)
        self.h.value = new
        return new


class CFNCell(Cell):
    r"""The chaos-free network (Laurent & von Brecht, 2017, arXiv:1612.06212).

    .. math::
        f_t &= \sigma(W_f [x_t, h_{t-1}] + b_f) \\
        i_t &= \sigma(W_i [x_t, h_{t-1}] + b_i) \\
        h_t &= f_t \odot \phi(h_{t-1}) + i_t \odot \phi(W_h x_t + b_h)

    >>> import jax.numpy as jnp
    >>> cell = CFNCell(3, 4)
    >>> cell.init_state(batch_size=5)
    >>> cell(jnp.ones((5, 3))).shape
    (5, 4)
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
        self.Wf = Linear(n + m, m, w_init=w_init, b_init=b_init)
        self.Wi = Linear(n + m, m, w_init=w_init, b_init=b_init)
        self.Wh = Linear(n, m, w_init=w_init, b_init=b_init)

    def update(self, x: jax.Array) -> jax.Array:
        h = self.h.value
        xh = join(x, h)
        f = jax.nn.sigmoid(self.Wf(xh))
        i = jax.nn.sigmoid(self.Wi(xh))
        new = f * self.activation(h) + i * self.activation(self.Wh(x))
        self.h.value = new
        return new
