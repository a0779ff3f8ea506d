"""Spiking neurons. Times count steps; the output is the spikes z, and units act on each other only where it is said."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jax.typing import DTypeLike

from . import surrogate
from ._pure import KAIMING, Initializer, Layer, LearnLeak, Params, State, affine, drawn, leak_init, leak_of
from .surrogate import Surrogate


def spike(x: jax.Array, gamma: float = 0.3) -> jax.Array:
    r"""One where x > 0, else zero; its derivative is taken to be the triangle :math:`\gamma \max(0, 1 - |x|)`.

    >>> import jax, jax.numpy as jnp
    >>> spike(jnp.array([-0.5, 0.5])).tolist()
    [0.0, 1.0]
    >>> jax.grad(spike)(-0.5, 0.5).item()
    0.25
    """
    return surrogate.triangle(gamma)(x)


@dataclass(frozen=True, kw_only=True)
class _Firing(Layer):
    """Neurons that fire where a potential passes a threshold."""

    tau: float = 20.0
    threshold: float = 1.0
    spike: Surrogate = field(default=surrogate.triangle(), repr=False)

    def current(self, params: Params, hidden: State, x: jax.Array) -> jax.Array:
        """What flows into the membrane."""
        return affine(x, params["W"], params.get("b"))

    def fire(self, v: jax.Array, raised: jax.Array | float = 0.0) -> jax.Array:
        """The spikes of neurons whose threshold is raised."""
        return self.spike((v - self.threshold - raised) / self.threshold)


@dataclass(frozen=True, kw_only=True)
class LIF(_Firing):
    r"""Leaky integrate-and-fire neurons, not connected to each other (Gerstner & Kistler, 2002). `d_rtrl` is exact.

    .. math::
        v_t &= \alpha v_{t-1} + W x_t + b - \vartheta z_{t-1}, \quad \alpha = e^{-1/\tau} \\
        z_t &= \Theta((v_t - \vartheta) / \vartheta)

    `threshold` is :math:`\vartheta`; `spike` is :math:`\Theta`, any of `etrax.nn.surrogate`. `learn_leak=True` learns
    :math:`\alpha = \sigma(\mathtt{leak})`, one for the layer, from :math:`e^{-1/\tau}` on; `learn_leak="unit"` one for
    each neuron. With `detach_reset=True` the reset passes no gradient. A layer that has both one leak and a detached
    reset is a leaky sum of what is below it, and the layer below is exact as well.

    >>> import jax, jax.numpy as jnp
    >>> cell = LIF(3, 4, w_init=1.0)
    >>> hidden, z = cell.step(cell.init(jax.random.key(0)), cell.hidden(), jnp.ones(3))
    >>> z.tolist(), hidden["v"].tolist()
    ([1.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0])
    >>> sorted(LIF(3, 4, learn_leak=True).init(jax.random.key(0)))
    ['W', 'b', 'leak']
    """

    state_names: ClassVar[tuple[str, ...]] = ("v", "z")
    learn_leak: LearnLeak = False
    detach_reset: bool = False

    def init(self, key: jax.Array, dtype: DTypeLike = float) -> dict[str, jax.Array]:
        return super().init(key, dtype) | leak_init(self, dtype)

    def potential(self, params: Params, hidden: State, x: jax.Array) -> jax.Array:
        """The new v."""
        z = jax.lax.stop_gradient(hidden["z"]) if self.detach_reset else hidden["z"]
        return leak_of(self, params) * hidden["v"] - self.threshold * z + self.current(params, hidden, x)

    def step(self, params: Params, hidden: State, x: jax.Array):
        v = self.potential(params, hidden, x)
        z = self.fire(v)
        return {"v": v, "z": z}, z


@dataclass(frozen=True, kw_only=True)
class ALIF(LIF):
    r"""LIF neurons whose threshold rises with their own spikes (Bellec et al., 2020). `d_rtrl` is exact.

    .. math::
        v_t &= \alpha v_{t-1} + W x_t + b - \vartheta z_{t-1}, \quad \alpha = e^{-1/\tau} \\
        a_t &= \rho a_{t-1} + z_{t-1}, \quad \rho = e^{-1/\tau_a} \\
        z_t &= \Theta((v_t - \vartheta - \beta a_t) / \vartheta)

    `learn_leak` and `detach_reset` are those of `LIF`.

    >>> import jax, jax.numpy as jnp
    >>> cell = ALIF(3, 1, w_init=0.5, beta=1.0)
    >>> params, hidden, spikes = cell.init(jax.random.key(0)), cell.hidden(), []
    >>> for _ in range(4):
    ...     hidden, z = cell.step(params, hidden, jnp.ones(3))
    ...     spikes.append(z.item())
    >>> spikes
    [1.0, 0.0, 1.0, 1.0]
    """

    state_names: ClassVar[tuple[str, ...]] = ("v", "a", "z")
    tau_a: float = 200.0
    beta: float = 0.17

    def step(self, params: Params, hidden: State, x: jax.Array):
        a = math.exp(-1 / self.tau_a) * hidden["a"] + hidden["z"]
        v = self.potential(params, hidden, x)
        z = self.fire(v, self.beta * a)
        return {"v": v, "a": a, "z": z}, z


@dataclass(frozen=True, kw_only=True)
class _Recurrent(LIF):
    """A weight `Wrec` from the spikes of all neurons, as `constraint` has it, into all."""

    w_rec_init: Initializer = field(default=KAIMING, compare=False, repr=False)
    constraint: Callable[[jax.Array], jax.Array] | None = None

    def init(self, key: jax.Array, dtype: DTypeLike = float) -> dict[str, jax.Array]:
        keys = jax.random.split(key)
        wrec = drawn(self.w_rec_init, keys[1], (self.out_size, self.out_size), dtype)
        return super().init(keys[0], dtype) | {"Wrec": wrec}

    def current(self, params: Params, hidden: State, x: jax.Array) -> jax.Array:
        weight = params["Wrec"] if self.constraint is None else self.constraint(params["Wrec"])
        return super().current(params, hidden, x) + affine(hidden["z"], weight)


@dataclass(frozen=True, kw_only=True)
class RecurrentLIF(_Recurrent, LIF):
    r"""`LIF` neurons connected to each other: :math:`c(W_{rec}) z_{t-1}` is added to their current.

    `constraint` is c, such as `etrax.nn.Dale()`. `d_rtrl` is approximate, `rtrl` exact.

    >>> import jax, jax.numpy as jnp
    >>> from etrax.nn import Dale
    >>> cell = RecurrentLIF(3, 5, constraint=Dale(0.8))
    >>> cell.step(cell.init(jax.random.key(0)), cell.hidden(batch_size=2), jnp.ones((2, 3)))[1].shape
    (2, 5)
    """


@dataclass(frozen=True, kw_only=True)
class RecurrentALIF(_Recurrent, ALIF):
    r"""`ALIF` neurons connected to each other: :math:`c(W_{rec}) z_{t-1}` is added to their current.

    `constraint` is c, such as `etrax.nn.Sparse(0.1)`. `d_rtrl` is approximate, `rtrl` exact.

    >>> import jax, jax.numpy as jnp
    >>> cell = RecurrentALIF(3, 5, beta=0.5)
    >>> cell.step(cell.init(jax.random.key(0)), cell.hidden(batch_size=2), jnp.ones((2, 3)))[1].shape
    (2, 5)
    """


@dataclass(frozen=True, kw_only=True)
class GIF(LIF):
    r"""Generalised integrate-and-fire neurons: spikes start currents and move the threshold, which also follows v
    (Mihalas & Niebur, 2009). `d_rtrl` is exact.

    .. math::
        i^k_t &= e^{-1/\tau_k} i^k_{t-1} + a_k z_{t-1}, \quad k = 1, 2 \\
        v_t &= \alpha v_{t-1} + W x_t + b + i^1_t + i^2_t - \vartheta z_{t-1} \\
        q_t &= e^{-1/\tau_q} q_{t-1} + c\, v_{t-1} + d\, z_{t-1} \\
        z_t &= \Theta((v_t - \vartheta - q_t) / \vartheta)

    `taus` and `jumps` are those of the two currents: with the default ones, a spike is followed by a short excitation
    and a long inhibition. `follow` is c, `rise` is d.

    >>> import jax, jax.numpy as jnp
    >>> cell = GIF(3, 4)
    >>> hidden, z = cell.step(cell.init(jax.random.key(0)), cell.hidden(), jnp.ones(3))
    >>> list(hidden), z.shape
    (['i1', 'i2', 'v', 'q', 'z'], (4,))
    """

    state_names: ClassVar[tuple[str, ...]] = ("i1", "i2", "v", "q", "z")
    taus: tuple[float, float] = (5.0, 50.0)
    jumps: tuple[float, float] = (0.2, -0.1)
    tau_q: float = 100.0
    follow: float = 0.005
    rise: float = 0.1

    def step(self, params: Params, hidden: State, x: jax.Array):
        z = hidden["z"]
        i1, i2 = (
            math.exp(-1 / tau) * hidden[name] + jump * z
            for name, tau, jump in zip(("i1", "i2"), self.taus, self.jumps, strict=True)
        )
        v = self.potential(params, hidden, x) + i1 + i2
        q = math.exp(-1 / self.tau_q) * hidden["q"] + self.follow * hidden["v"] + self.rise * z
        z = self.fire(v, q)
        return {"i1": i1, "i2": i2, "v": v, "q": q, "z": z}, z


@dataclass(frozen=True, kw_only=True)
class ResonateAndFire(_Firing):
    r"""Resonate-and-fire neurons: a damped rotation, each neuron at a frequency of its own that is learned (Izhikevich,
    2001), with a threshold that a spike raises (Higuchi et al., 2024). `d_rtrl` is exact.

    .. math::
        u_t + i v_t &= e^{-e^{\delta} + i \omega} (u_{t-1} + i v_{t-1}) + W x_t + b \\
        q_t &= \rho q_{t-1} + z_{t-1}, \quad \rho = e^{-1/\tau_q} \\
        z_t &= \Theta((v_t - \vartheta - q_t) / \vartheta)

    At the start :math:`\omega` (radians a step) is spread over `frequencies`, and :math:`e^{\delta} = 1/\tau`.

    >>> import jax, jax.numpy as jnp
    >>> cell = ResonateAndFire(3, 4)
    >>> params = cell.init(jax.random.key(0))
    >>> sorted(params), cell.step(params, cell.hidden(), jnp.ones(3))[1].shape
    (['W', 'b', 'delta', 'omega'], (4,))
    """

    state_names: ClassVar[tuple[str, ...]] = ("u", "v", "q", "z")
    frequencies: tuple[float, float] = (0.1, 0.6)
    tau_q: float = 10.0

    def init(self, key: jax.Array, dtype: DTypeLike = float) -> dict[str, jax.Array]:
        keys, n = jax.random.split(key), self.out_size
        omega = jax.random.uniform(keys[1], (n,), dtype, *self.frequencies)
        return super().init(keys[0], dtype) | {"omega": omega, "delta": jnp.full(n, -math.log(self.tau), dtype)}

    def step(self, params: Params, hidden: State, x: jax.Array):
        radius = jnp.exp(-jnp.exp(params["delta"]))
        cos, sin = radius * jnp.cos(params["omega"]), radius * jnp.sin(params["omega"])
        u = cos * hidden["u"] - sin * hidden["v"] + self.current(params, hidden, x)
        v = sin * hidden["u"] + cos * hidden["v"]
        q = math.exp(-1 / self.tau_q) * hidden["q"] + hidden["z"]
        z = self.fire(v, q)
        return {"u": u, "v": v, "q": q, "z": z}, z


@dataclass(frozen=True, kw_only=True)
class Izhikevich(Layer):
    r"""Izhikevich's neurons (2003), one step a millisecond in two halves, v in millivolts. `d_rtrl` is exact.

    .. math::
        v &\leftarrow v_{t-1} + z_{t-1} (c - v_{t-1}), \quad u \leftarrow u_{t-1} + d\, z_{t-1} \\
        v &\leftarrow v + \tfrac12 (0.04 v^2 + 5 v + 140 - u + W x_t + b) \quad \text{twice} \\
        z_t &= \Theta((v - 30) / 30), \quad v_t = \min(v, 30), \quad u_t = u + a (b_u v_t - u)

    The default a, `b_u`, c and d are those of regular spiking; fast spiking is a = 0.1, d = 2.

    >>> import jax, jax.numpy as jnp
    >>> cell = Izhikevich(1, 1, w_init=10.0)
    >>> params, spikes = cell.init(jax.random.key(0)), 0.0
    >>> _, z = jax.lax.scan(lambda h, x: cell.step(params, h, x), cell.hidden(), jnp.ones((1000, 1)))
    >>> 15 < z.sum().item() < 35  # spikes in a second
    True
    """

    state_names: ClassVar[tuple[str, ...]] = ("v", "u", "z")
    w_init: Initializer = field(
        default=initializers.variance_scaling(100.0, "fan_in", "normal"), compare=False, repr=False
    )
    a: float = 0.02
    b_u: float = 0.2
    c: float = -65.0
    d: float = 8.0
    spike: Surrogate = field(default=surrogate.triangle(), repr=False)

    def hidden(self, batch_size=None, dtype: DTypeLike = float) -> dict[str, jax.Array]:
        zeros = super().hidden(batch_size, dtype)
        return {**zeros, "v": zeros["v"] + self.c, "u": zeros["u"] + self.b_u * self.c}

    def step(self, params: Params, hidden: State, x: jax.Array):
        v = hidden["v"] + hidden["z"] * (self.c - hidden["v"])
        u = hidden["u"] + self.d * hidden["z"]
        current = affine(x, params["W"], params.get("b"))
        for _ in range(2):
            v = v + 0.5 * (0.04 * v * v + 5 * v + 140 - u + current)
        z = self.spike((v - 30) / 30)
        v = jnp.minimum(v, 30.0)
        return {"v": v, "u": u + self.a * (self.b_u * v - u), "z": z}, z
