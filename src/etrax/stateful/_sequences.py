"""Sequences given to a stateful learner: cut into steps or windows, and run by its library's own loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp

from .._arguments import as_numbers, check_arrays, check_flag, check_function, check_whole, short, struct_of
from .._compat import transfers_meant
from .._errors import ArgumentError, ArgumentTypeError
from ..compiler.ir import PyTree, describe
from ..graph import MultiStepData, SingleStepData
from ..learn import check_reset, weighed, without_masked_nans
from ._window import outputs_count_where, starting_again

# What `step_fn` is given before its slices: the learner, if its library passes modules as arguments.
Before: TypeAlias = tuple[object, ...]
# The losses of a part of the sequences, and what the user's function returned beside them.
LossesAndAux: TypeAlias = tuple[jax.Array, object]
# What one turn of a loop gets: a step or a window of each sequence, flags that start again before it (None: none); for
# gradients also the weights of its losses.
Slices: TypeAlias = tuple[object, ...]
Part: TypeAlias = tuple[Slices, jax.Array | None, jax.Array]
# (before, part) -> (number to be differentiated, losses and aux)
Objective: TypeAlias = Callable[[Before, Part], tuple[jax.Array, LossesAndAux]]

_LOSS_OUTPUTS = ("per_step", "masked", "scalar")


class Loop(Protocol):
    """How a library runs steps one after the other."""

    def gradients(self, objective: Objective, parts: Part) -> tuple[object, LossesAndAux]:
        """Gradients of the objective, summed over the parts; and losses and aux of each part, stacked."""
        ...

    def run(self, fn: Callable[[Before, Slices], object], parts: Slices) -> PyTree:
        """What `fn` returns, stacked."""
        ...


class Sequences:
    """Sequences of one length, in windows of `chunk` steps; `calls` counts how often the learner has been called."""

    def __init__(
        self, loop: Loop, calls: Callable[[], int], sequences: tuple[object, ...], chunk_size: int | None, mask: object,
        reset: object = None, lanes: int | None = None,
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
        check_arrays("reset", reset)
        with transfers_meant():
            self.weight = jnp.ones(self.length) if mask is None else _checked_mask(mask, self.length)
            sequences = sequences if mask is None else without_masked_nans(sequences, self.weight)
            flags = check_reset(reset, self.length, lanes)
        self.parts = jax.tree.map(self._cut, (sequences, flags, self.weight))

    def _cut(self, a: object) -> jax.Array:
        """Steps, or windows of them: (T, ...) becomes (T / chunk, chunk, ...)."""
        steps = jnp.asarray(a)
        return steps if self.chunk == 1 else steps.reshape(self.length // self.chunk, self.chunk, *steps.shape[1:])

    def _call_once(self, step_fn: Callable[..., object], args: tuple[object, ...]) -> object:
        """Call the user's function, which must call the learner once: each call advances states and trace."""
        calls_before = self.calls()
        out = step_fn(*args)
        calls = self.calls() - calls_before
        if calls != 1:
            raise ArgumentError(
                f"`step_fn` called the learner {calls} times; it must once: each call advances states and trace."
            )
        return out

    def gradients(
        self, step_fn: Callable[..., object], reduction: str, loss_output: str, has_aux: bool, return_value: bool
    ) -> PyTree:
        """Gradients, then losses and aux where they are asked for; see `SequenceDriver.etrace_grad`."""
        choices = {"reduction": (reduction, ("mean", "sum")), "loss_output": (loss_output, _LOSS_OUTPUTS)}
        for name, (value, allowed) in choices.items():
            if not isinstance(value, str) or value not in allowed:
                raise ArgumentError(f"`{name}` is {short(value)}; expected one of {', '.join(map(repr, allowed))}.")
        check_flag("has_aux", has_aux)
        check_flag("return_value", return_value)
        with transfers_meant():
            # Where all steps are masked every loss is zero, and so is their mean.
            total = jnp.where(self.weight.sum() == 0, 1, self.weight.sum())
            factor = 1 / total if reduction == "mean" else jnp.ones(())

        def objective(before: Before, part: Part) -> tuple[jax.Array, LossesAndAux]:
            slices, flags, weight = part
            with outputs_count_where(None if self.unmasked else weight != 0), starting_again(flags):
                returned = self._call_once(step_fn, (*before, *slices))
            losses, aux = _pair(returned) if has_aux else (returned, ())
            losses = self._checked_losses(losses)
            return weighed(losses, (weight * factor).astype(losses.dtype)).sum(), (losses, aux)

        grads, (losses, aux) = self.loop.gradients(objective, self.parts)
        losses = losses.reshape(self.length)
        with transfers_meant():
            masked = weighed(losses, self.weight)
        values = {"per_step": losses, "masked": masked, "scalar": (masked * factor).sum()}
        out = [grads, *([values[loss_output]] if return_value else []), *([aux] if has_aux else [])]
        return out[0] if len(out) == 1 else tuple(out)

    def _checked_losses(self, losses: object) -> jax.Array:
        """One floating-point number, or one for each step of a window."""
        shape = () if self.chunk == 1 else (self.chunk,)
        expected = "one number" if not shape else f"one number for each of {self.chunk} steps"
        if unit := getattr(losses, "unit", None):
            raise ArgumentError(f"`step_fn` returned a loss in {unit}; expected {expected}: divide it by its unit.")
        if not jax.tree_util.all_leaves([losses]) or losses is None:
            raise ArgumentTypeError(
                f"`step_fn` returned {describe(losses, 'loss')} as its loss; expected "
                f"{expected}. To return more, pass `has_aux=True` and return `(loss, aux)`."
            )
        struct = struct_of("the loss that `step_fn` returned", losses)
        if struct.shape != shape:
            raise ArgumentError(f"`step_fn` returned a loss of shape {list(struct.shape)}; expected {expected}.")
        if not jnp.issubdtype(struct.dtype, jnp.floating):
            raise ArgumentTypeError(
                f"`step_fn` returned a loss of type {struct.dtype}, which has no derivative; expected a real "
                "floating-point number."
            )
        return jnp.asarray(losses)

    def evolve(self, step_fn: Callable[..., object], return_outputs: bool) -> PyTree:
        """Run without a gradient; what `step_fn` returned at each step, stacked, or None."""
        check_flag("return_outputs", return_outputs)

        def one(before: Before, part: Any) -> object:
            slices, flags = part
            with starting_again(flags):
                out = self._call_once(step_fn, (*before, *slices))
            return out if return_outputs else ()

        outs = self.loop.run(one, self.parts[:2])
        if not return_outputs:
            return None
        return outs if self.chunk == 1 else jax.tree.map(lambda a: a.reshape(self.length, *a.shape[2:]), outs)


