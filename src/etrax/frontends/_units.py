"""Physical units: quantities become their mantissas on the way into a step, and quantities again on the way out."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from .._errors import CompilationError
from ..compiler.ir import Path, PyTree, TreeDef, format_path, leaves_with_paths

# Most of what is asked about; asked first, since every node of every tree is looked at.
_NO_QUANTITIES = frozenset({dict, list, tuple, type(None), int, float, np.ndarray, jax.ShapeDtypeStruct})


def is_quantity(x: object) -> bool:
    """Whether x carries a unit; the libraries that define such values are never imported for the question."""
    if type(x) in _NO_QUANTITIES:
        return False
    for name in ("saiunit", "brainunit"):
        quantity = getattr(sys.modules.get(name), "Quantity", None)
        if quantity is not None and isinstance(x, quantity):
            return True
    return False


def strip(tree: object) -> Any:
    """A pytree with every quantity replaced by its mantissa.

    Quantities are pytrees with the mantissa as their only leaf, so leaves and their order stay what they were.
    """
    return jax.tree.map(lambda x: x.mantissa if is_quantity(x) else x, tree, is_leaf=is_quantity)


def attach(like: TreeDef, leaves: Iterable[object]) -> PyTree:
    """Leaves of a stripped pytree, with the structure and units of the pytree whose structure is `like`."""
    return jax.tree.unflatten(like, leaves)


def conform(what: str, path: Path, template: object, value: object) -> Any:
    """`value` stripped, in the units of `template`; a value of another dimension is an error.

    A value whose structure differs is stripped only: who called compares structures and can say more.
    """
    old, old_tree = jax.tree.flatten(template, is_leaf=is_quantity)
    new, new_tree = jax.tree.flatten(value, is_leaf=is_quantity)
    if old_tree != new_tree:
        return strip(value)
    inner = [p for p, _ in leaves_with_paths(strip(value))]
    pairs = zip(inner, old, new, strict=True)
    return jax.tree.unflatten(new_tree, [_conform_leaf(what, (*path, *p), a, b) for p, a, b in pairs])


def _conform_leaf(what: str, path: Path, old: Any, new: Any) -> Any:
    if not is_quantity(new):
        if is_quantity(old) and not old.unit.is_unitless:
            raise CompilationError(_mismatch(what, path, f"in {old.unit}", "without a unit"))
        return new
    if is_quantity(old) and old.unit == new.unit:
        return new.mantissa
    if is_quantity(old):
        if old.unit.dim != new.unit.dim:
            raise CompilationError(_mismatch(what, path, f"in {old.unit}", f"in {new.unit}"))
        return new.to(old.unit).mantissa
    if not new.unit.dim.is_dimensionless:
        raise CompilationError(_mismatch(what, path, "without a unit", f"in {new.unit}"))
    return new.to_decimal()


def _mismatch(what: str, path: Path, expected: str, passed: str) -> str:
    return (
        f"{what} {format_path(path, 'inputs')} was {expected} when the model was compiled and is now {passed}. "
        "Give it a value of the same physical dimension, or compile again."
    )
