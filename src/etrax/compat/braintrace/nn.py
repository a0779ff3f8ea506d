"""Layers and cells with the names, arguments and state paths of `braintrace.nn`: those of brainstate and `etrax.nn`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
from brainstate.nn import Conv1d as Conv1d
from brainstate.nn import Conv2d as Conv2d
from brainstate.nn import Conv3d as Conv3d
from brainstate.nn import Linear as Linear
from brainstate.nn import ScaledWSLinear as ScaledWSLinear
from brainstate.nn import SignedWLinear as SignedWLinear
from brainstate.nn import SparseLinear as SparseLinear
from brainstate.typing import ArrayLike

from ... import nn
from ..._errors import ArgumentTypeError
from ._ops import grouped_matmul

try:  # the peer's initialisers, so that a seed gives the weights that it gave there
    from braintools import init
except ModuleNotFoundError:
    from brainstate.nn import init

ZEROS, ORTHOGONAL, XAVIER, KAIMING = init.ZeroInit(), init.Orthogonal(), init.XavierNormal(), init.KaimingNormal()
Initializer: TypeAlias = Callable[..., ArrayLike] | ArrayLike


def _param(initial, shape, batch_size: int | None = None):
    """The initial value: what an initialiser makes of the shape, or the value itself."""
    return init.param(initial, shape, batch_size, allow_none=False)


def _joined(*arrays: ArrayLike) -> jax.Array:
    return u.math.concatenate(arrays, axis=-1)


class _WithStates(brainstate.nn.Module):
    """The life of the hidden states `names`, each of the shape of the output."""

    names: tuple[str, ...] = ("h",)
    state_init: Initializer

    def init_state(self, batch_size: int | None = None, **_: object) -> None:
        for name in self.names:
            setattr(self, name, brainstate.HiddenState(_param(self.state_init, self.out_size, batch_size)))

    def reset_state(self, batch_size: int | None = None, **_: object) -> None:
        for name in self.names:
            getattr(self, name).value = _param(self.state_init, self.out_size, batch_size)


class LoRA(brainstate.nn.LoRA):
    """A product of low rank r, x A B / r, beside what a base module gives."""

    def update(self, x: ArrayLike) -> jax.Array:
        value = self.weight.value
        out = x @ value["lora_a"] @ value["lora_b"] / value["lora_b"].shape[0]
        if self.base_module is not None and not callable(self.base_module):
            raise ArgumentTypeError(
                f"`base_module` must be callable, a function or a module; got {self.base_module!r}."
            )
        return out if self.base_module is None else out + self.base_module(x)

    __call__ = update


class Embedding(brainstate.nn.Embedding):
    """Rows of a table. Where no option changes the gradient it is a plain look-up."""

    def update(self, indices: ArrayLike) -> jax.Array:
        # A plain look-up is a weight op that Etrax has a trace for.
        plain = self.max_norm is None and self.padding_idx is None and not (self.freeze or self.scale_grad_by_freq)
        return jnp.take(self.weight.value, cast(jax.Array, indices), axis=0) if plain else super().update(indices)


class GroupedLinear(brainstate.nn.Module):
    """An affine map for each of several groups of features; the last two axes are (groups, features)."""

    def __init__(
        self, num_groups: int, in_features: int, out_features: int, w_init=KAIMING, b_init=ZEROS,
        name: str | None = None, param_type: type = brainstate.ParamState,
    ):  # fmt: skip
        super().__init__(name=name)  # pyright: ignore[reportCallIssue]
        self.num_groups, self.in_features, self.out_features = num_groups, in_features, out_features
        self.in_size, self.out_size = (num_groups, in_features), (num_groups, out_features)
        values = {"weight": _param(w_init, (num_groups, in_features, out_features))}
        if b_init is not None:
            values["bias"] = _param(b_init, self.out_size)
        self.weight = param_type(values)

    def update(self, x: jax.Array) -> jax.Array:
        values = self.weight.value
        # `grouped_matmul` takes one batch axis.
        flat = x if x.ndim <= 3 else x.reshape(-1, self.num_groups, self.in_features)
        return grouped_matmul(flat, values["weight"], values.get("bias")).reshape(*x.shape[:-1], self.out_features)


class LeakyRateReadout(_WithStates):
    """A leaky readout, r ← exp(−dt/τ) r + x W; `dt` is that of `brainstate.environ`."""

    names = ("r",)
    r: brainstate.HiddenState

    def __init__(self, in_size, out_size, tau=5.0 * u.ms, w_init=KAIMING, r_init=ZEROS, name: str | None = None):
        super().__init__(name=name)  # pyright: ignore[reportCallIssue]
        ins, outs = (tuple(jnp.atleast_1d(jnp.array(s)).tolist()) for s in (in_size, out_size))
        self.in_size, self.out_size = ins, outs
        self.tau = _param(tau, self.out_size)
        self.decay = u.math.exp(-1.0 / u.maybe_decimal(self.tau / brainstate.environ.get_dt()))
        self.r_init = self.state_init = r_init
        self.W = brainstate.ParamState(_param(w_init, (ins[0], outs[0])))

    def update(self, x: jax.Array) -> jax.Array:
        self.r.value = r = self.decay * self.r.value + x @ self.W.value
        return r


class _Cell(_WithStates, brainstate.nn.RNNCell):
    """Sizes and linear maps; arguments of the cells are in the order that the peer has them."""

    h: brainstate.HiddenState

    def __init__(self, in_size, out_size, state_init, name: str | None = None):
        super().__init__(name=name)  # pyright: ignore[reportCallIssue]
        self.in_size, self.out_size, self.state_init = in_size, out_size, state_init
        self.n_in, self.n_out = (cast(tuple[int, ...], size)[-1] for size in (self.in_size, self.out_size))

    def linear(self, n_in: int, inits: tuple) -> Linear:
        return Linear(n_in, self.n_out, w_init=inits[0], b_init=inits[1])


def _activation(activation: str | Callable) -> Callable:
    function = getattr(brainstate.nn, activation) if isinstance(activation, str) else activation
    assert callable(function), "the activation must be a function, or the name of one in brainstate.nn"
    return function


class ValinaRNNCell(_Cell):
    """h ← φ(W [x, h] + b)"""

    def __init__(
        self, in_size, out_size, state_init=ZEROS, w_init=XAVIER, b_init=ZEROS, activation="relu",
        name: str | None = None,
    ):  # fmt: skip
        super().__init__(in_size, out_size, state_init, name)
        self.activation = _activation(activation)
        self.W = self.linear(self.n_in + self.n_out, (w_init, b_init))

    def update(self, x: jax.Array) -> jax.Array:
        self.h.value = h = self.activation(self.W(_joined(x, self.h.value)))
        return h


class _Gated(_Cell):
    """Cells whose linear maps, in the order in which they are made, are `maps`: of [x, h], or of x if in `of_input`."""

    maps: tuple[str, ...] = ()
    of_input: tuple[str, ...] = ()

    def __init__(
        self, in_size, out_size, w_init: Initializer = ORTHOGONAL, b_init: Initializer | None = ZEROS,
        state_init=ZEROS, activation="tanh", name: str | None = None,
    ):  # fmt: skip
        super().__init__(in_size, out_size, state_init, name)
        self.activation = _activation(activation)
        for one in self.maps:
            width = self.n_in if one in self.of_input else self.n_in + self.n_out
            setattr(self, one, self.linear(width, (w_init, b_init)))


_sigmoid = jax.nn.sigmoid


class GRUCell(_Gated):
    """z, r = σ(W [x, h]);  h ← (1 − z) h + z φ(Wh [x, r h])"""

    maps = ("Wz", "Wr", "Wh")
    _next, update = nn.GRUCell._next, nn.GRUCell.update


class MGUCell(_Gated):
    """f = σ(Wf [x, h]);  h ← (1 − f) h + f φ(Wh [x, f h])"""

    maps = ("Wf", "Wh")
    _next, update = nn.MGUCell._next, nn.MGUCell.update


class CFNCell(_Gated):
    """f, i = σ(W [x, h]);  h ← f φ(h) + i φ(Wh x)"""

    maps, of_input = ("Wf", "Wi", "Wh"), ("Wh",)
    _next, update = nn.CFNCell._next, nn.CFNCell.update


class LSTMCell(_Gated):
    """c ← σ(f + 1) c + σ(i) φ(g);  h ← σ(o) φ(c);  i, g, f, o = W [x, h]"""

    names, maps = ("c", "h"), ("Wi", "Wg", "Wf", "Wo")
    c: brainstate.HiddenState
    Wi: Linear
    Wg: Linear
    Wf: Linear
    Wo: Linear

    def __init__(
        self, in_size, out_size, w_init=XAVIER, b_init=ZEROS, state_init=ZEROS, activation="tanh",
        name: str | None = None,
    ):  # fmt: skip
        super().__init__(in_size, out_size, w_init, b_init, state_init, activation, name)

    def update(self, x: jax.Array) -> jax.Array:
        xh = _joined(x, self.h.value)
        i, g, f, o = self.Wi(xh), self.Wg(xh), self.Wf(xh), self.Wo(xh)
        self.c.value = c = _sigmoid(f + 1.0) * self.c.value + _sigmoid(i) * self.activation(g)
        self.h.value = h = _sigmoid(o) * self.activation(c)
        return h


class URLSTMCell(_Gated):
    """An LSTM whose forget gate is refined: g = 2 r f + (1 − 2 r) f²;  c ← g c + (1 − g) φ(u)"""

    names, maps = ("c", "h"), ("Wu", "Wf", "Wr", "Wo")
    c: brainstate.HiddenState
    Wu: Linear
    Wf: Linear
    Wr: Linear
    Wo: Linear

    def __init__(self, in_size, out_size, w_init=XAVIER, state_init=ZEROS, activation="tanh", name: str | None = None):
        super().__init__(in_size, out_size, w_init, None, state_init, activation, name)
        # A bias whose sigmoid is uniform between 1/n and 1 - 1/n.
        gate = brainstate.random.uniform(1 / self.n_out, 1 - 1 / self.n_out, (self.n_out,))
        self.bias = brainstate.ParamState(-jnp.log(1 / gate - 1))

    def update(self, x: jax.Array) -> jax.Array:
        xh, bias = _joined(x, self.h.value), self.bias.value
        f, r = _sigmoid(self.Wf(xh) + bias), _sigmoid(self.Wr(xh) - bias)
        g = 2 * r * f + (1 - 2 * r) * f**2
        self.c.value = c = g * self.c.value + (1 - g) * self.activation(self.Wu(xh))
        self.h.value = h = _sigmoid(self.Wo(xh)) * self.activation(c)
        return h


class MinimalRNNCell(_Cell):
    """z = φ(x);  f = σ(W_u [z, h]);  h ← f h + (1 − f) z;  φ is a linear map unless one is given."""

    def __init__(
        self, in_size, out_size, w_init=ORTHOGONAL, b_init=ZEROS, state_init=ZEROS, phi: Callable | None = None,
        name: str | None = None,
    ):  # fmt: skip
        super().__init__(in_size, out_size, state_init, name)
        self.phi = self.linear(self.n_in, (w_init, b_init)) if phi is None else phi
        assert callable(self.phi), f"`phi` must be a function; got {self.phi!r}"
        self.W_u = self.linear(2 * self.n_out, (w_init, b_init))

    def update(self, x: jax.Array) -> jax.Array:
        z = self.phi(x)
        f = _sigmoid(self.W_u(_joined(z, self.h.value)))
        self.h.value = h = f * self.h.value + (1 - f) * z
        return h


class _Mini(_Gated):
    of_input = ("W_x",)
    W_x: Linear

    def __init__(self, in_size, out_size, w_init=ORTHOGONAL, b_init=ZEROS, state_init=ZEROS, name: str | None = None):
        super().__init__(in_size, out_size, w_init, b_init, state_init, "tanh", name)


class MiniGRU(_Mini):
    """z = σ(W_z [x, h]);  h ← (1 − z) h + z W_x x"""

    maps = ("W_x", "W_z")
    W_z: Linear

    def update(self, x: jax.Array) -> jax.Array:
        z = _sigmoid(self.W_z(_joined(x, self.h.value)))
        self.h.value = h = (1 - z) * self.h.value + z * self.W_x(x)
        return h


class MiniLSTM(_Mini):
    """f, i = σ(W [x, h]);  h ← f h + i W_x x"""

    maps = ("W_x", "W_f", "W_i")
    W_f: Linear
    W_i: Linear

    def update(self, x: jax.Array) -> jax.Array:
        xh = _joined(x, self.h.value)
        self.h.value = h = _sigmoid(self.W_f(xh)) * self.h.value + _sigmoid(self.W_i(xh)) * self.W_x(x)
        return h


def _of_unit_variance(shape: Sequence[int]) -> jax.Array:
    """A matrix whose product with inputs of variance one has variance one."""
    return brainstate.random.randn(*shape) / math.sqrt(shape[0])


def _nonzero(uniform: jax.Array) -> jax.Array:
    """Numbers of [0, 1) without zero, whose logarithm would be infinite."""
    return jnp.maximum(uniform, jnp.finfo(uniform.dtype).tiny)


class LRUCell(_WithStates):
    """The linear recurrent unit, its complex state as two real ones (h_re, h_im), its matrices as linear maps."""

    names, state_init = ("h_re", "h_im"), ZEROS
    h_re: brainstate.HiddenState
    h_im: brainstate.HiddenState
    B_re: Linear
    B_im: Linear
    C_re: Linear
    C_im: Linear

    def __init__(self, d_model: int, d_hidden: int, r_min: float = 0.0, r_max: float = 1.0, max_phase: float = 6.28):
        super().__init__()
        self.in_size, self.out_size = d_model, d_hidden
        self.d_model, self.d_hidden = d_model, d_hidden
        self.r_min, self.r_max, self.max_phase = r_min, r_max, max_phase
        # The draws are in the peer's order: a seed gives the weights that it gave there.
        phase, area = (_nonzero(cast(jax.Array, brainstate.random.uniform(size=d_hidden))) for _ in range(2))
        squared_radius = area * (r_max**2 - r_min**2) + r_min**2
        self.theta_log = brainstate.ParamState(jnp.log(max_phase * phase))
        self.nu_log = brainstate.ParamState(jnp.log(-0.5 * jnp.log(squared_radius)))
        self.gamma_log = brainstate.ParamState(0.5 * jnp.log1p(-squared_radius))
        for name, shape in (("B", (d_model, d_hidden)), ("C", (d_hidden, d_model))):
            for part in ("re", "im"):
                setattr(self, f"{name}_{part}", Linear(*shape, w_init=_of_unit_variance, b_init=None))
        self.D = brainstate.ParamState(brainstate.random.randn(d_model))

    def update(self, inputs: jax.Array) -> jax.Array:
        radius, angle = jnp.exp(-jnp.exp(self.nu_log.value)), jnp.exp(self.theta_log.value)
        cos, sin, scale = radius * jnp.cos(angle), radius * jnp.sin(angle), jnp.exp(self.gamma_log.value)
        re, im = self.h_re.value, self.h_im.value
        self.h_re.value = cos * re - sin * im + scale * self.B_re(inputs)
        self.h_im.value = sin * re + cos * im + scale * self.B_im(inputs)
        return self.C_re(self.h_re.value) - self.C_im(self.h_im.value) + inputs * self.D.value


__all__ = [
    "CFNCell", "Conv1d", "Conv2d", "Conv3d", "Embedding", "GRUCell", "GroupedLinear", "LRUCell", "LSTMCell",
    "LeakyRateReadout", "Linear", "LoRA", "MGUCell", "MiniGRU", "MiniLSTM", "MinimalRNNCell", "ScaledWSLinear",
    "SignedWLinear", "SparseLinear", "URLSTMCell", "ValinaRNNCell",
]  # fmt: skip

# Names that the peer passes on, with the package that has them.
_PASSED_ON: dict[str, str] = dict.fromkeys(
    ("IF", "LIF", "ALIF", "Expon", "Alpha", "DualExpon", "STP", "STD"), "brainpy.state"
)
_PASSED_ON |= dict.fromkeys(
    (
        "ReLU", "RReLU", "Hardtanh", "ReLU6", "Sigmoid", "Hardsigmoid", "Tanh", "SiLU", "Mish", "Hardswish", "ELU",
        "CELU", "SELU", "GLU", "GELU", "Hardshrink", "LeakyReLU", "LogSigmoid", "Softplus", "Softshrink", "PReLU",
        "Softsign", "Tanhshrink", "Softmin", "Softmax", "Softmax2d", "LogSoftmax", "Dropout", "Dropout1d",
        "Dropout2d", "Dropout3d", "Identity", "SpikeBitwise", "Flatten", "Unflatten", "AvgPool1d", "AvgPool2d",
        "AvgPool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d",
        "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "BatchNorm0d",
        "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LayerNorm", "RMSNorm", "GroupNorm",
    ),
    "brainstate.nn",
)  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _PASSED_ON:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    home = _PASSED_ON[name]
    warnings.warn(f"`nn.{name}` is deprecated: use {home}.{name}.", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_PASSED_ON])
