"""Modules of other libraries, made from one definition of a cell: each holds its parameters and calls its pure step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from .._errors import need
from ._pure import Layer, PureCell
from .pure import CELLS

CELL = "this cell of `etrax.nn`"


def _named(face: type, definition: type[PureCell], module: str) -> type:
    """The class under the definition's name, found again (by pickle, say) where users find it."""
    face.__name__ = face.__qualname__ = definition.__name__
    face.__doc__ = definition.__doc__
    face.definition = definition  # pyright: ignore[reportAttributeAccessIssue]
    face.__module__ = module if CELLS.get(definition.__name__) is definition else definition.__module__
    return face


@cache
def as_brainstate(definition: type[PureCell]) -> type:
    """A class of `brainstate.nn.Module`: a `ParamState` for each parameter, a `HiddenState` for each state.

    Initialisers are those of brainstate, random numbers come from `brainstate.random`.

    >>> import brainstate, jax.numpy as jnp
    >>> from etrax.nn import pure
    >>> layer = as_brainstate(pure.LIF)(3, 4)
    >>> _ = brainstate.nn.init_all_states(layer, batch_size=2)
    >>> layer(jnp.ones((2, 3))).shape, layer.v.value.shape
    ((2, 4), (2, 4))
    """
    brainstate = need("brainstate", CELL, "brainstate")

    def as_jax(init: object) -> object:
        """An initialiser of brainstate, which takes a shape, as one of JAX."""
        return (lambda key, shape, dtype: jnp.asarray(init(shape), dtype)) if callable(init) else init

    class Module(brainstate.nn.Module):
        def __init__(self, *sizes: object, name: str | None = None, **options: object):
            super().__init__(name=name)
            self.cell = definition(*sizes, **{k: as_jax(v) if k.endswith("_init") else v for k, v in options.items()})
            if isinstance(self.cell, Layer):
                self.in_size, self.out_size = self.cell.in_size, self.cell.out_size
            params = self.cell.init(brainstate.random.split_key(), brainstate.environ.dftype())
            self.names = tuple(params)  # hidden states become attributes beside them
            for key, value in params.items():
                setattr(self, key, brainstate.ParamState(value))

        def initial_states(self, batch_size: int | None) -> dict[str, jax.Array]:
            dtype = jnp.result_type(*(getattr(self, name).value for name in self.names))
            return self.cell.hidden(batch_size, dtype)

        def init_state(self, batch_size: int | None = None, **_: object) -> None:
            for name, value in self.initial_states(batch_size).items():
                setattr(self, name, brainstate.HiddenState(value))

        def reset_state(self, batch_size: int | None = None, **_: object) -> None:
            for name, value in self.initial_states(batch_size).items():
                getattr(self, name).value = value

        def update(self, *inputs: jax.Array) -> jax.Array:
            params = {name: getattr(self, name).value for name in self.names}
            hidden = {name: getattr(self, name).value for name in self.cell.state_names}
            hidden, output = self.cell.step(params, hidden, *inputs)
            for name, value in hidden.items():
                getattr(self, name).value = value
            return output

    return _named(Module, definition, "etrax.nn")


@cache
def as_nnx(definition: type[PureCell]) -> type:
    """A class of `flax.nnx.Module`, called as Flax's cells are: `cell(hidden, *inputs) -> (hidden, output)`.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from etrax.nn import pure
    >>> cell = as_nnx(pure.LIF)(3, 4, rngs=nnx.Rngs(0))
    >>> hidden, z = cell(cell.hidden(batch_size=2), jnp.ones((2, 3)))
    >>> z.shape, cell.W.shape
    ((2, 4), (3, 4))
    """
    nnx = need("flax.nnx", CELL, "flax")

    class Module(nnx.Module):
        num_feature_axes = 1

        def __init__(self, *sizes: object, rngs, param_dtype: DTypeLike = float, **options: object):
            self.cell = definition(*sizes, **options)
            self.dtype = jnp.zeros((), param_dtype).dtype
            params = self.cell.init(rngs.params(), self.dtype)
            self.names = tuple(params)
            for name, value in params.items():
                setattr(self, name, nnx.Param(value))

        def hidden(self, batch_size: int | Sequence[int] | None = None) -> dict[str, jax.Array]:
            """Hidden states as they are before the first step."""
            return self.cell.hidden(batch_size, self.dtype)

        def initialize_carry(self, input_shape: Sequence[int], rngs=None) -> dict[str, jax.Array]:
            return self.hidden(tuple(input_shape[:-1]))

        def __call__(self, hidden: dict[str, jax.Array], *inputs: jax.Array):
            params = {name: getattr(self, name)[...] for name in self.names}
            return self.cell.step(params, hidden, *inputs)

    return _named(Module, definition, "etrax.nn.nnx")


@cache
def as_equinox(definition: type[PureCell]) -> type:
    """A class of `equinox.Module`, called as its stateful layers are: `cell(*inputs, hidden) -> (output, hidden)`.

    `etrax.compile(cell, rule, x, hidden=cell.hidden(), call=etrax.nn.equinox.call)` learns it.

    >>> import jax, jax.numpy as jnp
    >>> from etrax.nn import pure
    >>> cell = as_equinox(pure.LIF)(3, 4, key=jax.random.key(0))
    >>> z, hidden = cell(jnp.ones(3), cell.hidden())
    >>> z.shape, cell.params["W"].shape
    ((4,), (3, 4))
    """
    eqx = need("equinox", CELL, "equinox")

    class Module(eqx.Module):
        params: dict[str, jax.Array]
        cell: PureCell = eqx.field(static=True)

        def __init__(self, *sizes: object, key: jax.Array, dtype: DTypeLike = float, **options: object):
            self.cell = definition(*sizes, **options)
            self.params = self.cell.init(key, dtype)

        def hidden(self, batch_size: int | Sequence[int] | None = None) -> dict[str, jax.Array]:
            """Hidden states as they are before the first step."""
            return self.cell.hidden(batch_size, jnp.result_type(*self.params.values()))

        def __call__(self, *inputs_and_hidden):
            *inputs, hidden = inputs_and_hidden
            hidden, output = self.cell.step(self.params, hidden, *inputs)
            return output, hidden

    return _named(Module, definition, "etrax.nn.equinox")


def cell_named(name: str, module: str, face: Callable[[type[PureCell]], type]) -> type:
    """The cell of that name as a module of a library, for `__getattr__` of the Python module that offers it."""
    if name in CELLS:
        return face(CELLS[name])
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
