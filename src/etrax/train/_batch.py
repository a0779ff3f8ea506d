"""What runs for one batch, compiled once: an update, and an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._compat import common_dtype
from .._errors import ArgumentError
from ..compiler.ir import LossFunction, PyTree
from ..learn import Learner, Losses, Optimizer, told, without_masked_nans

# (learner, loss_fn) -> f(params, hidden, inputs, targets, mask) -> (loss, grads): another gradient than the learner's.
Gradient = Callable[..., Callable[..., tuple[jax.Array, PyTree]]]


class Live(NamedTuple):
    """What one batch leaves to the next. `learned` is what the rule itself learns, or ()."""

    params: PyTree
    opt_state: PyTree
    learned: PyTree = ()


class Updated(NamedTuple):
    """A batch done: its weighted loss and its weight, and whether all of it are numbers.

    `state` is the learner's at its end if the learner watches for numbers that are not finite, else ().
    """

    live: Live
    state: PyTree
    loss: jax.Array
    weight: jax.Array
    finite: jax.Array


def begin(learner: Learner, optimizer: Optimizer, params: PyTree, opt_state: PyTree, gradient: Gradient | None) -> Live:
    """What the first batch starts from."""
    opt_state = optimizer.init(params) if opt_state is None else opt_state
    return Live(params, opt_state, learner.learned(learner.init(params)) if gradient is None else ())


def updater(
    learner: Learner, optimizer: Optimizer, loss_fn: LossFunction, window: int, update: str, gradient: Gradient | None
) -> Callable[..., Updated]:
    """`f(live, number, inputs, targets, mask, batched=...) -> Updated`; `number` counts batches.

    Hidden state and trace start anew: samples are independent. Random keys among the states are folded with `number`,
    so that noise differs from batch to batch; what a rule learns goes on.
    """
    by_window = learner.train(optimizer, loss_fn, window=window) if update == "window" else None
    by_sequence = learner.value_and_grad(loss_fn, window=window) if update == "sequence" else None
    other = gradient(learner, loss_fn) if gradient is not None else None

    def by_gradient(
        live: Live, state: PyTree, inputs: PyTree, targets: PyTree, mask: jax.Array, weights: jax.Array
    ) -> PyTree:
        if other is not None:
            loss, grads = other(live.params, state.hidden, inputs, targets, mask)
        else:
            (loss, grads), state = by_sequence(live.params, state, inputs, targets, mask)  # type: ignore[misc]
        updates, opt_state = told(optimizer, loss).update(grads, live.opt_state, live.params)
        new = jax.tree.map(lambda a, u: (a + u).astype(a.dtype), live.params, updates), opt_state
        # A batch of which no step counts leaves everything as it is.
        seen = weights.any()
        new = jax.tree.map(lambda a, b: jnp.where(seen, a, b), new, (live.params, live.opt_state))
        return *new, state, jnp.where(seen, loss, 0) * weights.sum()

    @partial(jax.jit, static_argnames="batched")
    def run(live: Live, number: jax.Array, inputs: PyTree, targets: PyTree, mask: jax.Array, batched: bool) -> Updated:
        state = learner.init(live.params, learned=live.learned if gradient is None else None)
        state = state._replace(hidden=jax.tree.map(lambda a: _renewed(a, number), state.hidden))
        weights, mask = mask.sum(1), mask if batched else mask[:, 0]
        if by_window is not None:
            params, opt_state, state, losses = by_window(live.params, live.opt_state, state, inputs, targets, mask)
            loss = (losses * _per_window(weights, window)).sum()
        else:
            params, opt_state, state, loss = by_gradient(live, state, inputs, targets, mask, weights)
        numbers = [~jnp.isnan(a).any() for a in jax.tree.leaves(params) if jnp.issubdtype(a.dtype, jnp.inexact)]
        finite = jnp.isfinite(loss) & jnp.all(jnp.asarray(numbers))
        learned = learner.learned(state) if gradient is None else ()
        watched = state if learner.options.check_finite and gradient is None else ()
        return Updated(Live(params, opt_state, learned), watched, loss, weights.sum(), finite)

    return run


def evaluator(
    learner: Learner, loss_fn: LossFunction, metrics: Mapping[str, Callable[..., PyTree]]
) -> Callable[..., PyTree]:
    """`f(params, inputs, targets, mask, batched=...) -> {name: (weighted sum, weight)}`; no trace is carried.

    The loss is applied to each sample apart (with a batch axis of one), as a learner does under a mask (T, B).
    """

    loss_of = Losses(learner.facts.step, loss_fn, "mean", learner.program.decode)

    @partial(jax.jit, static_argnames="batched")
    def run(params: PyTree, inputs: PyTree, targets: PyTree, mask: jax.Array, batched: bool) -> PyTree:
        loss_of.check(targets, mask if batched else None)

        inputs = without_masked_nans(inputs, mask if batched else mask[:, 0])

        def one(output: PyTree, target: PyTree) -> PyTree:
            if not batched:
                return loss_fn(output, target)[None]
            return jax.vmap(lambda o, t: loss_fn(*jax.tree.map(lambda a: a[None], (o, t))))(output, target)

        def body(hidden: PyTree, xs: PyTree) -> PyTree:
            x, target = xs
            hidden, output = learner.plain_step(params, hidden, x)
            return hidden, (one(output, target), output if metrics else ())

        _, (losses, outputs) = jax.lax.scan(body, learner.init(params).hidden, (inputs, targets))
        found = {"loss": _averaged("loss", losses, mask)}
        if not batched:
            outputs, targets = jax.tree.map(lambda a: a[:, None], (outputs, targets))
        for name, metric in metrics.items():
            found[name] = _averaged(name, jnp.asarray(metric(outputs, targets, mask)), mask)
        return found

    return run


def _averaged(name: str, values: jax.Array, mask: jax.Array) -> tuple[PyTree, PyTree]:
    if values.shape == mask.shape:
        weight = mask
    elif values.shape == mask.shape[1:]:
        weight = (mask != 0).any(0).astype(mask.dtype)
    else:
        raise ArgumentError(
            f"the metric {name!r} returned shape {list(values.shape)}; expected {list(mask.shape)}, a value per step "
            f"and sample, or {list(mask.shape[1:])}, one per sample."
        )
    values = values.astype(common_dtype(values.dtype, mask.dtype))  # sums in float32 at least
    return jnp.where(weight != 0, values * weight.astype(values.dtype), 0).sum(), weight.sum()


def _per_window(weights: jax.Array, k: int) -> PyTree:
    """The weight of each window of k steps, the last one shorter."""
    return jnp.pad(weights, (0, -len(weights) % k)).reshape(-1, k).sum(1)


def _renewed(a: jax.Array, number: jax.Array) -> PyTree:
    """Another key for each batch; a uint32 array of shape (2,) is what `jax.random.PRNGKey` makes."""
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        fold = jax.random.fold_in
        for _ in range(a.ndim):
            fold = jax.vmap(fold, in_axes=(0, None))
        return fold(a, number)
    return jax.random.fold_in(a, number) if a.dtype == jnp.uint32 and a.shape == (2,) else a
