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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

from .._compat import is_inexact
from ..engine import evolve, prepared, run_window
from ..ir import PyTree
from ..learn import Learner, differentiated_where

Leaves: TypeAlias = list[Array]
# (params, states, trace, inputs of k steps) -> (outputs of k steps, states, trace)
Window: TypeAlias = Callable[[Leaves, Leaves, PyTree, Leaves], tuple[Leaves, Leaves, PyTree]]


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


def masked_outputs(outs: Leaves) -> Leaves:
    """The outputs of k steps, with a derivative only where they count."""
    counts = _counts.get()
    return outs if counts is None else differentiated_where(counts.reshape(-1), outs)


def online_window(learner: Learner) -> Window:
    """The function above, for as many steps as its inputs have."""
    facts, program = learner.facts, learner.program
    n_states = len(facts.states)

    def run(params: Leaves, states: Leaves, trace: PyTree, inputs: Leaves) -> tuple[Leaves, Leaves, PyTree]:
        weights = prepared(facts, program.weights(params))
        end, trace, outs = evolve(facts, program.transport, params, weights, states, trace, inputs)
        return outs, end, trace

    def forward(*given: PyTree) -> tuple[tuple[Leaves, Leaves, PyTree], PyTree]:
        values = jax.tree.map(lambda p: p.value, given, is_leaf=_is_primal)
        # The inputs that are differentiated are the keys of a dictionary: part of the structure, no arrays.
        asked = {i: () for i, x in enumerate(given[3]) if x.perturbed}
        return run(*values), (*values, asked)

    def back(
        given: tuple[Leaves, Leaves, PyTree, Leaves, dict[int, tuple[()]]], bars: tuple[Leaves, Leaves, PyTree]
    ) -> tuple[PyTree, ...]:
        *values, asked = given
        params, states, trace, inputs = learner.guard(values)
        bars = jax.tree.map(_number, bars, is_leaf=lambda b: isinstance(b, SymbolicZero))
        moving = [k for k, leaf in enumerate(facts.step.outs[n_states:]) if is_inexact(leaf.aval)]
        along = [bars[0][k] for k in moving]
        exits = {i: bars[1][i] for i, leaf in enumerate(facts.step.outs[:n_states]) if is_inexact(leaf.aval)}

        loss_of = _Along(moving)
        weights = prepared(facts, program.weights(params))
        found = run_window(
            facts, program.transport, params, weights, states, trace, inputs, along, loss_of, exit_bars=exits
        )
        grads = jax.tree.leaves(program.param_grads(params, found.grads))
        # Without a derivative in the inputs, what stands between them and the states needs none: a `while_loop` may.
        to_inputs = _to_inputs(params, states, inputs, asked, along, exits, loss_of)
        return _without_integers(params, grads), None, None, to_inputs

    def _to_inputs(
        params: Leaves, states: Leaves, inputs: Leaves, asked: Iterable[int], along: Leaves, exits: dict[int, Array],
        loss_of: Callable,
    ) -> PyTree:  # fmt: skip
        varying = {i: inputs[i] for i in asked if jnp.issubdtype(inputs[i].dtype, jnp.inexact)}

        def total(some: dict[int, Array]) -> Array:
            def step(held: Leaves, xs: tuple[Leaves, Leaves]) -> tuple[Leaves, Array]:
                outs = facts.step.run([*params, *held, *xs[0]])
                return outs[:n_states], loss_of(outs[n_states:], xs[1])[0]

            whole = [some.get(i, x) for i, x in enumerate(inputs)]
            end, losses = lax.scan(step, states, (whole, along))
            return losses.sum() + _real_product([end[i] for i in exits], list(exits.values()))

        found = jax.grad(total)(varying) if varying else {}
        return [found.get(i) for i in range(len(inputs))]

    window = jax.custom_vjp(run)
    window.defvjp(forward, back, symbolic_zeros=True)
    return jax.jit(window)  # a call outside of a user's own `jit` is compiled once, and so is its derivative


def _is_primal(a: object) -> bool:
    return isinstance(a, CustomVJPPrimal)


def _number(bar: PyTree) -> Array:
    """A cotangent as an array, also where JAX only says that it is zero."""
    return jnp.zeros(bar.shape, bar.dtype) if isinstance(bar, SymbolicZero) and bar.dtype != jax.dtypes.float0 else bar


class _Along:
    """The loss whose derivative in the outputs are the bars: what is known here of one that is computed outside."""

    def __init__(self, moving: Sequence[int]):
        self.moving = moving

    def __call__(self, outs: list[Array], along: Sequence[Array]) -> tuple[Array, tuple[()]]:
        return _real_product([outs[k] for k in self.moving], along), ()

    def read(self, f: Callable[..., PyTree], outs: list[Array], along: Sequence[Array]) -> PyTree:
        raise NotImplementedError("rules that read outputs and targets are refused when the module is wrapped")

    def whole(self, loss: Array) -> Array:
        return loss


def _real_product(outs: Sequence[Array], bars: Sequence[Array]) -> Array:
    """Σ Re(bar · out): its derivative in the outputs are the bars."""
    parts = [jnp.real(o * b.astype(o.dtype)).astype(jnp.promote_types(jnp.real(o).dtype, jnp.float32)).sum()
             for o, b in zip(outs, bars, strict=True)]  # fmt: skip
    return sum(parts[1:], parts[0]) if parts else jnp.zeros(())


def _without_integers(params: Leaves, grads: Leaves) -> list[Array | None]:
    return [g if jnp.issubdtype(p.dtype, jnp.inexact) else None for p, g in zip(params, grads, strict=True)]
