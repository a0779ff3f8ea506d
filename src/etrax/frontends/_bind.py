"""From a model of any kind to a `Bound` record and back, by the front end of its library."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

from .._errors import ArgumentError, ArgumentTypeError, CompilationError, did_you_mean
from ..compiler.ir import Bound, Layer, Path, PyTree, Step, explained
from . import registered
from ._front_end import FrontEnd, Values, refuse
from ._function import bind_function

# Names of options that may have been meant, here and in `compile` itself.
OPTIONS = (
    "params=", "hidden=", "batch_size=", "call=", "trace_dtype=", "check_finite=", "memory_budget=", "mesh=", "shard=",
)  # fmt: skip
# Libraries whose modules look like functions, and what leads from them to a step.
_MODULES = {
    "haiku": "`hk.transform`",
    "torch": "a rewrite over JAX arrays",
    "keras": "its `stateless_call`",
}


def front_end_of(model: object) -> FrontEnd:
    """The front end of a model's library; that of functions if there is none."""
    return next((f for f in registered.FRONT_ENDS if f.matches(model)), _FUNCTION)


def is_module(model: object) -> bool:
    """Whether a model is a module of a library that has a front end here."""
    return front_end_of(model) is not _FUNCTION


def bind(model: object, inputs: tuple[object, ...], **options: Any) -> Bound:
    """Bind a model to example inputs, and note the layers that it is made of."""
    names = {f.name for f in fields(Values)} - {"keywords"}
    for name in (name for name in options if name not in names):
        raise ArgumentTypeError(
            f"`compile` has no option `{name}=` for a model of this kind ({type(model).__name__})."
            f"{did_you_mean(f'{name}=', OPTIONS)}"
        )
    values, front_end = Values(**options), front_end_of(model)
    check_batch_size(values.batch_size)
    if values.call is not None and not callable(values.call):
        kind = type(values.call).__name__
        raise ArgumentTypeError(f"`call` is a {kind}; pass a function of the module, state and inputs.")
    if values.batch_size is not None and not front_end.makes_states:
        makers = _listed(f.library for f in registered.FRONT_ENDS if f.makes_states)
        raise CompilationError(
            f"`batch_size=` is for {makers} modules, which create their states; every other model takes states with "
            "a batch axis."
        )
    bound = front_end.bind(model, inputs, values) or _bind_plain(model, inputs, values)
    return replace(bound, step=replace(bound.step, layers=_layers(front_end, model)))


def _layers(front_end: FrontEnd, model: object) -> tuple[Layer, ...]:
    """The modules inside of a model, itself first, each with the classes whose methods it runs."""
    nodes = sorted(((tuple(path), type(node)) for path, node in front_end.layers(model)), key=lambda n: len(n[0]))
    return tuple(layer for path, kind in nodes for layer in _classes(path, kind))


def _classes(path: Path, kind: type) -> Iterator[Layer]:
    for one in kind.__mro__[:-1]:
        yield Layer(path, getattr(sys.modules.get(one.__module__), "__file__", None), one.__qualname__)


def check_operations(step: Step, replaced: Container[str]) -> None:
    """Operations of modelling libraries can be run here; `replaced` names those that are computed in another way."""
    for front_end in registered.FRONT_ENDS:
        front_end.check(step, replaced)


def _check_function(model: object, params: PyTree) -> None:
    if not callable(model):
        raise CompilationError(
            f"`model` is a {type(model).__name__}; pass a function `step(params, hidden, *inputs) -> (hidden, output)` "
            f"or a module of {named_libraries()}."
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


def _bind_plain(model: Any, inputs: tuple[object, ...], values: Values) -> Bound:
    """Bind what no library's front end takes, if it is a function of parameters, states and inputs."""
    callers = dict.fromkeys(f.library for f in registered.FRONT_ENDS if f.takes_call)
    refuse(values.call, "call", f"a plain function; it is for modules of {' and '.join(callers)}")
    _check_function(model, values.params)
    if values.hidden is not None:
        return bind_function(model, inputs, values.params, values.hidden)
    try:
        return bind_function(model, inputs, values.params, {})
    except CompilationError as error:
        text = (
            f"{error}\n`hidden=` was not given: a step that has a state needs its initial value, as arrays or "
            "`jax.ShapeDtypeStruct`s."
        )
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise explained(CompilationError, cause, text) from error


# Whatever no library's front end matches.
_FUNCTION = FrontEnd("function", "", "a plain function", callable, _bind_plain)


def named_libraries() -> str:
    """The libraries that have a front end, as a message says them."""
    return _listed(dict.fromkeys(f.library for f in registered.FRONT_ENDS))


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def check_batch_size(batch_size: object) -> None:
    number = batch_size if isinstance(batch_size, int) and not isinstance(batch_size, bool) else None
    if batch_size is not None and not (number is not None and 0 < number < 2**31):
        passed = f"a {type(batch_size).__name__}" if number is None else number
        raise ArgumentError(f"`batch_size` is {passed}; expected a whole number from 1 to 2**31, or None.")


def write_back(module: Any, params: PyTree = None, state: Any = None) -> Any:
    """Put trained parameters, and the states that they ended in, into the module that was compiled.

    `params` are as every function of the learner returns them, `state` is a `LearnerState` or its `hidden`. Modules of
    brainstate and NNX are changed in place and returned; Equinox's cannot change: the new one is returned, and states,
    which it does not hold, are not taken. Everything is checked before anything is written.

    >>> import etrax, jax, jax.numpy as jnp
    >>> from flax import nnx
    >>> cell = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))
    >>> learner = etrax.compile(cell, "d_rtrl", jnp.ones(3), hidden=jnp.zeros(4))
    >>> _ = etrax.write_back(cell, jax.tree.map(jnp.zeros_like, learner.params))
    >>> float(abs(cell.dense_i.kernel[...]).sum())
    0.0
    """
    write = front_end_of(module).write_back
    if write is None:
        writable = _listed(f.name for f in registered.FRONT_ENDS if f.write_back is not None)
        raise ArgumentTypeError(
            f"`module` is a {type(module).__name__}; pass a module of {writable}. A plain function has no values to "
            "write to: its parameters are the tree that you hold."
        )
    return write(module, params, getattr(state, "hidden", state))