class SequenceDriver:
    """`etrace_grad` and `etrace_evolve` of a learner; a subclass says how its library runs sequences."""

    def _sequences(
        self, sequences: tuple[object, ...], chunk_size: int | None, mask: object = None, weights: object = None,
        reset: object = None,
    ) -> Sequences:  # fmt: skip
        """Sequences for the learner; `weights` selects the parameters that gradients are asked for."""
        raise NotImplementedError

    def _check_windows(self, chunk: int, gradients: bool) -> None:
        """Refuse windows that the learner cannot take."""

    def _after_sequences(self, name: str, sequences: tuple[object, ...]) -> None:
        """Called after the method `name` ran over sequences."""

    def etrace_grad(
        self, *sequences: object, step_fn: Callable[..., object], mask: object = None, chunk_size: int | None = None,
        weights: object = None, reduction: str = "mean", loss_output: str = "per_step", has_aux: bool = False,
        return_value: bool = False, reset: object = None,
    ) -> PyTree:  # fmt: skip
        """Online gradients over sequences (time first), summed step by step in a memory that does not grow.

        - `sequences`: what `step_fn` is called with, step by step.
        - `step_fn`: `step_fn(*slices)` calls `online` once and returns the loss of the step, or `(loss, aux)` with
          `has_aux`; it may read parameters and states as well. For an NNX module it is `step_fn(online, *slices)`: as
          everywhere in NNX, what is differentiated is an argument.
        - `mask`: (T,), weights of the losses. Where it is zero, a NaN in a sequence is read as zero.
        - `chunk_size`: k calls `step_fn` with k steps at a time, which it passes on as `etrax.MultiStepData`, and for
          which it returns k losses.
        - `weights`: the parameters that gradients are returned for (with NNX, a filter); by default all.
        - `reduction`: "mean" over the steps, weighted by the mask, or "sum".
        - `loss_output`: with `return_value`, the losses "per_step", "masked", or as one "scalar".
        - `has_aux`: whether `step_fn` returns `(loss, aux)`.
        - `return_value`: whether to return the losses, too.
        - `reset`: before the steps that (T,) flags, or in the lanes that (T, B) flags, states return to those that the
          module was compiled with, and the trace is empty; statistics and random keys continue.

        Returns the gradients; with `return_value` or `has_aux` a tuple of gradients, losses and aux. In a loop, call it
        under `brainstate.transform.jit` or `nnx.jit`: elsewhere it is compiled at every call.

        >>> import brainstate, etrax, jax.numpy as jnp
        >>> online = etrax.Stateful(brainstate.nn.GRUCell(3, 4), "d_rtrl", jnp.ones((2, 3)), batch_size=2)
        >>> loss = lambda x, y: ((online(x) - y) ** 2).mean()
        >>> xs, ys = jnp.ones((5, 2, 3)), jnp.ones((5, 2, 4))
        >>> grads, losses = online.etrace_grad(xs, ys, step_fn=loss, return_value=True)
        >>> losses.shape
        (5,)
        """
        check_function("step_fn", step_fn, "(*slices)")
        run = self._sequences(sequences, chunk_size, mask, weights, reset)
        self._check_windows(run.chunk, gradients=True)
        out = run.gradients(step_fn, reduction, loss_output, has_aux, return_value)
        self._after_sequences("etrace_grad", sequences)
        return out

    def etrace_evolve(
        self, *sequences: object, step_fn: Callable[..., object] | None = None, chunk_size: int | None = None,
        return_outputs: bool = False, reset: object = None,
    ) -> PyTree:  # fmt: skip
        """Advance states and trace over sequences, without a gradient.

        - `sequences`: what `step_fn` is called with, step by step.
        - `step_fn`: calls `online` once; by default it passes on its slices.
        - `chunk_size`, `reset`: as in `etrace_grad`.
        - `return_outputs`: whether to return what `step_fn` returns at each step, stacked.

        >>> import brainstate, etrax, jax.numpy as jnp
        >>> online = etrax.Stateful(brainstate.nn.GRUCell(3, 4), "d_rtrl", jnp.ones((2, 3)), batch_size=2)
        >>> online.etrace_evolve(jnp.ones((5, 2, 3)), return_outputs=True).shape
        (5, 2, 4)
        """
        run = self._sequences(sequences, chunk_size, reset=reset)
        self._check_windows(run.chunk, gradients=False)
        mark = MultiStepData if run.chunk > 1 else SingleStepData

        def call(*args: object) -> object:
            learner, slices = (args[0], args[1:]) if isinstance(args[0], SequenceDriver) else (self, args)
            return learner(*(mark(s) for s in slices))  # pyright: ignore[reportCallIssue]

        out = run.evolve(call if step_fn is None else step_fn, return_outputs)
        self._after_sequences("etrace_evolve", sequences)
        return out


