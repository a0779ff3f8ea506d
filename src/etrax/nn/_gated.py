"""Gated cells with one state."""

from collections.abc import Mapping
from typing import ClassVar

import jax

from ._base import ORTHOGONAL, ZEROS, Activation, Cell, Initializer, Size, activation_function, join
from ._linear import Linear


class GatedCell(Cell):
    """Cells with one state, whose weights are affine maps.

    `reads` says for each weight what it is a map of: of the input ("x"), of what has the size of the state ("h"), or of
    two such joined.
    """

    reads: ClassVar[Mapping[str, str]] = {}

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
            made = Linear(sum(sizes[part] for part in read), self.n_out, w_init=w_init, b_init=b_init)
            setattr(self, weight, made)


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

    def update(self, x: jax.Array) -> jax.Array:
        h = self.h.value
        xh = join(x, h)
        z = jax.nn.sigmoid(self.Wz(xh))
        r = jax.nn.sigmoid(self.Wr(xh))
        n = self.activation(self.Wh(join(x, r * h)))
        new = (1 - z) * h + z * n
        self.h.value = new
        return new


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

    def update(self, x: jax.Array) -> jax.Array:
        h = self.h.value
        f = jax.nn.sigmoid(self.Wf(join(x, h)))
        n = self.activation(self.Wh(join(x, f * h)))
        new = (1 - f) * h + f * n
        self.h.value = new
        return new


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

    def update(self, x: jax.Array) -> jax.Array:
        h = self.h.value
        z = jax.nn.sigmoid(self.Wz(join(x, h)))
        new = (1 - z) * h + z * self.Wx(x)
        self.h.value = new
        return new


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

    def update(self, x: jax.Array) -> jax.Array:
        h = self.h.value
        xh = join(x, h)
        f = jax.nn.sigmoid(self.Wf(xh))
        i = jax.nn.sigmoid(self.Wi(xh))
        new = f * self.activation(h) + i * self.activation(self.Wh(x))
        self.h.value = new
        return new


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

    def update(self, x: jax.Array) -> jax.Array:
        h = self.h.value
        xh = join(x, h)
        new = jax.nn.sigmoid(self.Wf(xh)) * h + jax.nn.sigmoid(self.Wi(xh)) * self.Wx(x)
        self.h.value = new
        return new


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

    def update(self, x: jax.Array) -> jax.Array:
        h = self.h.value
        z = self.activation(self.Wx(x))
        u = jax.nn.sigmoid(self.Wu(join(z, h)))
        new = u * h + (1 - u) * z
        self.h.value = new
        return new
