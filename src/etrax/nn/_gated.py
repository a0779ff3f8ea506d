"""Cells with one state, whose weights are affine maps: the simple network, and gated ones."""

from collections.abc import Mapping
from typing import ClassVar

import jax

from ._base import ORTHOGONAL, XAVIER, ZEROS, Activation, Cell, Initializer, Linear, Size, activation_function, join


class GatedCell(Cell):
    """Cells whose weights are affine maps, most of them with one state.

    `reads` says for each weight what it is a map of: of the input ("x"), of what has the size of the state ("h"), or of
    two such joined; `gates` is how many gates one weight serves. A subclass gives `_next(x, h)`, the new state, or
    an `update` of its own.
    """

    reads: ClassVar[Mapping[str, str]] = {}
    gates: ClassVar[int] = 1

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
        self.activation = activation_function(activation)
        sizes = {"x": self.n_in, "h": self.n_out}
        for weight, read in self.reads.items():
            n_in = sum(sizes[part] for part in read)
            setattr(self, weight, Linear(n_in, self.gates * self.n_out, w_init=w_init, b_init=b_init))

    def _next(self, x: jax.Array, h: jax.Array) -> jax.Array:
        raise NotImplementedError(f"`{type(self).__name__}` gives no `update`.")

    def update(self, x: jax.Array) -> jax.Array:
        new = self._next(x, self.h.value)
        self.h.value = new
        return new


class LinearGatedCell(GatedCell):
    """Those whose candidate is linear in the input: nothing but gates has an activation."""

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = ORTHOGONAL,
        b_init: Initializer | None = ZEROS,
        state_init: Initializer = ZEROS,
        name: str | None = None,
    ):
        super().__init__(in_size, out_size, w_init, b_init, state_init, name=name)


class VanillaRNNCell(GatedCell):
    r"""The simple recurrent network.

    .. math:: h_t = \phi(W [x_t, h_{t-1}] + b)

    >>> import jax.numpy as jnp
    >>> cell = VanillaRNNCell(3, 4, activation="tanh")
    >>> cell.init_state(batch_size=5)
    >>> cell(jnp.ones((5, 3))).shape
    (5, 4)
    """

    reads: ClassVar = {"W": "xh"}
    W: Linear

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
        super().__init__(in_size, out_size, w_init, b_init, state_init, activation, name)

    def _next(self, x: jax.Array, h: jax.Array) -> jax.Array:
        return self.activation(self.W(join(x, h)))


ValinaRNNCell = VanillaRNNCell


class GRUCell(GatedCell):
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

    reads: ClassVar = {"Wz": "xh", "Wr": "xh", "Wh": "xh"}
    Wz: Linear
    Wr: Linear
    Wh: Linear

    def _next(self, x: jax.Array, h: jax.Array) -> jax.Array:
        xh = join(x, h)
        z = jax.nn.sigmoid(self.Wz(xh))
        r = jax.nn.sigmoid(self.Wr(xh))
        n = self.activation(self.Wh(join(x, r * h)))
        return (1 - z) * h + z * n


class MGUCell(GatedCell):
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

    reads: ClassVar = {"Wf": "xh", "Wh": "xh"}
    Wf: Linear
    Wh: Linear

    def _next(self, x: jax.Array, h: jax.Array) -> jax.Array:
        f = jax.nn.sigmoid(self.Wf(join(x, h)))
        n = self.activation(self.Wh(join(x, f * h)))
        return (1 - f) * h + f * n


class MiniGRU(LinearGatedCell):
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

    reads: ClassVar = {"Wx": "x", "Wz": "xh"}
    Wx: Linear
    Wz: Linear

    def _next(self, x: jax.Array, h: jax.Array) -> jax.Array:
        z = jax.nn.sigmoid(self.Wz(join(x, h)))
        return (1 - z) * h + z * self.Wx(x)


class CFNCell(GatedCell):
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

    reads: ClassVar = {"Wf": "xh", "Wi": "xh", "Wh": "x"}
    Wf: Linear
    Wi: Linear
    Wh: Linear

    def _next(self, x: jax.Array, h: jax.Array) -> jax.Array:
        xh = join(x, h)
        f = jax.nn.sigmoid(self.Wf(xh))
        i = jax.nn.sigmoid(self.Wi(xh))
        return f * self.activation(h) + i * self.activation(self.Wh(x))


class MiniLSTM(LinearGatedCell):
    r"""A long short-term memory with one state and a candidate linear in the input.

    .. math::
        f_t &= \sigma(W_f [x_t, h_{t-1}] + b_f) \\
        i_t &= \sigma(W_i [x_t, h_{t-1}] + b_i) \\
        h_t &= f_t \odot h_{t-1} + i_t \odot (W_x x_t + b_x)

    >>> import jax.numpy as jnp
    >>> cell = MiniLSTM(3, 4)
    >>> cell.init_state(batch_size=5)
    >>> cell(jnp.ones((5, 3))).shape
    (5, 4)
    """

    reads: ClassVar = {"Wx": "x", "Wf": "xh", "Wi": "xh"}
    Wx: Linear
    Wf: Linear
    Wi: Linear

    def _next(self, x: jax.Array, h: jax.Array) -> jax.Array:
        xh = join(x, h)
        return jax.nn.sigmoid(self.Wf(xh)) * h + jax.nn.sigmoid(self.Wi(xh)) * self.Wx(x)


class MinimalRNNCell(GatedCell):
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

    reads: ClassVar = {"Wx": "x", "Wu": "hh"}
    Wx: Linear
    Wu: Linear

    def _next(self, x: jax.Array, h: jax.Array) -> jax.Array:
        z = self.activation(self.Wx(x))
        u = jax.nn.sigmoid(self.Wu(join(z, h)))
        return u * h + (1 - u) * z
