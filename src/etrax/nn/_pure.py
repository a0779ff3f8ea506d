"""A cell as pure functions: what the modules of every library are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import initializers
from jax.typing import ArrayLike, DTypeLike

from .._arguments import short
from .._errors import ArgumentError

Params = Mapping[str, jax.Array]
State = Mapping[str, jax.Array]
# As in `jax.nn.initializers`: a function of key, shape and dtype; or the values.
Initializer = Callable[[jax.Array, Sequence[int], DTypeLike], jax.Array] | ArrayLike

KAIMING = initializers.variance_scaling(2.0, "fan_in", "normal")
LECUN = initializers.lecun_normal()
ZEROS = initializers.zeros


@dataclass(frozen=True)
class PureCell:
    """One definition of a cell: its sizes and constants, `init`, `hidden`, and the pure `step`.

    A subclass is a frozen dataclass that names its states and gives `init` and `step`. Other libraries' modules are
    made from it by `etrax.nn.as_brainstate`, `as_nnx` and `as_equinox`.

    >>> import etrax, jax, jax.numpy as jnp
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Leaky(PureCell):
    ...     size: int
    ...     def init(self, key, dtype=float):
    ...         return {"leak": jnp.full(self.size, 0.9, dtype)}
    ...     def step(self, params, hidden, x):
    ...         h = params["leak"] * hidden["h"] + x
    ...         return {"h": h}, h
    >>> cell = Leaky(3)
    >>> params, hidden = cell.init(jax.random.key(0)), cell.hidden(batch_size=2)
    >>> learner = etrax.compile(cell.step, "d_rtrl", jnp.ones((2, 3)), params=params, hidden=hidden)
    >>> learner.report.verdicts["leak",].kind == "exact"
    True
    """

    state_names: ClassVar[tuple[str, ...]] = ("h",)

    @property
    def state_size(self) -> tuple[int, ...]:
        """The shape of every state, without batch: the last of the cell's sizes."""
        return (getattr(self, "out_size", None) or getattr(self, "size", 0),)

    def init(self, key: jax.Array, dtype: DTypeLike = float) -> dict[str, jax.Array]:
        """Parameters by name."""
        raise NotImplementedError(f"`{type(self).__name__}` gives no `init`.")

    def hidden(self, batch_size: int | Sequence[int] | None = None, dtype: DTypeLike = float) -> dict[str, jax.Array]:
        """Hidden states by name, as they are before the first step."""
        batch = () if batch_size is None else np.atleast_1d(batch_size).tolist()
        return {name: jnp.zeros((*batch, *self.state_size), dtype) for name in self.state_names}

    def step(self, *args: Any, **kwargs: Any) -> tuple[dict[str, jax.Array], jax.Array]:
        """`step(params, hidden, *inputs)`: new hidden states, and the output."""
        raise NotImplementedError(f"`{type(self).__name__}` gives no `step`.")


@dataclass(frozen=True)
class Layer(PureCell):
    """A cell from `in_size` inputs to `out_size` units, through a weight `W` and a bias `b`."""

    in_size: int
    out_size: int
    w_init: Initializer = field(default=KAIMING, kw_only=True, compare=False, repr=False)
    b_init: Initializer | None = field(default=ZEROS, kw_only=True, compare=False, repr=False)

    def init(self, key: jax.Array, dtype: DTypeLike = float) -> dict[str, jax.Array]:
        params = {"W": drawn(self.w_init, key, (self.in_size, self.out_size), dtype)}
        if self.b_init is not None:
            params["b"] = drawn(self.b_init, key, (self.out_size,), dtype)
        return params


def drawn(init: Initializer, key: jax.Array, shape: Sequence[int], dtype: DTypeLike) -> jax.Array:
    """The first value of a parameter: `init(key, shape, dtype)`, or `init` itself broadcast to `shape`."""
    if callable(init):
        return init(key, tuple(shape), dtype)
    return jnp.broadcast_to(jnp.asarray(init, dtype), tuple(shape))


def affine(x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    y = x @ weight
    return y if bias is None else y + bias


LearnLeak = bool | Literal["unit"]


class Leaky(Protocol):
    """A cell that forgets with time constant `tau` (steps), or as its parameter `leak` has it."""

    @property
    def tau(self) -> float: ...
    @property
    def learn_leak(self) -> LearnLeak: ...
    @property
    def out_size(self) -> int: ...


def leak_init(cell: Leaky, dtype: DTypeLike) -> dict[str, jax.Array]:
    """The parameter `leak` of a cell that learns it, one number or one for each unit: the logit of exp(-1/tau)."""
    if cell.learn_leak not in (False, True, "unit"):
        raise ArgumentError(
            f"`learn_leak` is {short(cell.learn_leak)}; expected True (one leak for the layer), 'unit' (each its own), "
            "or False."
        )
    logit = -math.log(math.expm1(1 / cell.tau))
    shape = (cell.out_size,) if cell.learn_leak == "unit" else ()
    return {"leak": jnp.full(shape, logit, dtype)} if cell.learn_leak else {}


def leak_of(cell: Leaky, params: Params) -> jax.Array | float:
    """What a step keeps of the state before."""
    return jax.nn.sigmoid(params["leak"]) if cell.learn_leak else math.exp(-1 / cell.tau)
