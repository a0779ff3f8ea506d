"""Recurrences whose units do not act on each other: a trace of the size of the weights carries the whole gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from .._errors import ArgumentError
from ._pure import LECUN, Initializer, Layer, Params, PureCell, State, affine


def _normal(key: jax.Array, shape: Sequence[int], dtype: DTypeLike, parts: int = 1) -> jax.Array:
    """Of variance one over the number of inputs; each of two `parts` of a complex weight has half of it."""
    return jax.random.normal(key, tuple(shape), dtype) / math.sqrt(parts * shape[0])


def _read(h: jax.Array, params: Params, x: jax.Array) -> jax.Array:
    """Re(C h) + D x."""
    return h.real @ params["C_re"] - h.imag @ params["C_im"] + params["D"] * x


@dataclass(frozen=True)
class _StateSpace(PureCell):
    """Input and output have `d_model` features, the state `d_hidden`."""

    d_model: int
    d_hidden: int

    @property
    def state_size(self) -> tuple[int, ...]:
        return (self.d_hidden,)

    def hidden(self, batch_size=None, dtype: DTypeLike = float) -> dict[str, jax.Array]:
        return jax.tree.map(lambda zeros: jax.lax.complex(zeros, zeros), super().hidden(batch_size, dtype))


@dataclass(frozen=True)
class LRUCell(_StateSpace):
    r"""The linear recurrent unit (Orvieto et al., 2023, arXiv:2303.06349): a complex diagonal state. `d_rtrl` is exact.

    .. math::
        \lambda &= \exp(-e^{\nu} + i e^{\theta}) \\
        h_t &= \lambda \odot h_{t-1} + e^{\gamma} \odot (B x_t), \quad B = B_{re} + i B_{im} \\
        y_t &= \mathrm{Re}(C h_t) + D \odot x_t, \quad C = C_{re} + i C_{im}

    Input and output have `d_model` features, the state `d_hidden`. At the start :math:`|\lambda|` is spread over the
    ring between `r_min` and `r_max`, its phase over `[0, max_phase]`, and :math:`e^{\gamma} = \sqrt{1 - |\lambda|^2}`.

    >>> import jax, jax.numpy as jnp
    >>> cell = LRUCell(3, 4)
    >>> hidden, y = cell.step(cell.init(jax.random.key(0)), cell.hidden(batch_size=5), jnp.ones((5, 3)))
    >>> y.shape, hidden["h"].shape, hidden["h"].dtype.kind
    ((5, 3), (5, 4), 'c')
    """

    r_min: float = 0.0
    r_max: float = 1.0
    max_phase: float = 6.28

    def __post_init__(self):
        if not 0 <= self.r_min < self.r_max <= 1:
            raise ArgumentError(
                f"`LRUCell` needs 0 <= `r_min` < `r_max` <= 1, found `r_min` = {self.r_min} and `r_max` = {self.r_max}."
            )

    def init(self, key: jax.Array, dtype: DTypeLike = float) -> dict[str, jax.Array]:
        n, m, keys = self.d_model, self.d_hidden, jax.random.split(key, 7)
        # Uniform in area on the ring; away from its ends, where a logarithm below would be infinite.
        u, phase = (jax.random.uniform(k, (m,), dtype, 1e-6, 1 - 1e-6) for k in keys[:2])
        squared_radius = u * (self.r_max**2 - self.r_min**2) + self.r_min**2
        return {
            "nu_log": jnp.log(-0.5 * jnp.log(squared_radius)),
            "theta_log": jnp.log(self.max_phase * phase),
            "gamma_log": 0.5 * jnp.log1p(-squared_radius),
            "B_re": _normal(keys[2], (n, m), dtype, 2),
            "B_im": _normal(keys[3], (n, m), dtype, 2),
            "C_re": _normal(keys[4], (m, n), dtype),
            "C_im": _normal(keys[5], (m, n), dtype),
            "D": jax.random.normal(keys[6], (n,), dtype),
        }

    def step(self, params: Params, hidden: State, x: jax.Array):
        decay = jnp.exp(jax.lax.complex(-jnp.exp(params["nu_log"]), jnp.exp(params["theta_log"])))
        scale = jnp.exp(params["gamma_log"])
        h = decay * hidden["h"] + jax.lax.complex(scale * (x @ params["B_re"]), scale * (x @ params["B_im"]))
        return {"h": h}, _read(h, params, x)


@dataclass(frozen=True)
class S5Cell(_StateSpace):
    r"""The S5 layer (Smith et al., 2023, arXiv:2208.04933): a continuous system with a step size for each state, seen
    at whole steps (zero-order hold). `d_rtrl` is exact.

    .. math::
        \Lambda &= -e^{a} + i \omega, \quad \bar\Lambda = e^{\Lambda \Delta}, \quad \Delta = e^{\delta} \\
        h_t &= \bar\Lambda \odot h_{t-1} + \frac{\bar\Lambda - 1}{\Lambda} \odot (B x_t) \\
        y_t &= 2\, \mathrm{Re}(C h_t) + D \odot x_t

    :math:`\Lambda` starts as the eigenvalues of the normal part of the HiPPO-LegS matrix, one of each conjugate pair,
    B and C in the basis of its eigenvectors; :math:`\Delta` is spread over `steps` on a logarithmic scale.

    >>> import jax, jax.numpy as jnp
    >>> cell = S5Cell(3, 4)
    >>> hidden, y = cell.step(cell.init(jax.random.key(0)), cell.hidden(batch_size=5), jnp.ones((5, 3)))
    >>> y.shape, hidden["h"].shape
    ((5, 3), (5, 4))
    """

    steps: tuple[float, float] = (0.001, 0.1)

    def init(self, key: jax.Array, dtype: DTypeLike = float) -> dict[str, jax.Array]:
        n, m, keys = self.d_model, self.d_hidden, jax.random.split(key, 4)
        # The normal part of HiPPO-LegS is -1/2 plus a skew matrix; i times that is Hermitian.
        root = np.sqrt(np.arange(2 * m) + 0.5)
        skew = np.triu(np.outer(root, root), 1)
        omega, basis = np.linalg.eigh(1j * (skew - skew.T))
        omega, basis = omega[m:], basis[:, m:]
        b = basis.conj().T @ np.asarray(_normal(keys[0], (n, 2 * m), dtype)).T
        c = np.asarray(_normal(keys[1], (2 * m, n), dtype)).T @ basis
        low, high = np.log(self.steps)
        parts = {"B_re": np.real(b).T, "B_im": np.imag(b).T, "C_re": np.real(c).T, "C_im": np.imag(c).T, "omega": omega}
        return {name: jnp.asarray(value, dtype) for name, value in parts.items()} | {
            "a_log": jnp.full(m, math.log(0.5), dtype),
            "delta": jax.random.uniform(keys[2], (m,), dtype, low, high),
            "D": jax.random.normal(keys[3], (n,), dtype),
        }

    def step(self, params: Params, hidden: State, x: jax.Array):
        re, im, delta = -jnp.exp(params["a_log"]), params["omega"], jnp.exp(params["delta"])
        decay = jnp.exp(jax.lax.complex(re * delta, im * delta))
        gain = (decay - 1) / jax.lax.complex(re, im)
        h = decay * hidden["h"] + gain * jax.lax.complex(x @ params["B_re"], x @ params["B_im"])
        return {"h": h}, _read(2 * h, params, x)


@dataclass(frozen=True)
class SelectiveCell(PureCell):
    r"""A selective state space (S6, the heart of Mamba: Gu & Dao, 2023, arXiv:2312.00752): the input says how much of
    it is written, what is kept and what is read. Each feature has `d_state` states. `d_rtrl` is exact.

    .. math::
        \Delta_t &= \mathrm{softplus}(W_\Delta x_t + b_\Delta), \quad B_t = W_B x_t, \quad C_t = W_C x_t \\
        h_t[i, n] &= e^{-\Delta_t[i] e^{A[i, n]}} h_{t-1}[i, n] + \Delta_t[i] B_t[n] x_t[i] \\
        y_t[i] &= \textstyle\sum_n C_t[n] h_t[i, n] + D[i] x_t[i]

    At the start :math:`e^{A[i, n]} = n + 1`, and :math:`\Delta` is spread over `steps` on a logarithmic scale.

    >>> import jax, jax.numpy as jnp
    >>> cell = SelectiveCell(3, 4)
    >>> hidden, y = cell.step(cell.init(jax.random.key(0)), cell.hidden(batch_size=5), jnp.ones((5, 3)))
    >>> y.shape, hidden["h"].shape
    ((5, 3), (5, 3, 4))
    """

    d_model: int
    d_state: int = 16
    steps: tuple[float, float] = (0.001, 0.1)

    @property
    def state_size(self) -> tuple[int, ...]:
        return (self.d_model, self.d_state)

    def init(self, key: jax.Array, dtype: DTypeLike = float) -> dict[str, jax.Array]:
        n, m, keys = self.d_model, self.d_state, jax.random.split(key, 4)
        delta = jnp.exp(jax.random.uniform(keys[3], (n,), dtype, *np.log(self.steps).tolist()))
        return {
            "W_delta": _normal(keys[0], (n, n), dtype),
            "b_delta": jnp.log(jnp.expm1(delta)),  # what softplus makes delta of
            "W_B": _normal(keys[1], (n, m), dtype),
            "W_C": _normal(keys[2], (n, m), dtype),
            "A_log": jnp.broadcast_to(jnp.log(jnp.arange(1, m + 1, dtype=dtype)), (n, m)),
            "D": jnp.ones(n, dtype),
        }

    def step(self, params: Params, hidden: State, x: jax.Array):
        delta = jax.nn.softplus(affine(x, params["W_delta"], params["b_delta"]))[..., None]
        written = delta * (x @ params["W_B"])[..., None, :] * x[..., None]
        h = jnp.exp(-delta * jnp.exp(params["A_log"])) * hidden["h"] + written
        return {"h": h}, (h * (x @ params["W_C"])[..., None, :]).sum(-1) + params["D"] * x


@dataclass(frozen=True, kw_only=True)
class MinGRUCell(Layer):
    r"""The minimal gated recurrent unit (Feng et al., 2024, arXiv:2410.01201): gates see the input alone. `d_rtrl` is
    exact.

    .. math::
        z_t &= \sigma(W_z x_t + b_z) \\
        h_t &= (1 - z_t) \odot h_{t-1} + z_t \odot (W x_t + b)

    >>> import jax, jax.numpy as jnp
    >>> cell = MinGRUCell(3, 4)
    >>> cell.step(cell.init(jax.random.key(0)), cell.hidden(batch_size=5), jnp.ones((5, 3)))[1].shape
    (5, 4)
    """

    w_init: Initializer = field(default=LECUN, compare=False, repr=False)

    def init(self, key: jax.Array, dtype: DTypeLike = float) -> dict[str, jax.Array]:
        gate, value = (super(MinGRUCell, self).init(k, dtype) for k in jax.random.split(key))
        return value | {f"{name}_z": v for name, v in gate.items()}

    def step(self, params: Params, hidden: State, x: jax.Array):
        z = jax.nn.sigmoid(affine(x, params["W_z"], params.get("b_z")))
        h = (1 - z) * hidden["h"] + z * affine(x, params["W"], params.get("b"))
        return {"h": h}, h


@dataclass(frozen=True)
class RTUCell(PureCell):
    r"""The recurrent trace unit (Elelimy et al., 2024, arXiv:2409.01449): each unit turns and shrinks a pair of real
    numbers. `d_rtrl` is exact.

    .. math::
        r &= e^{-e^{\nu}}, \quad \varphi = e^{\theta}, \quad \gamma = \sqrt{1 - r^2} \\
        c^1_t &= \phi(r \cos\varphi\, c^1_{t-1} - r \sin\varphi\, c^2_{t-1} + \gamma W_1 x_t) \\
        c^2_t &= \phi(r \sin\varphi\, c^1_{t-1} + r \cos\varphi\, c^2_{t-1} + \gamma W_2 x_t)

    The output is :math:`[c^1, c^2]`, of twice `out_size` features. `activation` is :math:`\phi`; with `linear=True` it
    is applied to the output alone.

    >>> import jax, jax.numpy as jnp
    >>> cell = RTUCell(3, 4)
    >>> cell.step(cell.init(jax.random.key(0)), cell.hidden(batch_size=5), jnp.ones((5, 3)))[1].shape
    (5, 8)
    """

    state_names: ClassVar[tuple[str, ...]] = ("c1", "c2")
    in_size: int
    out_size: int
    activation: Callable[[jax.Array], jax.Array] = jax.nn.tanh
    linear: bool = False

    def init(self, key: jax.Array, dtype: DTypeLike = float) -> dict[str, jax.Array]:
        n, m, keys = self.in_size, self.out_size, jax.random.split(key, 4)
        radius = jnp.sqrt(jax.random.uniform(keys[0], (m,), dtype, 1e-6, 1 - 1e-6))
        return {
            "nu_log": jnp.log(-jnp.log(radius)),
            "theta_log": jnp.log(jax.random.uniform(keys[1], (m,), dtype, 1e-6, 6.28)),
            "W1": _normal(keys[2], (n, m), dtype),
            "W2": _normal(keys[3], (n, m), dtype),
        }

    def step(self, params: Params, hidden: State, x: jax.Array):
        radius, angle = jnp.exp(-jnp.exp(params["nu_log"])), jnp.exp(params["theta_log"])
        cos, sin, scale = radius * jnp.cos(angle), radius * jnp.sin(angle), jnp.sqrt(1 - radius * radius)
        c1 = cos * hidden["c1"] - sin * hidden["c2"] + scale * (x @ params["W1"])
        c2 = sin * hidden["c1"] + cos * hidden["c2"] + scale * (x @ params["W2"])
        if self.linear:
            return {"c1": c1, "c2": c2}, self.activation(jnp.concatenate((c1, c2), -1))
        c1, c2 = self.activation(c1), self.activation(c2)
        return {"c1": c1, "c2": c2}, jnp.concatenate((c1, c2), -1)
