"""Arguments of a model: which leaves are arrays, which are fixed, and which units they carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import jax

from .._compat import is_extended, shape_struct
from .._errors import CompilationError
from ..compiler.ir import describe, format_path, leaves_with_paths
from ._units import attach, conform, is_quantity, strip

_T = TypeVar("_T")


def _is_array(x: object) -> bool:
    if isinstance(x, type):  # a class has the attributes of its instances
        return False
    return is_quantity(x) or isinstance(x, (bool, int, float, complex)) or (hasattr(x, "shape") and hasattr(x, "dtype"))


def abstract(tree: _T) -> _T:
    """A tree with shapes and dtypes in place of numbers; units, and leaves that are no arrays, stay."""
    return jax.tree.map(lambda x: shape_struct(x) if _is_array(x) else x, tree)


def holds_arrays_only(tree: object) -> bool:
    return all(map(_is_array, jax.tree.leaves(tree, is_leaf=is_quantity)))


@dataclass(frozen=True, eq=False)
class Arguments:
    """Example arguments `(args, kwargs)`, as `abstract` gives them.

    Strings and other objects that are no arrays are fixed when compiling.
    """

    args: tuple[object, ...]
    kwargs: dict[str, object]

    def _arrays(self, tree: _T) -> _T:
        return jax.tree.map(lambda x: x if _is_array(x) else None, tree, is_leaf=is_quantity)

    def _both(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[object, ...]:
        return (*args, dict(kwargs)) if kwargs else tuple(args)

    @property
    def both(self) -> tuple[object, ...]:
        """The positional arguments, then the keywords as one dictionary; with units."""
        return self._both(self.args, self.kwargs)

    @property
    def structs(self) -> tuple[Any, ...]:
        """The step's inputs as shapes and dtypes: the positional arguments, then the keywords as one dictionary."""
        return jax.tree.map(shape_struct, strip(self._arrays(self.both)))

    def rebuild(self, inputs: tuple[object, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The model's arguments from the step's inputs: units back on, fixed arguments back in."""
        both = self.both
        arrays = self._arrays(both)
        full = attach(jax.tree.structure(arrays), jax.tree.leaves(inputs))
        flat, tree = jax.tree.flatten(both, is_leaf=is_quantity)
        moving = iter(jax.tree.leaves(full, is_leaf=is_quantity))
        merged = jax.tree.unflatten(tree, [next(moving) if _is_array(x) else x for x in flat])
        return (merged[:-1], merged[-1]) if self.kwargs else (merged, {})

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object], lead: int = 0) -> tuple[Any, ...]:
        """The step's inputs from arguments like the example ones, behind `lead` more axes (time).

        Structure and shapes of a sequence are left to who asked for it, and knows what it should be.
        """
        example, passed = self.both, self._both(args, kwargs)
        old, new = self._arrays(example), self._arrays(passed)
        out = conform("argument", (), old, new)
        if jax.tree.structure(strip(old)) != jax.tree.structure(out):
            if lead:
                return out
            raise CompilationError(
                f"the arguments are {describe(out, 'inputs')}, but the model was compiled with "
                f"{describe(strip(old), 'inputs')}. Pass arguments of that structure, or compile again."
            )
        fixed = [x for x in jax.tree.leaves(example, is_leaf=is_quantity) if not _is_array(x)]
        now = [x for x in jax.tree.leaves(passed, is_leaf=is_quantity) if not _is_array(x)]
        if fixed != now:
            raise CompilationError(f"the fixed arguments were {fixed} when compiling and are now {now}: compile again.")
        for (path, a), (_, b) in zip(leaves_with_paths(self.structs), leaves_with_paths(out), strict=True):
            if is_extended(a) != is_extended(shape_struct(b)):
                raise CompilationError(
                    f"argument {format_path(path, 'inputs')} is {shape_struct(b).dtype}, but the model was compiled "
                    f"with {a.dtype}. Pass numbers for numbers, and keys for keys."
                )
            if not lead and a.shape != shape_struct(b).shape:
                shape = shape_struct(b).shape
                many = "; for many steps at once, mark them as `etrax.MultiStepData`" if shape[1:] == a.shape else ""
                raise CompilationError(
                    f"argument {format_path(path, 'inputs')} has shape {list(shape)}, but the model was compiled with "
                    f"shape {list(a.shape)}. Pass one step of that shape (time is the first axis of a sequence), or "
                    f"compile again{many}."
                )
        return out
