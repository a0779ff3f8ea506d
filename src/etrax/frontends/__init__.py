"""Front ends: each only turns its kind of model into a `Step` and back. See README.md in this folder."""

from __future__ import annotations

from .._errors import ArgumentError, ArgumentTypeError, CompilationError
from ..ir import Bound, explained
from ._brainstate import bind_brainstate as bind_brainstate
from ._brainstate import is_brainstate_module as is_brainstate_module
from ._compiling import compiling as compiling
from ._function import bind_function as bind_function

# Libraries whose modules look like functions, and what leads from them to a step.
_MODULES = {
    "flax": "`nnx.split` (or the `init` and `apply` of linen)",
    "equinox": "`eqx.partition`",
    "haiku": "`hk.transform`",
    "torch": "JAX arrays in place of its tensors",
    "keras": "its `stateless_call`",
}


def bind(
    model: object, inputs: tuple[object, ...], *, params: object = None, hidden: object = None,
    batch_size: int | None = None, **options: object,
) -> Bound:  # fmt: skip
    """Bind a model of any kind that is known to example inputs."""
    for name in options:
        raise ArgumentTypeError(f"`compile` has no option `{name}=` for a model of this kind ({type(model).__name__}).")
    check_batch_size(batch_size)
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
    if batch_size is not None:
        raise CompilationError(
            "`batch_size=` is for modules that create their states; a plain function takes `hidden=` with a batch axis."
        )
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
