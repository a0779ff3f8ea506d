"""Equinox modules: their inexact arrays are the parameters, in the module's own tree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from .._errors import ArgumentError, CompilationError
from ..compiler.ir import Bound, Path, PyTree, describe
from ._front_end import FrontEnd, Values, check_places, is_of
from ._function import CALL, Trees, bind_trees, pair_of

_CALLED = (
    "It is called as `{}`. Equinox's layers take one sample: give one, or `jax.vmap` the module in "
    "`call=lambda module, hidden, *inputs: (hidden, output)`."
)


def bind_equinox(
    module: Any, inputs: tuple[object, ...], params: PyTree = None, hidden: PyTree = None,
    call: Callable[..., Any] | None = None,
) -> Bound:  # fmt: skip
    """Bind an `equinox.Module`, or a list, tuple or dictionary of them with `call`, to example inputs.

    Parameters are `eqx.filter(module, eqx.is_inexact_array)`: static fields, integers and functions are none. A module
    with None for what is not to be trained may be given as `params`. The module is called as Equinox's cells are,
    `module(*inputs, hidden) -> hidden`; with an `eqx.nn.State` as hidden state, as its stateful layers are,
    `module(*inputs, state) -> (output, state)`; otherwise by `call(module, hidden, *inputs) -> (hidden, output)`.
    """
    import equinox as eqx

    if call is None and not callable(module):
        raise CompilationError(
            f"`model` is a {type(module).__name__} of Equinox modules, which cannot be called: say how, with "
            "`call=lambda modules, hidden, *inputs: (hidden, output)`."
        )
    if hidden is None and call is None:
        raise CompilationError(
            f"`model` is an `equinox.Module` ({type(module).__name__}) and `hidden=` was not given. Its state is not "
            "in it: pass the initial value, `hidden=jnp.zeros(...)`; the module is called as `module(*inputs, hidden) "
            "-> hidden`, or by `call=lambda module, hidden, *inputs: (hidden, output)`."
        )
    params = eqx.filter(module, eqx.is_inexact_array) if params is None else params
    stateful = isinstance(hidden, eqx.nn.State)

    def fn(params: PyTree, hidden: PyTree, other: PyTree, *inputs: object) -> tuple[Any, Any, Any]:
        model = eqx.combine(params, module)
        if call is not None:
            hidden, output = pair_of(call(model, hidden, *inputs), "`call`", CALL)
        elif stateful:
            output, hidden = pair_of(model(*inputs, hidden), f"`{type(module).__name__}`", "module(*inputs, state)")
        else:
            hidden = output = _new_hidden(type(module).__name__, hidden, model(*inputs, hidden))
        return hidden, other, output

    called = CALL if call is not None else "module(*inputs, state)" if stateful else "module(*inputs, hidden)"
    return bind_trees(fn, inputs, lambda: Trees(params, hidden), called=_CALLED.format(called))


def _new_hidden(name: str, old: PyTree, new: PyTree) -> PyTree:
    if jax.tree.structure(old) == jax.tree.structure(new):
        return new
    raise CompilationError(
        f"`{name}` was called as Equinox's cells are, `module(*inputs, hidden) -> hidden`, and returned "
        f"{describe(new, 'result')} for {describe(old, 'hidden')}. Say how it is called: "
        "`call=lambda module, hidden, *inputs: (hidden, output)`."
    )


def _inside(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Equinox modules are trees of plain fields."""
    if is_of(value, "equinox") and dataclasses.is_dataclass(value):
        yield path, value
        parts = [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    elif isinstance(value, dict):
        parts = list(value.items())
    else:
        parts = list(enumerate(value)) if isinstance(value, list | tuple) else []
    for key, part in parts:
        yield from _inside(part, (*path, key))


def _into_equinox(module: Any, params: PyTree, hidden: PyTree) -> Any:
    import equinox as eqx

    if hidden is not None:
        raise ArgumentError(
            "`state` was given for an Equinox module, which holds none: call `etrax.write_back(module, params)`, and "
            "keep the state as it is."
        )
    if params is None:
        return module
    check_places("params", params, eqx.filter(module, eqx.is_array))
    return eqx.combine(params, module)


def _is_made_of_modules(model: object) -> bool:
    """Whether a model is a module, or a container that holds some."""
    inside = isinstance(model, list | tuple | dict) and next(_inside(model, ()), None) is not None
    return is_of(model, "equinox") or inside


def _bind(model: Any, inputs: tuple[object, ...], values: Values) -> Bound | None:
    if values.params is not None and not isinstance(values.params, type(model)):
        return None
    return bind_equinox(model, inputs, values.params, values.hidden, values.call)


EQUINOX = FrontEnd(
    name="Equinox",
    library="Equinox",
    kind="an `equinox.Module`",
    matches=_is_made_of_modules,
    bind=_bind,
    layers=lambda model: _inside(model, ()),
    write_back=_into_equinox,
)
