"""Arguments of a learner's functions, checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._compat import shape_struct
from .._errors import ArgumentError
from ..ir import Leaf, Step, format_path, leaves_with_paths
from ..ir import Role as Role


def check_leaves(what: str, tree: Any, leaves: Sequence[Leaf], structure: Any) -> list[Any]:
    """The leaves of a tree that must look like those that the model was compiled with."""
    if jax.tree.structure(tree) != structure:
        want, got = {leaf.path for leaf in leaves}, {path for path, _ in leaves_with_paths(tree)}
        detail = []
        if want - got:
            detail.append("missing: " + ", ".join(sorted(format_path(p, what) for p in want - got)))
        if got - want:
            detail.append("not expected: " + ", ".join(sorted(format_path(p, what) for p in got - want)))
        if not detail:
            detail.append(f"expected {structure}, got {jax.tree.structure(tree)}")
        raise ArgumentError(
            f"`{what}` does not have the structure that the model was compiled with ({'; '.join(detail)})."
        )
    found = jax.tree.leaves(tree)
    for leaf, value in zip(leaves, found, strict=True):
        _check_one(f"`{what}` at {format_path(leaf.path, what)}", value, leaf.aval.shape, leaf.aval.dtype)
    return [v if hasattr(v, "aval") else jnp.asarray(v, leaf.aval.dtype) for v, leaf in zip(found, leaves, strict=True)]


def _check_one(what: str, value: Any, shape: tuple[int, ...], dtype: Any) -> None:
    got = shape_struct(value)
    if got.shape != tuple(shape):
        raise ArgumentError(f"{what} has shape {list(got.shape)}, but the model was compiled with {list(shape)}.")
    if got.dtype != dtype and hasattr(value, "dtype"):
        raise ArgumentError(
            f"{what} is {got.dtype}, but the model was compiled with {dtype}. Cast it, or compile again."
        )


def check_inputs(step: Step, inputs: Any) -> tuple[list[Any], int]:
    """Input leaves with their time axis, and its length. A single array may stand for a tuple of one."""
    structure, leaves = step.trees[Role.INPUT], step.select(Role.INPUT)
    if jax.tree.structure(inputs) != structure and jax.tree.structure((inputs,)) == structure:
        inputs = (inputs,)
    if jax.tree.structure(inputs) != structure:
        raise ArgumentError(
            f"`inputs` has the structure {jax.tree.structure(inputs)}, but the step takes {structure}. Pass the tuple "
            "of the step's inputs, each with a leading time axis (a single array may be passed bare)."
        )
    if not leaves:
        raise ArgumentError("the step takes no inputs, so the number of steps is not known; give it one (a clock).")
    found, length = [], None
    for leaf, value in zip(leaves, jax.tree.leaves(inputs), strict=True):
        got = shape_struct(value)
        name = format_path(leaf.path, "inputs")
        if got.shape[1:] != leaf.aval.shape or not got.shape:
            raise ArgumentError(
                f"`inputs` at {name} has shape {list(got.shape)}; expected (T, {', '.join(map(str, leaf.aval.shape))})"
                ": a leading time axis, then the shape of one step as compiled."
            )
        if got.dtype != leaf.aval.dtype:
            raise ArgumentError(
                f"`inputs` at {name} is {got.dtype}, but the model was compiled with {leaf.aval.dtype}."
            )
        if length is not None and got.shape[0] != length:
            raise ArgumentError(f"`inputs` at {name} has {got.shape[0]} steps, another input has {length}.")
        length = got.shape[0]
        found.append(jnp.asarray(value) if not hasattr(value, "aval") else value)
    if not length:
        raise ArgumentError("`inputs` holds no steps (T = 0).")
    return found, length


def check_targets(targets: Any, length: int) -> None:
    for path, leaf in leaves_with_paths(targets):
        shape = shape_struct(leaf).shape
        if not shape or shape[0] != length:
            raise ArgumentError(
                f"`targets` at {format_path(path, 'targets')} has shape {list(shape)}; "
                f"expected a leading time axis of {length}, as `inputs` have."
            )


def check_mask(mask: Any, length: int) -> Any:
    """The mask as floating-point weights of shape (T,) or (T, B), or None."""
    if mask is None:
        return None
    shape = shape_struct(mask).shape
    if len(shape) not in (1, 2) or shape[0] != length:
        raise ArgumentError(
            f"`mask` has shape {list(shape)}; expected ({length},) or ({length}, B): "
            "a weight per step, or per step and sample."
        )
    kind = jnp.asarray(mask).dtype
    return jnp.asarray(mask, kind if jnp.issubdtype(kind, jnp.floating) else jnp.float32)


def check_window(window: Any) -> int:
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise ArgumentError(f"`window` is {window!r}; expected a whole number of steps, at least 1.")
    return window


def check_decay(rule: str, name: str, value: Any, *, closed: bool = False) -> float:
    """A leak from 0 up to 1 (`closed`: 1 itself included)."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1 or (value == 1 and not closed):
        end = "to 1" if closed else "up to but not including 1"
        raise ArgumentError(f"`{rule}` takes a `{name}` from 0 {end}, got {value!r}.")
    return float(value)


def check_key(what: str, key: Any) -> Any:
    """A `jax.random` key, or a whole number to make one of."""
    if isinstance(key, int) and not isinstance(key, bool):
        return jax.random.key(key)
    dtype = getattr(key, "dtype", None)
    if dtype is None or not (
        jnp.issubdtype(dtype, jax.dtypes.prng_key) or (dtype == jnp.uint32 and jnp.shape(key) == (2,))
    ):
        raise ArgumentError(f"{what} needs `key=`, a whole number or a key such as `jax.random.key(0)`; got {key!r}.")
    return key
