"""What runs for one batch, compiled once: an update, and an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._arguments import check_function
from .._compat import common_dtype, is_extended, is_inexact
from .._errors import ArgumentError
from ..compiler.ir import LossFunction, PyTree
from ..learn import (
    Learner,
    LearnerState,
    Losses,
    Optimizer,
    Projected,
    check_optimizer,
    updated,
    without_masked_nans,
)
from ..runtime import restarted

# (learner, loss_fn) -> f(params, hidden, inputs, targets, mask) -> (loss, grads): another gradient than the learner's.
Gradient = Callable[..., Callable[..., tuple[jax.Array, PyTree]]]
Metric = Callable[[PyTree, PyTree, jax.Array], jax.Array]
# By the name of a metric, its weighted sum and the weight.
Sums = dict[str, tuple[jax.Array, jax.Array]]


class Batch(NamedTuple):
    """Some samples: trees of arrays (T, B, …), the weight (T, B) of every step, and flags (T, B) that start again.

    For a learner without a batch axis it is one sample: arrays (T, …), and a mask (T, 1).
    """

    inputs: PyTree
    targets: PyTree
    mask: jax.Array
    reset: jax.Array | None = None

    def masked(self, batched: bool) -> tuple[PyTree, ...]:
        """Inputs, targets, mask and, if there are any, resets as the learner takes them."""
        flags = [a for a in (self.mask, self.reset) if a is not None]
        return self.inputs, self.targets, *(a if batched else a[:, 0] for a in flags)


class Live(NamedTuple):
    """What one batch leaves to the next. `learned` is what the rule itself learns, or ()."""

    params: PyTree
    opt_state: PyTree
    learned: PyTree = ()


class Updated(NamedTuple):
    """The outcome of a batch: its weighted loss and its weight, whether all of it are numbers, and how many updates
    were made.

    `state` is the learner's at its end if the learner watches for numbers that are not finite, else None.
    """

    live: Live
    state: LearnerState | None
    loss: jax.Array
    weight: jax.Array
    finite: jax.Array
    updates: jax.Array


def begin(learner: Learner, optimizer: Optimizer, params: object, opt_state: object, by_rule: bool) -> Live:
    """What the first batch starts from; only the learner's own gradient (`by_rule`) has anything to learn itself."""
    opt_state = optimizer.init(params) if opt_state is None else opt_state
    return Live(params, opt_state, learner.learned(learner.init(params)) if by_rule else ())


def projected(optimizer: Optimizer, project: Callable[[PyTree], PyTree]) -> Projected:
    """The optimizer, with parameters that are projected after every update: `project(params) -> params`.

    For weights that keep their sign (Dale's law), poles inside a circle, a norm that stays. It is compiled with the
    update, and wherever an optimizer goes, it goes: `train`, `online`, `Trainer`, `export`.

    >>> import etrax, jax.numpy as jnp, optax
    >>> sgd = etrax.train.projected(optax.sgd(1.0), lambda w: jnp.maximum(w, 0.0))
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> stream = learner.online(sgd, lambda output, target: ((output - target) ** 2).sum())
    >>> _ = stream.feed(jnp.ones(3), -jnp.ones(4))
    >>> float(stream.params.min())
    0.0
    """
    check_optimizer(optimizer)
    check_function("project", project, "(params)")
    return Projected(optimizer, project)


