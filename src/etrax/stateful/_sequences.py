"""Sequences given to a stateful learner: cut into steps or windows, and run by its library's own loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import jax
import jax.numpy as jnp

from .._arguments import as_numbers, check_arrays, check_flag, check_whole, short, struct_of
from .._errors import ArgumentError, ArgumentTypeError
from ..compiler.ir import PyTree, describe
from ..graph import MultiStepData, SingleStepData
from ..learn import weighed, without_masked_nans
from ._window import outputs_count_where

# What `step_fn` is given before its slices: the learner, if its library passes modules as arguments.
Before: TypeAlias = tuple[object, ...]
# (before, part) -> (number, seen)
Objective: TypeAlias = Callable[[Before, PyTree], tuple[jax.Array, PyTree]]


class Loop(Protocol):
    """How a library runs steps one after the other."""

    def gradients(self, objective: Objective, parts: PyTree) -> tuple[PyTree, PyTree]:
        """Gradients of the objective, summed over the parts, and what was seen, stacked."""
        ...

    def run(self, fn: Callable[[Before, PyTree], PyTree], parts: PyTree) -> PyTree:
        """What `fn` returns, stacked."""
        ...


class Sequences:
    """Sequences of one length, in windows of `chunk` steps; `calls` counts how often the learner has been called."""

    def __init__(
        self, loop: Loop, calls: Callable[[], int], sequences: tuple[PyTree, ...], chunk_size: int | None,
        mask: PyTree,
    ):  # fmt: skip
        self.loop, self.calls = loop, calls
        if not sequences:
            raise ArgumentError("no sequence was given: pass at least one, with time as its first axis.")
        marked = lambda x: isinstance(x, MultiStepData | SingleStepData)  # noqa: E731
        if any(map(marked, jax.tree.leaves(sequences, is_leaf=marked))):
            raise ArgumentTypeError("sequences are cut here: pass plain arrays, and mark what `step_fn` passes on.")
        check_arrays("sequences", sequences)
        self.chunk = 1 if chunk_size is None else check_whole("chunk_size", chunk_size, "steps")
        self.length = _length(sequences)
        if self.length % self.chunk:
            raise ArgumentError(
                f"`chunk_size` is {self.chunk}, which does not divide the {self.length} steps: use another, or cut the "
                "sequences."
            )
        self.unmasked = mask is None
        self.weight = jnp.ones(self.length) if mask is None else _checked_mask(mask, self.length)
        sequences = sequences if mask is None else without_masked_nans(sequences, self.weight)
        self.parts = jax.tree.map(self._cut, (sequences, self.weight))

    def _cut(self, a: PyTree) -> jax.Array:
        a = jnp.asarray(a)
        return a if self.chunk == 1 else a.reshape(self.length // self.chunk, self.chunk, *a.shape[1:])

    def _once(self, step_fn: Callable[..., PyTree], slices: tuple[PyTree, ...]) -> PyTree:
        before = self.calls()
        out = step_fn(*slices)
        made = self.calls() - before
        if made != 1:
            raise ArgumentError(
                f"`step_fn` called the learner {made} times; it must once: each call advances states and trace."
            )
        return out

    def gradients(
        self, step_fn: Callable[..., PyTree], reduction: str, loss_output: str, has_aux: bool,
        return_value: bool,
    ) -> PyTree:  # fmt: skip
        for name, value, known in (("reduction", reduction, ("mean", "sum")), ("loss_output", loss_output, _SHOWN)):
            if not isinstance(value, str) or value not in known:
                raise ArgumentError(f"`{name}` is {short(value)}; expected one of {', '.join(map(repr, known))}.")
        check_flag("has_aux", has_aux)
        check_flag("return_value", return_value)
        total = jnp.where(self.weight.sum() == 0, 1, self.weight.sum())
        share = 1 / total if reduction == "mean" else jnp.ones(())

        def objective(before: Before, part: PyTree) -> tuple[jax.Array, tuple[jax.Array, PyTree]]:
            slices, weight = part
            with outputs_count_where(None if self.unmasked else weight != 0):
                found = self._once(step_fn, (*before, *slices))
            losses, aux = _pair(found) if has_aux else (found, ())
            losses = self._checked_losses(losses)
            return weighed(losses, (weight * share).astype(losses.dtype)).sum(), (losses, aux)

        grads, (losses, aux) = self.loop.gradients(objective, self.parts)
        losses = losses.reshape(self.length)
        masked = weighed(losses, self.weight)
        shown = {"per_step": losses, "masked": masked, "scalar": (masked * share).sum()}
        out = [grads, *([shown[loss_output]] if return_value else []), *([aux] if has_aux else [])]
        return out[0] if len(out) == 1 else tuple(out)

    def _checked_losses(self, losses: PyTree) -> jax.Array:
        """One floating-point number, or one for each step of a window."""
        want = () if self.chunk == 1 else (self.chunk,)
        expected = "one number" if not want else f"one number for each of {self.chunk} steps"
        if unit := getattr(losses, "unit", None):
            raise ArgumentError(f"`step_fn` returned a loss in {unit}; expected {expected}: divide it by its unit.")
        if not jax.tree_util.all_leaves([losses]) or losses is None:
            raise ArgumentTypeError(
                f"`step_fn` returned {describe(losses, 'loss')} as its loss; expected "
                f"{expected}. To return more, pass `has_aux=True` and return `(loss, aux)`."
            )
        found = struct_of("the loss that `step_fn` returned", losses)
        if found.shape != want:
            raise ArgumentError(f"`step_fn` returned a loss of shape {list(found.shape)}; expected {expected}.")
        if not jnp.issubdtype(found.dtype, jnp.floating):
            raise ArgumentTypeError(
                f"`step_fn` returned a loss of type {found.dtype}, which has no derivative; expected a real "
                "floating-point number."
            )
        return jnp.asarray(losses)

    def evolve(self, step_fn: Callable[..., PyTree], return_outputs: bool) -> PyTree:
        check_flag("return_outputs", return_outputs)

        def one(before: Before, part: tuple[PyTree, ...]) -> PyTree:
            out = self._once(step_fn, (*before, *part))
            return out if return_outputs else ()

        outs = self.loop.run(one, self.parts[0])
        if not return_outputs:
            return None
        return outs if self.chunk == 1 else jax.tree.map(lambda a: a.reshape(self.length, *a.shape[2:]), outs)


_SHOWN = ("per_step", "masked", "scalar")


def _pair(found: PyTree) -> tuple[PyTree, PyTree]:
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise ArgumentTypeError(
            f"`step_fn` returned {describe(found, 'result')}; with `has_aux=True` it must return a pair, `(loss, aux)`."
        )
    return found[0], found[1]


def _checked_mask(mask: PyTree, length: int) -> jax.Array:
    """A real number for each step."""
    given = jnp.asarray(mask if isinstance(mask, jax.Array) else as_numbers("`mask`", mask))
    if given.shape != (length,):
        raise ArgumentError(f"`mask` has shape {list(given.shape)}; expected one weight per step, [{length}].")
    if jnp.issubdtype(given.dtype, jnp.complexfloating):
        raise ArgumentTypeError(f"`mask` is {given.dtype}; expected real numbers or booleans.")
    return given.astype(jnp.promote_types(given.dtype, jnp.float32))


def _length(sequences: tuple[PyTree, ...]) -> int:
    lengths = {jnp.shape(a)[:1] for a in jax.tree.leaves(sequences)}
    if len(lengths) != 1 or () in lengths or (0,) in lengths:
        found = ", ".join(str(n[0]) if n else "none" for n in sorted(lengths))
        raise ArgumentError(f"sequences must have one length, of at least one step; found {found or 'no arrays'}.")
    return next(iter(lengths))[0]
