"""A data set beside the learner that is to see it: shapes, lengths and weights, checked before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from .._compat import shape_struct
from .._errors import ArgumentError
from ..compiler.ir import Leaf, PyTree, Role, format_path, leaves_with_paths
from ..learn import Learner

if TYPE_CHECKING:
    from ._data import Dataset


class DataShape(NamedTuple):
    """T, N and B of a data set. `batched` is False for a learner without a batch axis, which takes one at a time."""

    steps: int
    samples: int
    batch: int
    batched: bool


def as_tuple(learner: Learner, inputs: PyTree) -> PyTree:
    """The tuple of the step's inputs; a single one may be passed bare."""
    single = len(learner.facts.step.trees[Role.INPUT].children()) == 1 and not isinstance(inputs, tuple)
    return (inputs,) if single else inputs


def check_data(learner: Learner, data: Dataset, what: str, counts: bool = True) -> DataShape:
    """The layout of a data set of numpy arrays, or an error that names what does not fit.

    If it `counts`, the mask must be above zero somewhere.
    """
    expected = learner.facts.step.select(Role.INPUT)
    leaves = leaves_with_paths(as_tuple(learner, data.inputs))
    if len(leaves) != len(expected):
        raise ArgumentError(
            f"`{what}.inputs` holds {len(leaves)} array(s), but the step takes {len(expected)}: "
            "pass the tuple of the step's inputs (a single one may be passed bare)."
        )
    named = [(format_path(leaf.path, "inputs"), leaf, a) for leaf, (_, a) in zip(expected, leaves, strict=True)]
    layout = _layout(named, what)
    for name, leaf, a in named:
        _check_input(f"`{what}.inputs` at {name}", leaf, a, layout)
    for path, a in leaves_with_paths(data.targets):
        if np.shape(a)[:2] != (layout.steps, layout.samples):
            raise ArgumentError(
                f"`{what}.targets` at {format_path(path, 'targets')} has shape {list(a.shape)}; expected "
                f"({layout.steps}, {layout.samples}, …), as `inputs` have. For one target per sample use "
                "`Dataset.labelled`."
            )
    _check_mask(data.mask, layout, what, counts)
    _check_reset(data.reset, layout, what)
    return layout


def _layout(named: list[tuple[str, Leaf, np.ndarray]], what: str) -> DataShape:
    """From the first input that is not shared: (T, N, …) against (B, …), or against (…) without a batch axis."""
    for name, leaf, a in named:
        if a.ndim == 1 and not leaf.aval.shape:
            continue
        extra = a.ndim - len(leaf.aval.shape)
        if extra not in (1, 2) or a.ndim < 2:
            raise ArgumentError(
                f"`{what}.inputs` at {name} has shape {list(a.shape)}, but one step of the model takes "
                f"{list(leaf.aval.shape)}; expected (T, N, …): time, then samples, then the shape of one sample."
            )
        if not a.shape[0] or not a.shape[1]:
            raise ArgumentError(f"`{what}.inputs` at {name} is empty: its shape (T, N, …) is {list(a.shape)}.")
        return DataShape(a.shape[0], a.shape[1], leaf.aval.shape[0] if extra == 1 else 1, extra == 1)
    raise ArgumentError(f"`{what}.inputs` holds no array of shape (T, N, …), so the number of samples is not known.")


def _check_input(name: str, leaf: Leaf, a: np.ndarray, layout: DataShape) -> None:
    aval, lead = leaf.aval, (layout.steps, layout.samples)
    if a.ndim == 1 and not aval.shape:
        if a.shape[0] != layout.steps:
            raise ArgumentError(f"{name} has {a.shape[0]} steps, another input has {layout.steps}.")
    elif a.shape[:2] != lead or a.shape[2:] != aval.shape[layout.batched :]:
        want = ", ".join(map(str, (*lead, *aval.shape[layout.batched :])))
        raise ArgumentError(
            f"{name} has shape {list(a.shape)}; expected ({want}): steps and samples as the first input has them, then "
            f"one sample of the step's {list(aval.shape)}."
        )
    elif layout.batched and aval.shape[0] != layout.batch:
        raise ArgumentError(
            f"{name}: the model was compiled with {aval.shape[0]} along its first axis and with {layout.batch} along "
            "that of another input, so the batch size is not known. Compile with all inputs of one batch size."
        )
    if shape_struct(a).dtype != aval.dtype:
        raise ArgumentError(
            f"{name} is {shape_struct(a).dtype}, but the model was compiled with {aval.dtype}. "
            "Cast it, or compile again."
        )


def _check_mask(mask: jax.Array | np.ndarray | None, layout: DataShape, what: str, counts: bool) -> None:
    if mask is None:
        return
    _check_each_step(f"{what}.mask", mask, layout, "a weight")
    if mask.dtype.kind not in "biuf":
        raise ArgumentError(f"`{what}.mask` is {mask.dtype}; expected numbers or booleans.")
    if not (np.isfinite(mask).all() and (mask >= 0).all()):
        raise ArgumentError(f"`{what}.mask` holds weights that are negative or not finite.")
    if counts and not mask.any():
        raise ArgumentError(f"`{what}.mask` is zero everywhere: no step counts.")


def _check_reset(reset: jax.Array | np.ndarray | None, layout: DataShape, what: str) -> None:
    if reset is None:
        return
    _check_each_step(f"{what}.reset", reset, layout, "a flag")
    if reset.dtype.kind not in "biu":
        raise ArgumentError(f"`{what}.reset` is {reset.dtype}; expected booleans: pass `reset != 0`.")


def _check_each_step(name: str, a: jax.Array | np.ndarray, layout: DataShape, kind: str) -> None:
    shape = getattr(a, "shape", ())  # a tree of arrays has none
    if shape != (layout.steps, layout.samples):
        raise ArgumentError(
            f"`{name}` has shape {list(shape)}; expected ({layout.steps}, {layout.samples}): {kind} per step and "
            "sample."
        )


def check_values(learner: Learner, params: object) -> None:
    """A learner may be compiled from shapes alone; a run needs numbers."""
    for name, tree, how in (
        ("params", params, "pass `params=` to `fit`"),
        ("hidden", learner.hidden, "compile with arrays as `hidden=`"),
    ):
        if any(isinstance(a, jax.ShapeDtypeStruct) for a in jax.tree.leaves(tree)):
            raise ArgumentError(f"the model was compiled with shapes only, without values for `{name}`: {how}.")