def updater(
    learner: Learner, optimizer: Optimizer, loss_fn: LossFunction, window: int, update: str, gradient: Gradient | None,
    remat: int | None = None,
) -> Callable[..., Updated]:  # fmt: skip
    """`f(live, number, batch, batched=...) -> Updated`; `number` counts batches.

    Hidden state and trace start anew: samples are independent. Random keys among the states are folded with `number`,
    so that noise differs from batch to batch; what a rule learns goes on.
    """
    by_window = learner.train(optimizer, loss_fn, window=window, remat=remat) if update == "window" else None
    by_sequence = learner.value_and_grad(loss_fn, window=window, remat=remat) if update == "sequence" else None
    by_function = gradient(learner, loss_fn) if gradient is not None else None

    def update_once(
        live: Live, state: LearnerState, batch: Batch, batched: bool
    ) -> tuple[Live, LearnerState, jax.Array]:
        """One update by the gradient of the whole sequence."""
        if by_function is not None:
            loss, grads = by_function(live.params, state.hidden, *batch.masked(batched))
        else:
            assert by_sequence is not None
            (loss, grads), state = by_sequence(live.params, state, *batch.masked(batched), **initial_of(batch, state))
        params, opt_state = updated(optimizer, loss, grads, live.opt_state, live.params)
        # A batch of which no step counts leaves everything as it is.
        counts = batch.mask.any()
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(counts, new, old), (params, opt_state), (live.params, live.opt_state)
        )
        return Live(params, opt_state), state, jnp.where(counts, loss, 0) * batch.mask.sum()

    @partial(jax.jit, static_argnames="batched")
    def run(live: Live, number: jax.Array, batch: Batch, batched: bool) -> Updated:
        state = learner.init(live.params, learned=live.learned if gradient is None else None)
        state = state._replace(hidden=jax.tree.map(lambda a: _renewed(a, number), state.hidden))
        if by_window is not None:
            data, options = batch.masked(batched), initial_of(batch, state)
            params, opt_state, state, losses = by_window(live.params, live.opt_state, state, *data, **options)
            weights = _per_window(batch.mask.sum(1), window)
            live, loss, updates = Live(params, opt_state), (losses * weights).sum(), (weights != 0).sum()
        else:
            live, state, loss = update_once(live, state, batch, batched)
            updates = batch.mask.any().astype(int)
        numbers = [~jnp.isnan(a).any() for a in jax.tree.leaves(live.params) if is_inexact(a)]
        finite = jnp.isfinite(loss) & jnp.all(jnp.asarray(numbers))
        if gradient is None:
            live = live._replace(learned=learner.learned(state))
        watched = state if learner.options.check_finite and gradient is None else None
        return Updated(live, watched, loss, batch.mask.sum(), finite, updates)

    return run


def initial_of(batch: Batch, state: LearnerState) -> dict[str, PyTree]:
    """What resets return to: the hidden state that the batch begins with."""
    return {} if batch.reset is None else {"initial": state.hidden}


def evaluator(learner: Learner, loss_fn: LossFunction, metrics: Mapping[str, Metric]) -> Callable[..., Sums]:
    """`f(params, batch, batched=...) -> {name: (weighted sum, weight)}`; no trace is carried.

    The loss is applied to each sample apart (with a batch axis of one), as a learner does under a mask (T, B).
    """
    loss_of = Losses(learner.facts.step, loss_fn, "mean", learner.program.decode)

    @partial(jax.jit, static_argnames="batched")
    def run(params: object, batch: Batch, batched: bool) -> Sums:
        inputs, targets, mask, *reset = batch.masked(batched)
        loss_of.check(targets, mask if batched else None)

        def losses_of(output: object, target: object) -> jax.Array:
            if not batched:
                return loss_fn(output, target)[None]
            return jax.vmap(lambda o, t: loss_fn(*jax.tree.map(lambda a: a[None], (o, t))))(output, target)

        start = learner.init(params).hidden

        def body(hidden: object, step: tuple[object, object, list[jax.Array]]) -> tuple[object, tuple]:
            x, target, flags = step
            for again in flags:
                states = [learner.program.states(tree) for tree in (start, hidden)]
                hidden = learner.program.hidden_of(restarted(again != 0, *states))
            hidden, output = learner.plain_step(params, hidden, x)
            return hidden, (losses_of(output, target), output if metrics else ())

        data = without_masked_nans(inputs, mask), targets, reset
        _, (losses, outputs) = jax.lax.scan(body, start, data)
        if not batched:
            outputs, targets = jax.tree.map(lambda a: a[:, None], (outputs, targets))
        values = {name: jnp.asarray(metric(outputs, targets, batch.mask)) for name, metric in metrics.items()}
        return {name: _averaged(name, v, batch.mask) for name, v in {"loss": losses, **values}.items()}

    return run


def _averaged(name: str, values: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
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


def _per_window(weights: jax.Array, k: int) -> jax.Array:
    """The weight of each window of k steps, the last one shorter."""
    # -T mod k steps of weight zero fill up the last window.
    return jnp.pad(weights, (0, -len(weights) % k)).reshape(-1, k).sum(1)


def _renewed(a: jax.Array, number: jax.Array) -> jax.Array:
    """Another key for each batch; a uint32 array of shape (2,) is what `jax.random.PRNGKey` makes."""
    if is_extended(a):
        fold = jax.random.fold_in
        for _ in range(a.ndim):
            fold = jax.vmap(fold, in_axes=(0, None))
        return fold(a, number)
    return jax.random.fold_in(a, number) if a.dtype == jnp.uint32 and a.shape == (2,) else a
