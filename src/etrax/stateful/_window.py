"""Some steps of a learner as one differentiable function: its derivative is the online gradient.

    outputs, states, trace = window(params, states, trace, inputs)

Its derivative in the parameters is that of the rule: exact through these steps, and for what came before them the
credit that the trace gives, for the outputs and for the states at the end (a loss may read them). Nothing goes back
into the states and the trace at the beginning, since that is what the trace stands for; so a loop of such windows is
differentiated in a memory that does not grow. Inputs get what these steps send back. A rule with a learning signal of
its own takes it from the outputs alone.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from jax.typing import DTypeLike

from .._compat import is_inexact
from ..compiler.ir import Step
from ..learn import Learner, differentiated_where, without_derivatives
from ..runtime import WindowRun, evolve, restarted, run_window, with_kernels

Leaves: TypeAlias = list[Array]
# Flags (k,) or (k, lanes), and the states to start again from (None: a state goes on); None where nothing does.
Resets: TypeAlias = tuple[Array, list[Array | None]] | None
# (params, states, trace, inputs of k steps, resets) -> (outputs of k steps, states, trace). The rule alone can read its
# trace.
Window: TypeAlias = Callable[[Leaves, Leaves, object, Leaves, Resets], tuple[Leaves, Leaves, object]]


# Where the outputs of the call that is being differentiated count for its loss; None: everywhere.
_counts: contextvars.ContextVar[Array | None] = contextvars.ContextVar("etrax_outputs_count", default=None)


@contextlib.contextmanager
def outputs_count_where(counts: Array | None) -> Iterator[None]:
    """Within it, no derivative passes the outputs of a learner's call at masked steps, whatever the loss makes of them.

    The loss is the user's own code, so it cannot be masked before it is differentiated in another way.
    """
    token = _counts.set(counts)
    try:
        yield
    finally:
        _counts.reset(token)


# Where the call that is being made starts again, before each of its steps; None: nowhere.
_resets: contextvars.ContextVar[Array | None] = contextvars.ContextVar("etrax_resets", default=None)


@contextlib.contextmanager
def starting_again(flags: Array | None) -> Iterator[None]:
    """Within it, a learner's call starts again before the steps, or in the lanes, that are flagged."""
    token = _resets.set(flags)
    try:
        yield
    finally:
        _resets.reset(token)


def current_resets() -> Array | None:
    """Flags for the steps of the call that is being made."""
    return _resets.get()


def masked_outputs(outs: Leaves) -> Leaves:
    """The outputs of k steps, with a derivative only where they count."""
    counts = _counts.get()
    return outs if counts is None else differentiated_where(counts.reshape(-1), outs)


def online_window(learner: Learner) -> Window:
    """The function above, for as many steps as its inputs have."""
    facts, program = learner.facts, learner.program
    n_states = len(facts.states)
    moves = [is_inexact(leaf.aval) for leaf in facts.step.outs]  # whole numbers and keys have no cotangent
    output_numbers = [k for k, moving in enumerate(moves[n_states:]) if moving]
    loss_of = _CotangentLoss(output_numbers)

    def run(
        params: Leaves, states: Leaves, trace: object, inputs: Leaves, resets: Resets
    ) -> tuple[Leaves, Leaves, object]:
        weights = with_kernels(facts, program.weights(params))
        again = (None, ()) if resets is None else resets
        end, trace, outs = evolve(facts, program.transport, params, weights, states, trace, inputs, *again)
        return outs, end, trace

    def forward(*primals: object) -> tuple[tuple[Leaves, Leaves, object], tuple[object, ...]]:
        params, states, trace, inputs, resets = jax.tree.map(lambda p: p.value, primals, is_leaf=_is_primal)
        # The inputs that are differentiated are the keys of a dictionary: part of the structure, no arrays.
        asked = {i: () for i, x in enumerate(jax.tree.leaves(primals[3], is_leaf=_is_primal)) if x.perturbed}
        return run(params, states, trace, inputs, resets), (params, states, trace, inputs, resets, asked)

    def back(
        residuals: tuple[Leaves, Leaves, object, Leaves, Resets, dict[int, tuple[()]]],
        cotangents: tuple[Leaves, Leaves, object],
    ) -> tuple[list[Array | None], None, None, list[Array | None], None]:
        *values, asked = residuals
        params, states, trace, inputs, resets = without_derivatives(facts.step, values)
        flags, initial = (None, ()) if resets is None else resets
        outs, ends, _ = jax.tree.map(_as_array, cotangents, is_leaf=lambda c: isinstance(c, SymbolicZero))
        to_outputs = [outs[k] for k in output_numbers]
        to_states = {i: ends[i] for i in range(n_states) if moves[i]}
        weights = with_kernels(facts, program.weights(params))
        run = WindowRun(
            params, weights, states, trace, inputs, to_outputs, loss_of, exit_cotangents=to_states, resets=flags,
            initial=initial,
        )  # fmt: skip
        result = run_window(facts, program.transport, run)
        grads = jax.tree.leaves(program.param_grads(params, result.grads))
        moving = [g if is_inexact(jax.typeof(p)) else None for p, g in zip(params, grads, strict=True)]
        asked = [i for i in asked if is_inexact(jax.typeof(inputs[i]))]
        loss = _Cotangents(facts.step, loss_of, to_outputs, to_states, resets)
        return moving, None, None, loss.input_grads(params, states, inputs, asked), None

    window = jax.custom_vjp(run)
    window.defvjp(forward, back, symbolic_zeros=True)
    return jax.jit(window)  # a call outside of a user's own `jit` is compiled once, and so is its derivative


