"""From a function to a `Step`: trace, inline, check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from ..._compat import open_jaxpr, shape_struct
from ..._errors import CompilationError, EtraxError
from ._check import check_step
from ._constants import with_own_constants
from ._explain import explain, explained
from ._inline import without_calls
from ._paths import Path, format_path, leaves_with_paths
from ._step import Leaf, Role, Step
from ._types import PyTree

# Facts that a front end attaches to a leaf, by path: its own object, and whether the last axis counts states.
Handles = Mapping[Path, tuple[Any, bool]]


def trace_step(
    fn: Callable[..., tuple[PyTree, PyTree, PyTree]],
    params: PyTree,
    hidden: PyTree,
    inputs: tuple[PyTree, ...],
    other: PyTree = None,
    handles: Mapping[Role, Handles] | None = None,
    called: str = "",
) -> Step:
    """Trace `fn(params, hidden, other, *inputs) -> (hidden, other, output)` into a `Step`.

    Arguments are pytrees of arrays or `jax.ShapeDtypeStruct`; nothing is computed. `called` says how the model was
    called, for who reads what it raised.
    """
    roles = {Role.PARAM: params, Role.HIDDEN: hidden, Role.OTHER: other, Role.INPUT: inputs}
    structs = {role: _structs(role, tree) for role, tree in roles.items()}
    ins = tuple(leaf for role, tree in structs.items() for leaf in _leaves(role, tree, (handles or {}).get(role, {})))
    closed, shapes = _trace(fn, structs, called or _CALLED)
    new_hidden, new_other, output = shapes
    if _alike(output, hidden := structs[Role.HIDDEN]) and not _alike(new_hidden, hidden):
        raise CompilationError(
            "the step returns what looks like the hidden state second: return `(hidden, output)`, the new hidden state "
            "first."
        )
    for role, new in ((Role.HIDDEN, new_hidden), (Role.OTHER, new_other)):
        _check_kept(role, structs[role], new)
    outs = tuple(leaf for leaf in ins if leaf.role is Role.HIDDEN) + tuple(
        leaf for leaf in ins if leaf.role is Role.OTHER
    )
    outs += tuple(_leaves(Role.OUTPUT, jax.tree.map(shape_struct, output), {}))
    _refuse_mutable(closed)
    flat, consts = without_calls(*with_own_constants(closed))
    trees = {role: jax.tree.structure(tree) for role, tree in structs.items()} | {
        Role.OUTPUT: jax.tree.structure(output)
    }
    return check_step(Step(flat, consts, ins, outs, trees))


def _trace(fn: Callable[..., Any], structs: Mapping[Role, Any], called: str) -> tuple[Any, Any]:
    args = (structs[Role.PARAM], structs[Role.HIDDEN], structs[Role.OTHER])
    try:
        return jax.make_jaxpr(fn, return_shape=True)(*args, *structs[Role.INPUT])
    except EtraxError:
        raise
    except Exception as error:  # the user's code may raise anything
        trees = {_ROOTS[role]: t for role, t in structs.items() if role is not Role.OTHER or jax.tree.leaves(t)}
        text = f"{explain('the step', error, trees)}\n{_remedy(error, called)}"
        if called == _CALLED and _runs_swapped(fn, structs):
            text += "\n`params` and `hidden` are swapped: the step runs if they are exchanged."
        raise explained(CompilationError, error, text) from error


def _refuse_mutable(closed: Any) -> None:
    """A step is a pure function: what it closes over must be the same at every call."""
    for const in open_jaxpr(closed)[1]:
        if type(jax.typeof(const)).__name__ == "AbstractRef":
            raise CompilationError(
                f"the step reads a mutable array that it closes over ({jax.typeof(const)}). Pass what changes as an "
                "input or a state, and what does not as an ordinary array."
            )


def _runs_swapped(fn: Callable[..., Any], structs: Mapping[Role, Any]) -> bool:
    hidden, params = structs[Role.HIDDEN], structs[Role.PARAM]
    try:
        results = jax.eval_shape(fn, hidden, params, structs[Role.OTHER], *structs[Role.INPUT])
    except Exception:  # the user's code may raise anything
        return False
    return _alike(results[0], params)


def _alike(one: PyTree, other: PyTree) -> bool:
    """Whether two trees have one structure, which is not empty, and arrays of the same shapes."""
    shapes = [[leaf.shape for leaf in jax.tree.leaves(tree)] for tree in (one, other)]
    return bool(shapes[0]) and shapes[0] == shapes[1] and jax.tree.structure(one) == jax.tree.structure(other)


def _remedy(error: Exception, called: str) -> str:
    if isinstance(error, jax.errors.TracerBoolConversionError | jax.errors.ConcretizationTypeError):
        return (
            "A step is traced once, without numbers: choose by `jnp.where` or `lax.cond` instead of a Python `if`, and "
            "give sizes as Python numbers."
        )
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return "A step is traced once, without numbers: compute with `jax.numpy` in it, not with `numpy`."
    return called


_CALLED = (
    "It is called as `step(params, hidden, *inputs)`: pass the parameters and the hidden state that it reads, and the "
    "inputs of one step, with the shapes and dtypes (and batch axis) that the model will see."
)
_ROOTS = {Role.PARAM: "params", Role.HIDDEN: "hidden", Role.OTHER: "other", Role.INPUT: "inputs"}


def _name(role: Role, path: Path) -> str:
    return format_path(path, _ROOTS[role])


def _structs(role: Role, tree: PyTree) -> PyTree:
    for path, leaf in leaves_with_paths(tree):
        try:
            kind = f"an array of {dtype}" if getattr(dtype := shape_struct(leaf).dtype, "kind", "") == "O" else ""
        except TypeError:
            kind = f"a {type(leaf).__name__}, not an array"
        if kind:
            rows = " (rows of different lengths make one of objects: pad them)" if kind.startswith("an array") else ""
            raise CompilationError(
                f"{role.value} {_name(role, path)} is {kind}{rows}: pass arrays, numbers or `jax.ShapeDtypeStruct`s."
            )
    return jax.tree.map(shape_struct, tree)


def _leaves(role: Role, tree: PyTree, handles: Handles) -> list[Leaf]:
    out = []
    for path, aval in leaves_with_paths(tree):
        handle, state_axis = handles.get(path, (None, False))
        out.append(Leaf(role, path, aval, handle, state_axis))
    return out


def _check_kept(role: Role, old: PyTree, new: PyTree) -> None:
    """The step must return its state with the structure, shapes and dtypes that it took."""
    if jax.tree.structure(old) != jax.tree.structure(new):
        before = {_name(role, p) for p, _ in leaves_with_paths(old)}
        after = {_name(role, p) for p, _ in leaves_with_paths(new)}
        detail = []
        if before - after:
            detail.append(f"missing from what it returns: {', '.join(sorted(before - after))}")
        if after - before:
            detail.append(f"returned but never given: {', '.join(sorted(after - before))}")
        if not detail:
            detail.append(f"given {jax.tree.structure(old)}, returned {jax.tree.structure(new)}")
        raise CompilationError(
            f"the step changes the structure of its {role.value}: {'; '.join(detail)}. "
            "A step must return `(hidden, output)` with `hidden` of the same structure as it was given."
        )
    for (path, a), (_, b) in zip(leaves_with_paths(old), leaves_with_paths(new), strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise CompilationError(
                f"the step changes {role.value} {_name(role, path)}: given {a.dtype}{list(a.shape)}, "
                f"returned {b.dtype}{list(b.shape)}. {_why_changed(a, b)}"
            )


def _why_changed(old: PyTree, new: PyTree) -> str:
    if old.dtype != new.dtype and old.shape == new.shape:
        return f"Give an initial state of type {new.dtype}, or cast inside the step: `.astype({old.dtype})`."
    if new.shape[1:] == old.shape:
        return (
            f"It has one axis more, of {new.shape[0]}: if the example inputs are whole sequences, "
            "pass one step of them (`xs[0]`); if they are a batch, give the initial state its batch axis."
        )
    return "Give an initial state of the shape that the step returns; example inputs are those of one step."
