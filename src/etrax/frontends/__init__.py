"""Front ends: each only turns its kind of model into a `Step` and back. See README.md in this folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from .._errors import ArgumentError, ArgumentTypeError, CompilationError, meant
from ..compiler.ir import Bound, PyTree, explained
from . import _libraries as _libraries
from ._brainstate import bind_brainstate as bind_brainstate
from ._brainstate import is_brainstate_module as is_brainstate_module
from ._brainstate_errors import check_kernels as check_kernels
from ._compiling import compiling as compiling
from ._equinox import bind_equinox as bind_equinox
from ._equinox import is_equinox_module as is_equinox_module
from ._flax import bind_linen as bind_linen
from ._flax import bind_nnx as bind_nnx
from ._flax import is_linen_module as is_linen_module
from ._flax import is_nnx_module as is_nnx_module
from ._function import bind_function as bind_function
from ._layers import layers_of as layers_of
from ._renew import renew_states as renew_states
from ._write_back import write_back as write_back

# Libraries whose modules look like functions, and what leads from them to a step.
_MODULES = {
    "haiku": "`hk.transform`",
    "torch": "a rewrite over JAX arrays",
    "keras": "its `stateless_call`",
}
# Names that may have been meant, here and in `compile` itself.
OPTIONS = (
    "params=", "hidden=", "batch_size=", "call=", "trace_dtype=", "check_finite=", "memory_budget=", "mesh=", "shard=",
)  # fmt: skip


def bind(model: object, inputs: tuple[object, ...], **options: Any) -> Bound:
    """Bind a model of any kind that is known to example inputs, and note the layers that it is made of."""
    bound = _bind(model, inputs, **options)
    return replace(bound, step=replace(bound.step, layers=layers_of(model)))


def _bind(
    model: object, inputs: tuple[object, ...], *, params: PyTree = None, hidden: PyTree = None,
    batch_size: int | None = None, call: Callable[..., Any] | None = None, **options: object,
) -> Bound:  # fmt: skip
    """`call` says how a module of Flax or Equinox is called, `call(module, hidden, *inputs) -> (hidden, output)`."""
    for name in options:
        raise ArgumentTypeError(
            f"`compile` has no option `{name}=` for a model of this kind ({type(model).__name__})."
            f"{meant(f'{name}=', OPTIONS)}"
        )
    check_batch_size(batch_size)
    if call is not None and not callable(call):
        raise ArgumentTypeError(f"`call` is a {type(call).__name__}; pass a function of the module, state and inputs.")
    if is_brainstate_module(model):
        _refuse(call, "call", "a `brainstate.nn.Module`, which is called as it is")
        if params is not None or hidden is not None:
            raise CompilationError(
                "a `brainstate.nn.Module` holds its own parameters and states: do not pass `params=` or `hidden=`."
            )
        return bind_brainstate(model, inputs, batch_size=batch_size)
    if batch_size is not None:
        raise CompilationError(
            "`batch_size=` is for brainstate modules, which create their states; every other model takes states with "
            "a batch axis."
        )
    if is_nnx_module(model):
        if params is not None:
            raise CompilationError("an `nnx.Module` holds its own parameters: do not pass `params=`.")
        return bind_nnx(model, inputs, hidden, call)
    if is_linen_module(model):
        return bind_linen(model, inputs, params, hidden, call)
    if is_equinox_module(model) and (params is None or isinstance(params, type(model))):
        return bind_equinox(model, inputs, params, hidden, call)
    _refuse(call, "call", "a plain function; it is for modules of Flax and Equinox")
    _check_function(model, params)
    return _bind_function(cast(Callable[..., Any], model), inputs, params, hidden)


def is_module(model: object) -> bool:
    """Whether a model is a module of a library that has a front end here."""
    return any(is_kind(model) for is_kind in (is_brainstate_module, is_nnx_module, is_linen_module, is_equinox_module))


def _refuse(value: object, name: str, why: str) -> None:
    if value is not None:
        raise CompilationError(f"`{name}=` was given for {why}.")


def _check_function(model: object, params: PyTree) -> None:
    if not callable(model):
        raise CompilationError(
            f"`model` is a {type(model).__name__}; pass a function `step(params, hidden, *inputs) -> (hidden, output)` "
            "or a module of brainstate, Flax or Equinox."
        )
    if isinstance(model, type):
        raise CompilationError(f"`model` is the class `{model.__name__}` itself: pass an instance, or a function.")
    kind: type = type(model)
    library = next((m for c in kind.__mro__ if (m := c.__module__.split(".")[0]) in _MODULES), None)
    if library is not None and params is None:
        raise CompilationError(
            f"`model` is a {library} module (`{type(model).__name__}`), for which there is no front end here. Pass it "
            "as a function `step(params, hidden, *inputs) -> (hidden, output)` with its parameters as `params=`: "
            f"{_MODULES[library]} makes one."
        )
    if params is None:
        raise CompilationError(
            "a plain function needs `params=`: its parameters, as arrays or `jax.ShapeDtypeStruct`s (`params={}` if it "
            "has none)."
        )


def _bind_function(model: Callable[..., Any], inputs: tuple[object, ...], params: PyTree, hidden: PyTree) -> Bound:
    if hidden is not None:
        return bind_function(model, inputs, params, hidden)
    try:
        return bind_function(model, inputs, params, {})
    except CompilationError as error:
        text = (
            f"{error}\n`hidden=` was not given: a step that has a state needs its initial value, as arrays or "
            "`jax.ShapeDtypeStruct`s."
        )
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise explained(CompilationError, cause, text) from error


def check_batch_size(batch_size: object) -> None:
    whole = batch_size if isinstance(batch_size, int) and not isinstance(batch_size, bool) else None
    if batch_size is not None and not (whole is not None and 0 < whole < 2**31):
        found = f"a {type(batch_size).__name__}" if whole is None else whole
        raise ArgumentError(f"`batch_size` is {found}; expected a whole number from 1 to 2**31, or None.")
