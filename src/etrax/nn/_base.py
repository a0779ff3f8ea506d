"""What every cell shares: sizes, initial values, activations, the affine map, and the life of its hidden states."""

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from .._errors import ArgumentError, need

# All cells that are brainstate modules import this file first, so the missing package is named here once.
need("brainstate", "`etrax.nn`", "brainstate")
import brainstate  # noqa: E402

Size = int | Sequence[int]
Initializer = Callable[[Sequence[int]], jax.Array] | ArrayLike
Activation = str | Callable[[jax.Array], jax.Array]


class Hidden(Protocol):
    """A `brainstate.HiddenState` that holds an array."""

    value: jax.Array


ZEROS = brainstate.nn.init.ZeroInit()
ORTHOGONAL = brainstate.nn.init.Orthogonal()
XAVIER = brainstate.nn.init.XavierNormal()
KAIMING = brainstate.nn.init.KaimingNormal()


def set_sizes(module: brainstate.nn.Module, in_size: Size, out_size: Size) -> tuple[int, ...]:
    """Set `in_size` and `out_size`; return the axes they share, then the features (the last axis) of each."""
    *axes_in, n_in = np.atleast_1d(in_size).tolist()
    *axes_out, n_out = np.atleast_1d(out_size).tolist()
    if axes_in != axes_out:
        raise ArgumentError(
            f"`{type(module).__name__}` maps the last axis only: `in_size` {in_size} and `out_size` "
            f"{out_size} must agree in all the others."
        )
    module.in_size, module.out_size = (*axes_in, n_in), (*axes_out, n_out)
    return *axes_in, n_in, n_out


def parameter(init: Initializer, shape: Sequence[int]) -> jax.Array:
    """The initial value of a parameter: `init(shape)`, or `init` itself broadcast to `shape`."""
    value = brainstate.nn.init.param(init, shape, allow_none=False)
    if isinstance(value, (int, float)):
        value = np.asarray(value, brainstate.environ.dftype())
    if isinstance(value, (np.ndarray, jax.Array)):
        value = jnp.broadcast_to(value, tuple(shape))
    return value


def activation_function(activation: Activation) -> Callable[[jax.Array], jax.Array]:
    """The function itself, or the one of that name in `jax.nn`."""
    if callable(activation):
        return activation
    function = getattr(jax.nn, activation, None)
    if not callable(function):
        raise ArgumentError(
            f"`activation` is {activation!r}, which `jax.nn` does not have. Pass one of its names or a function."
        )
    return cast(Callable[[jax.Array], jax.Array], function)


class Linear(brainstate.nn.Module):
    r"""An affine map of the last axis, :math:`y = x W + b`.

    One `ParamState` named `weight` holds `{"weight": W, "bias": b}`; `b_init=None` leaves the bias out.

    >>> import jax.numpy as jnp
    >>> layer = Linear(3, 4, b_init=None)
    >>> layer(jnp.ones((5, 3))).shape
    (5, 4)
    >>> sorted(layer.weight.value)
    ['weight']
    """

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = KAIMING,
        b_init: Initializer | None = ZEROS,
        *,
        name: str | None = None,
    ):
        super().__init__(name=name)  # pyright: ignore[reportCallIssue]
        *_, n_in, n_out = set_sizes(self, in_size, out_size)
        values = {"weight": parameter(w_init, (n_in, n_out))}
        if b_init is not None:
            values["bias"] = parameter(b_init, (n_out,))
        self.weight = brainstate.ParamState(values)

    def update(self, x: jax.Array) -> jax.Array:
        values = self.weight.value
        y = x @ values["weight"]
        return y + values["bias"] if "bias" in values else y


class Cell(brainstate.nn.RNNCell):
    """A recurrent cell whose hidden states take their dtype from its parameters.

    A subclass gives `update(x)` and, if its state is not one `h` of shape `out_size`, its own `initial_states`.

    >>> import brainstate, jax.numpy as jnp
    >>> class Accumulator(Cell):
    ...     def __init__(self, size):
    ...         super().__init__(size, size)
    ...         self.gain = brainstate.ParamState(jnp.ones(size))
    ...     def update(self, x):
    ...         self.h.value = self.h.value + self.gain.value * x
    ...         return self.h.value
    >>> cell = Accumulator(2)
    >>> cell.init_state(batch_size=5)
    >>> cell.h.value.shape
    (5, 2)
    """

    h: Hidden

    def __init__(self, in_size: Size, out_size: Size, *, state_init: Initializer = ZEROS, name: str | None = None):
        super().__init__(name=name)  # pyright: ignore[reportCallIssue]
        *axes, self.n_in, self.n_out = set_sizes(self, in_size, out_size)
        self.state_size = (*axes, self.n_out)
        self.state_init = state_init

    @property
    def dtype(self) -> DTypeLike:
        """The dtype of the parameters; without any, brainstate's default."""
        states = cast(dict, self.states(brainstate.ParamState))
        leaves = jax.tree.leaves([state.value for state in states.values()])
        return jnp.result_type(*leaves) if leaves else brainstate.environ.dftype()

    def initial_value(self, init: Initializer, batch_size: int | None) -> jax.Array:
        """`init` at the shape of `state_size`, with the batch axis first."""
        batch = () if batch_size is None else (batch_size,)
        value = brainstate.nn.init.param(init, self.state_size, batch_size, allow_none=False)
        return jnp.broadcast_to(jnp.asarray(value, self.dtype), (*batch, *self.state_size))

    def initial_states(self, batch_size: int | None) -> dict[str, jax.Array]:
        """The hidden states by name, as they are before the first step."""
        return {"h": self.initial_value(self.state_init, batch_size)}

    def init_state(self, batch_size: int | None = None, **kwargs):
        """Create the hidden states, with a leading axis of `batch_size` if it is given."""
        for name, value in self.initial_states(batch_size).items():
            setattr(self, name, brainstate.HiddenState(value))

    def reset_state(self, batch_size: int | None = None, **kwargs):
        """Put the hidden states back to their initial values."""
        for name, value in self.initial_states(batch_size).items():
            getattr(self, name).value = value


def join(*arrays: jax.Array) -> jax.Array:
    """`[x, h]`: concatenation along the features."""
    return jnp.concatenate(arrays, axis=-1)