class _Cotangents(NamedTuple):
    """The product of a window's outputs and states with their cotangents: its derivative is what goes back to inputs.

    Where nobody differentiates an input, the step is not differentiated: a `while_loop` may then stand between an input
    and the states.
    """

    step: Step
    loss_of: _CotangentLoss
    to_outputs: Leaves
    to_states: Mapping[int, Array]
    resets: Resets

    def input_grads(self, params: Leaves, states: Leaves, inputs: Leaves, asked: Sequence[int]) -> list[Array | None]:
        """By input, what these steps send back to it; None where nobody differentiates it."""

        def total(varied: dict[int, Array]) -> Array:
            return self.total(params, states, [varied.get(i, x) for i, x in enumerate(inputs)])

        grads = jax.grad(total)({i: inputs[i] for i in asked}) if asked else {}
        return [grads.get(i) for i in range(len(inputs))]

    def total(self, params: Leaves, states: Leaves, inputs: Leaves) -> Array:
        flags, initial = (None, ()) if self.resets is None else self.resets
        n = len(states)

        def step(before: Leaves, xs: tuple[Leaves, Leaves, Array | None]) -> tuple[Leaves, Array]:
            before = before if xs[2] is None else restarted(xs[2], initial, before)
            outs = self.step.run([*params, *before, *xs[0]])
            return outs[:n], self.loss_of(outs[n:], xs[1])[0]

        end, losses = lax.scan(step, states, (inputs, self.to_outputs, flags))
        return losses.sum() + _real_product([end[i] for i in self.to_states], list(self.to_states.values()))


def _is_primal(x: object) -> bool:
    return isinstance(x, CustomVJPPrimal)


def _as_array(cotangent: Array | SymbolicZero) -> Array | SymbolicZero:
    """A cotangent as an array, also where JAX only says that it is zero; whole numbers have none."""
    zero = isinstance(cotangent, SymbolicZero) and cotangent.dtype != jax.dtypes.float0
    return jnp.zeros(cotangent.shape, cast(DTypeLike, cotangent.dtype)) if zero else cotangent


class _CotangentLoss:
    """A loss whose derivative in the outputs is the cotangent: that is all this side sees of the user's own loss.

    It has the form of the losses that `run_window` takes; the data of a step are its cotangents.
    """

    def __init__(self, output_numbers: Sequence[int]):
        self.output_numbers = output_numbers

    def __call__(self, outs: Leaves, cotangents: Sequence[Array]) -> tuple[Array, tuple[()]]:
        return _real_product([outs[k] for k in self.output_numbers], cotangents), ()

    def read(self, f: Callable[..., object], outs: Leaves, cotangents: Sequence[Array]) -> object:
        raise NotImplementedError("rules that read outputs and targets are refused when the module is wrapped")

    def whole(self, loss: Array) -> Array:
        return loss


def _real_product(outs: Sequence[Array], cotangents: Sequence[Array]) -> Array:
    """Σ Re(cotangent · out): its derivative in the outputs are the cotangents.

    Half precision is summed in single, so that many small terms are not lost.
    """
    terms = []
    for out, cotangent in zip(outs, cotangents, strict=True):
        product = jnp.real(out * cotangent.astype(out.dtype))
        terms.append(product.astype(jnp.promote_types(product.dtype, jnp.float32)).sum())
    return sum(terms[1:], terms[0]) if terms else jnp.zeros(())
