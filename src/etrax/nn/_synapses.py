"""Synapses: from spikes to currents. Times count steps. Under `d_rtrl` all are exact."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from ._pure import Layer, LearnLeak, Params, State, affine, leak_init, leak_of


@dataclass(frozen=True, kw_only=True)
class ExponentialSynapse(Layer):
    r"""A current that jumps with a spike and decays (Destexhe et al., 1994). `d_rtrl` is exact.

    .. math:: g_t = e^{-1/\tau} g_{t-1} + W x_t

    >>> import jax, jax.numpy as jnp
    >>> cell = ExponentialSynapse(1, 1, w_init=1.0)
    >>> params, hidden = cell.init(jax.random.key(0)), cell.hidden()
    >>> hidden, g = cell.step(params, hidden, jnp.ones(1))
    >>> g.item(), round(cell.step(params, hidden, jnp.zeros(1))[1].item(), 3)
    (1.0, 0.819)
    """

    state_names: ClassVar[tuple[str, ...]] = ("g",)
    tau: float = 5.0
    b_init: None = None

    def step(self, params: Params, hidden: State, x: jax.Array):
        g = math.exp(-1 / self.tau) * hidden["g"] + affine(x, params["W"], params.get("b"))
        return {"g": g}, g


@dataclass(frozen=True, kw_only=True)
class AlphaSynapse(Layer):
    r"""A current that rises and falls with one time constant (Rall, 1967). `d_rtrl` is exact.

    .. math::
        h_t &= a h_{t-1} + W x_t, \quad a = e^{-1/\tau} \\
        g_t &= a (g_{t-1} + \tfrac{e}{\tau} h_{t-1})

    k steps after a spike :math:`g = \frac{k}{\tau} e^{1 - k/\tau} W`: its peak, after :math:`\tau` steps, is W.

    >>> import jax, jax.numpy as jnp
    >>> cell = AlphaSynapse(1, 1, tau=5.0, w_init=1.0)
    >>> params, x = cell.init(jax.random.key(0)), jnp.zeros((11, 1)).at[0].set(1.0)
    >>> _, g = jax.lax.scan(lambda h, x: cell.step(params, h, x), cell.hidden(), x)
    >>> g.argmax().item(), round(g.max().item(), 3)
    (5, 1.0)
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "g")
    tau: float = 5.0
    b_init: None = None

    def step(self, params: Params, hidden: State, x: jax.Array):
        decay = math.exp(-1 / self.tau)
        g = decay * (hidden["g"] + math.e / self.tau * hidden["h"])
        h = decay * hidden["h"] + affine(x, params["W"], params.get("b"))
        return {"h": h, "g": g}, g


@dataclass(frozen=True, kw_only=True)
class NMDASynapse(Layer):
    r"""A slow current that saturates, and that magnesium blocks at rest (Jahr & Stevens, 1990; Wang, 1999): its step
    takes the spikes and the potential v (in millivolts) of the neurons that it drives. `d_rtrl` is exact.

    .. math::
        h_t &= e^{-1/\tau_r} h_{t-1} + |W| x_t \\
        s_t &= e^{-1/\tau_d} s_{t-1} + \eta h_t (1 - s_{t-1}) \\
        I_t &= \bar g\, s_t \frac{E - v_t}{1 + [Mg] e^{-0.062 v_t} / 3.57}

    `eta` is :math:`\eta`, `conductance` is :math:`\bar g`, `reversal` is E, `magnesium` (millimolar) [Mg].

    >>> import jax, jax.numpy as jnp
    >>> cell = NMDASynapse(1, 1, w_init=1.0)
    >>> params, x = cell.init(jax.random.key(0)), jnp.ones(1)
    >>> at_rest, depolarised = (cell.step(params, cell.hidden(), x, v)[1].item() for v in jnp.array([[-70.0], [-30.0]]))
    >>> at_rest < depolarised
    True
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "s")
    tau_rise: float = 2.0
    tau_decay: float = 100.0
    eta: float = 0.1
    conductance: float = 1.0
    reversal: float = 0.0
    magnesium: float = 1.0
    b_init: None = None

    def step(self, params: Params, hidden: State, x: jax.Array, v: jax.Array):
        h = math.exp(-1 / self.tau_rise) * hidden["h"] + affine(x, jnp.abs(params["W"]))
        s = math.exp(-1 / self.tau_decay) * hidden["s"] + self.eta * h * (1 - hidden["s"])
        opened = 1 / (1 + self.magnesium / 3.57 * jnp.exp(-0.062 * v))
        return {"h": h, "s": s}, self.conductance * s * opened * (self.reversal - v)


@dataclass(frozen=True, kw_only=True)
class LeakyReadout(Layer):
    r"""A leaky sum of the input, as read from spikes (Bellec et al., 2020). `d_rtrl` is exact.

    .. math:: r_t = \kappa r_{t-1} + W x_t + b, \quad \kappa = e^{-1/\tau}

    `learn_leak=True` learns :math:`\kappa = \sigma(\mathtt{leak})`, one for the layer, which keeps the layer below
    exact; `learn_leak="unit"` one for each unit, which does not.

    >>> import jax, jax.numpy as jnp
    >>> cell = LeakyReadout(3, 2, tau=10.0)
    >>> cell.step(cell.init(jax.random.key(0)), cell.hidden(batch_size=5), jnp.ones((5, 3)))[1].shape
    (5, 2)
    """

    state_names: ClassVar[tuple[str, ...]] = ("r",)
    tau: float = 20.0
    learn_leak: LearnLeak = False

    def init(self, key: jax.Array, dtype: DTypeLike = float) -> dict[str, jax.Array]:
        return super().init(key, dtype) | leak_init(self, dtype)

    def step(self, params: Params, hidden: State, x: jax.Array):
        r = leak_of(self, params) * hidden["r"] + affine(x, params["W"], params.get("b"))
        return {"r": r}, r
