"""The affine map."""

import brainstate
import jax

from ._base import KAIMING, ZEROS, Initializer, Size, parameter, set_sizes


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