def _pair(returned: object) -> tuple[object, object]:
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise ArgumentTypeError(
            f"`step_fn` returned {describe(returned, 'result')}; with `has_aux=True` it must return a pair, "
            "`(loss, aux)`."
        )
    return returned[0], returned[1]


def _checked_mask(mask: object, length: int) -> jax.Array:
    """A real number for each step."""
    weight = jnp.asarray(mask if isinstance(mask, jax.Array) else as_numbers("`mask`", mask))
    if weight.shape != (length,):
        raise ArgumentError(f"`mask` has shape {list(weight.shape)}; expected one weight per step, [{length}].")
    if jnp.issubdtype(weight.dtype, jnp.complexfloating):
        raise ArgumentTypeError(f"`mask` is {weight.dtype}; expected real numbers or booleans.")
    return weight.astype(jnp.promote_types(weight.dtype, jnp.float32))


def _length(sequences: tuple[object, ...]) -> int:
    lengths = {jnp.shape(a)[:1] for a in jax.tree.leaves(sequences)}
    if len(lengths) != 1 or () in lengths or (0,) in lengths:
        names = ", ".join(str(n[0]) if n else "none" for n in sorted(lengths))
        raise ArgumentError(f"sequences must have one length, of at least one step; found {names or 'no arrays'}.")
    return next(iter(lengths))[0]
