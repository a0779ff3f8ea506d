"""Leaky integrate-and-fire neurons with a surrogate gradient (Bellec et al., 2020)."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from ._base import KAIMING, ZEROS, Cell, Hidden, Initializer, Size
from ._linear import Linear


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def spike(x: jax.Array, gamma: float = 0.3) -> jax.Array:
    r"""One where x > 0, else zero; its derivative is taken to be the triangle :math:`\gamma \max(0, 1 - |x|)`.

    >>> import jax, jax.numpy as jnp
    >>> spike(jnp.array([-0.5, 0.5])).tolist()
    [0.0, 1.0]
    >>> jax.grad(spike)(-0.5, 0.5).item()
    0.25
    """
    return jnp.asarray(x > 0, jnp.result_type(x))


@spike.defjvp
def _spike_jvp(gamma, primals, tangents):
    (x,), (dx,) = primals, tangents
    return spike(x, gamma), gamma * jnp.maximum(0.0, 1 - jnp.abs(x)) * dx


class LIF(Cell):
    r"""Leaky integrate-and-fire neurons, not connected to each other.

    .. math::
        v_t &= \alpha v_{t-1} + W x_t + b - \vartheta z_{t-1}, \quad \alpha = e^{-1/\tau} \\
        z_t &= \Theta((v_t - \vartheta) / \vartheta)

    `tau` counts steps; `threshold` is :math:`\vartheta`; `gamma` is the height of the surrogate derivative of
    :math:`\Theta`. `state_init` gives v; z starts at zero. The output is z.

    >>> import jax.numpy as jnp
    >>> layer = LIF(3, 4, w_init=1.0)
    >>> layer.init_state()
    >>> layer(jnp.ones(3)).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    v: Hidden
    z: Hidden

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        *,
        tau: float = 20.0,
        threshold: float = 1.0,
        gamma: float = 0.3,
        w_init: Initializer = KAIMING,
        b_init: Initializer | None = ZEROS,
        state_init: Initializer = ZEROS,
        name: str | None = None,
    ):
        super().__init__(in_size, out_size, state_init=state_init, name=name)
        self.decay, self.threshold, self.gamma = math.exp(-1 / tau), threshold, gamma
        self.W = Linear(self.n_in, self.n_out, w_init=w_init, b_init=b_init)

    def initial_states(self, batch_size: int | None) -> dict[str, jax.Array]:
        return {"v": self.initial_value(self.state_init, batch_size), "z": self.initial_value(ZEROS, batch_size)}

    def current(self, x: jax.Array) -> jax.Array:
        """What flows into the membrane."""
        return self.W(x)

    def integrate(self, x: jax.Array) -> jax.Array:
        """Evolve and return v."""
        new = self.decay * self.v.value + self.current(x) - self.threshold * self.z.value
        self.v.value = new
        return new

    def fire(self, excess: jax.Array) -> jax.Array:
        """Set and return z, where `excess` is the distance of v from its threshold."""
        new = spike(excess / self.threshold, self.gamma)
        self.z.value = new
        return new

    def update(self, x: jax.Array) -> jax.Array:
        return self.fire(self.integrate(x) - self.threshold)


class ALIF(LIF):
    r"""Leaky integrate-and-fire neurons whose threshold rises with their own spikes.

    .. math::
        v_t &= \alpha v_{t-1} + W x_t + b - \vartheta z_{t-1}, \quad \alpha = e^{-1/\tau} \\
        a_t &= \rho a_{t-1} + z_{t-1}, \quad \rho = e^{-1/\tau_a} \\
        z_t &= \Theta((v_t - \vartheta - \beta a_t) / \vartheta)

    `tau_a` counts steps. `state_init` gives v; a and z start at zero. The output is z.

    >>> import jax.numpy as jnp
    >>> layer = ALIF(3, 4, w_init=0.5, beta=1.0)
    >>> layer.init_state()
    >>> [layer(jnp.ones(3))[0].item() for _ in range(4)]
    [1.0, 0.0, 1.0, 1.0]
    """

    a: Hidden

    def __init__(self, in_size: Size, out_size: Size, *, tau_a: float = 200.0, beta: float = 0.17, **neuron):
        super().__init__(in_size, out_size, **neuron)
        self.decay_a, self.beta = math.exp(-1 / tau_a), beta

    def initial_states(self, batch_size: int | None) -> dict[str, jax.Array]:
        return super().initial_states(batch_size) | {"a": self.initial_value(ZEROS, batch_size)}

    def update(self, x: jax.Array) -> jax.Array:
        a = self.decay_a * self.a.value + self.z.value
        v = self.integrate(x)
        self.a.value = a
        return self.fire(v - self.threshold - self.beta * a)


class RecurrentLIF(LIF):
    r"""`LIF` neurons connected to each other: :math:`W_{rec} z_{t-1}` is added to their current.

    >>> import jax.numpy as jnp
    >>> layer = RecurrentLIF(3, 4, w_init=1.0, w_rec_init=0.5)
    >>> layer.init_state(batch_size=5)
    >>> layer(jnp.ones((5, 3))).shape
    (5, 4)
    """

    def __init__(self, in_size: Size, out_size: Size, *, w_rec_init: Initializer = KAIMING, **neuron):
        super().__init__(in_size, out_size, **neuron)
        self.Wrec = Linear(self.n_out, self.n_out, w_init=w_rec_init, b_init=None)

    def current(self, x: jax.Array) -> jax.Array:
        return self.W(x) + self.Wrec(self.z.value)


class RecurrentALIF(ALIF):
    r"""`ALIF` neurons connected to each other: :math:`W_{rec} z_{t-1}` is added to their current.

    >>> import jax.numpy as jnp
    >>> layer = RecurrentALIF(3, 4, beta=0.5)
    >>> layer.init_state(batch_size=5)
    >>> layer(jnp.ones((5, 3))).shape
    (5, 4)
    """

    def __init__(self, in_size: Size, out_size: Size, *, w_rec_init: Initializer = KAIMING, **neuron):
        super().__init__(in_size, out_size, **neuron)
        self.Wrec = Linear(self.n_out, self.n_out, w_init=w_rec_init, b_init=None)

    def current(self, x: jax.Array) -> jax.Array:
        return self.W(x) + self.Wrec(self.z.value)
