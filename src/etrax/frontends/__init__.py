"""Front ends: each only turns its kind of model into a `Step` and back. See README.md in this folder."""

from __future__ import annotations

from typing import Any

from .._errors import CompilationError
from ._bound import Bound as Bound
from ._bound import BoundState as BoundState
from ._brainstate import bind_brainstate as bind_brainstate
from ._brainstate import is_brainstate_module as is_brainstate_module
from ._function import bind_function as bind_function


def bind(
    model: Any, inputs: tuple[Any, ...], *, params: Any = None, hidden: Any = None, batch_size: int | None = None
) -> Bound:
    """Bind a model of any kind that is known to example inputs."""
    if is_brainstate_module(model):
        if params is not None or hidden is not None:
            raise CompilationError(
                "a `brainstate.nn.Module` holds its own parameters and states: do not pass `params=` or `hidden=`."
            )
        return bind_brainstate(model, inputs, batch_size=batch_size)
    if not callable(model):
        raise CompilationError(
            f"`model` is a {type(model).__name__}; pass a function `step(params, hidden, *inputs) -> (hidden, output)` "
            "or a `brainstate.nn.Module`."
        )
    if params is None:
        raise CompilationError(
            "a plain function needs `params=`: its parameters, as arrays or `jax.ShapeDtypeStruct`s."
        )
    if batch_size is not None:
        raise CompilationError(
            "`batch_size=` is for modules that create their states; a plain function takes `hidden=` with a batch axis."
        )
    return bind_function(model, inputs, params, {} if hidden is None else hidden)
