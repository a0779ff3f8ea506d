"""Checks that a loop does not pay for at every turn: arguments like some that passed are not looked at again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np

from .._compat import ArrayImpl
from ..compiler.ir import PyTree, TreeDef

Result = TypeVar("Result")
# Kinds of arguments that passed their checks and are remembered, for each function.
_REMEMBERED = 8
Signature = tuple[TreeDef, list[object]]


class CheckedOnce:
    """`check(*args)`, which gives the arguments as arrays or raises; left out for arguments like some that passed.

    A loop passes arrays of the same structure, shapes and types at each turn. Looking at all of them again would take
    longer than a small step does.
    """

    def __init__(self, check: Callable[..., tuple[PyTree, ...]]):
        self._check = check
        self._passed: tuple[Signature, ...] = ()

    def __call__(self, *args: PyTree) -> tuple[PyTree, ...]:
        signature = signature_of(args)
        if signature is not None and signature in self._passed:
            return args
        args = self._check(*args)
        if signature is not None:
            self._passed = (*self._passed[1 - _REMEMBERED :], signature)
        return args


def checked_by_tracing(check: Callable[..., object], compiled: Callable[..., Result]) -> Callable[..., Result]:
    """`compiled(*args)`, for a function that checks its arguments while it is traced.

    JAX compares structures, shapes and types at every call, and traces anew for those that it has not seen: comparing
    them here, too, would take longer than a small step does. `check(*args)` sees what JAX does not trace (text in place
    of an array, one that was donated): at the first call, and to say in words why a later one failed.
    """
    passed = False

    def call(*args: PyTree) -> Result:
        nonlocal passed
        if not passed:
            check(*args)
            passed = True
        try:
            return compiled(*args)
        except jax.errors.JaxRuntimeError:  # of the program while it ran: a callback for one, or too little memory
            raise
        except Exception as error:
            failure = error
        check(*args)
        raise failure

    return call


def signature_of(tree: PyTree) -> Signature | None:
    """Structure, shapes and types of arrays; None where a leaf is no array, or one that was donated.

    Results of one compiled function share their abstract values from call to call, so that comparing two signatures
    mostly compares addresses.
    """
    leaves, structure = jax.tree.flatten(tree)
    types: list[object] = []
    for leaf in leaves:
        if type(leaf) is ArrayImpl and not leaf.is_deleted():
            types.append(leaf.aval)
        elif type(leaf) is np.ndarray:
            types.append((leaf.shape, leaf.dtype))
        else:
            return None
    return structure, types
