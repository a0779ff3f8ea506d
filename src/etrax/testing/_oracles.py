"""BPTT, dense RTRL and finite differences of a learner's own step, by `jax` alone.

None of these touches the analysis or the engine: they run the traced step as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from .._arguments import check_arrays, check_number
from .._errors import ArgumentError
from ..compiler.ir import LossFunction, PyTree
from ..learn import Learner, Losses, check_learner

# f(params, hidden, inputs, targets=None, mask=None, reset=None, *, initial=None)
Oracle = Callable[..., PyTree]


class Sequence(NamedTuple):
    """What an oracle is called with."""

    params: object
    hidden: object
    inputs: object
    targets: object = None
    mask: jax.Array | None = None
    reset: jax.Array | None = None
    initial: object = None


def _checked(run: Callable[[Sequence], object], learner: Learner, losses: Losses) -> Oracle:
    """The oracle `run`, called as a learner's gradient is and behind its checks."""

    def checked(
        params: object, hidden: object, inputs: object, targets: object = None, mask: jax.Array | None = None,
        reset: jax.Array | None = None, *, initial: object = None,
    ) -> PyTree:  # fmt: skip
        sequence = Sequence(params, hidden, inputs, targets, mask, reset, learner.resets.start_of(reset, initial))
        for what, tree in sequence._asdict().items():
            check_arrays(what, tree)
        by_lane = learner.resets.lanes_for(None, reset)
        (learner if by_lane is None else by_lane).program.arguments(*sequence[:5], losses, *sequence[5:])
        return run(sequence)

    return checked


def _losses(learner: Learner, loss_fn: LossFunction, reduction: str = "mean") -> Losses:
    check_learner(learner)
    return Losses(learner.facts.step, loss_fn, reduction, learner.program.decode)


def _weighted(loss_fn: LossFunction, output: object, target: object, weight: jax.Array | None) -> jax.Array:
    """The loss of a step; where its weight is zero it is zero, and what it would be computed from is not looked at."""
    if weight is None:
        return loss_fn(output, target)
    each = loss_fn if weight.ndim == 0 else lambda o, t: loss_fn(*jax.tree.map(lambda a: a[None], (o, t)))

    def one(w: jax.Array, o: object, t: object) -> jax.Array:
        o = jax.tree.map(lambda a: jnp.where(w == 0, jnp.zeros_like(a), a), o)
        return jnp.where(w == 0, 0, w * each(o, t))

    return one(weight, output, target) if weight.ndim == 0 else jax.vmap(one)(weight, output, target).sum()


def _zeros_for_masked_nans(inputs: object, mask: jax.Array) -> object:
    """NaN of a masked step is read as zero; of a mask (T, B) by sample, where an input has an axis of samples."""

    def one(a: jax.Array) -> jax.Array:
        by_sample = mask.ndim == 2 and a.shape[1:2] == mask.shape[1:]
        off = (mask if mask.ndim == 1 or by_sample else jnp.abs(mask).sum(1)) == 0
        off = off.reshape(off.shape + (1,) * (a.ndim - off.ndim))
        return jnp.where(off & jnp.isnan(a), 0, a) if jnp.issubdtype(a.dtype, jnp.inexact) else a

    return jax.tree.map(lambda a: one(jnp.asarray(a)), inputs)


def _started(reset: jax.Array | None, initial: object, hidden: object) -> object:
    """The initial state in place of a hidden state, all of it or in the lanes that start again."""
    if reset is None:
        return hidden
    each = jnp.where if reset.ndim == 0 else jax.vmap(jnp.where)
    return jax.tree.map(lambda h0, h: each(reset != 0, jnp.asarray(h0), h), initial, hidden)


def _loss(learner: Learner, losses: Losses, sequence: Sequence) -> jax.Array:
    params, hidden, inputs, targets, mask, reset, initial = sequence
    inputs = learner.program.as_tuple(inputs)
    if mask is not None:
        mask = jnp.asarray(mask, jnp.float32 if jnp.asarray(mask).dtype == bool else None)
        inputs = _zeros_for_masked_nans(inputs, mask)

    def body(h: object, step: tuple[object, object, jax.Array | None, jax.Array | None]) -> tuple[object, jax.Array]:
        x, target, weight, again = step
        h, output = learner.plain_step(params, _started(again, initial, h), x)
        return h, _weighted(losses.loss_fn, output, target, weight)

    _, of_steps = jax.lax.scan(body, hidden, (inputs, targets, mask, reset))
    total = of_steps.shape[0] if mask is None else mask.sum()
    return of_steps.sum() / (total if losses.reduction == "mean" else 1)


def bptt(learner: Learner, loss_fn: LossFunction, reduction: str = "mean") -> Oracle:
    """`f(params, hidden, inputs, targets, mask=None, reset=None) -> (loss, grads)`: `jax.grad` through one `lax.scan`.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> loss = lambda output, target: ((output - target) ** 2).mean()
    >>> run = etrax.testing.bptt(learner, loss)
    >>> value, grads = run(learner.params, learner.hidden, jnp.ones((6, 3)), jnp.ones((6, 4)))
    >>> grads.shape
    (3, 4)

    Asked again with the same loss it returns the same function: nothing is compiled twice.
    """
    losses = _losses(learner, loss_fn, reduction)
    return learner.once(_bptt, losses)


def _bptt(learner: Learner, losses: Losses) -> Oracle:
    @jax.jit
    def run(sequence: Sequence) -> tuple[jax.Array, object]:
        params = sequence.params

        def total(moving: list[jax.Array]) -> jax.Array:
            return _loss(learner, losses, sequence._replace(params=_put(params, moving)))

        loss, grads = jax.value_and_grad(total)(_moving(params))
        return loss, _put(jax.tree.map(jnp.zeros_like, params), grads)

    return _checked(run, learner, losses)


def _moving(tree: object) -> list[jax.Array]:
    """The leaves that have derivatives."""
    return [a for a in jax.tree.leaves(tree) if jnp.issubdtype(jnp.asarray(a).dtype, jnp.inexact)]


def _put(tree: object, moving: list[jax.Array]) -> object:
    """The tree with other values for the leaves that have derivatives."""
    values = iter(moving)
    return jax.tree.map(lambda a: next(values) if jnp.issubdtype(jnp.asarray(a).dtype, jnp.inexact) else a, tree)


def finite_differences(learner: Learner, loss_fn: LossFunction, epsilon: float = 1e-6) -> Oracle:
    """Central differences of the sequence loss, one number at a time, best in float64.

    A surrogate gradient is not the derivative of its spike, so this oracle is not for models with spikes.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> loss = lambda output, target: ((output - target) ** 2).mean()
    >>> run = etrax.testing.finite_differences(learner, loss, epsilon=1e-3)
    >>> grads = run(learner.params, learner.hidden, jnp.ones((6, 3)), jnp.ones((6, 4)))
    >>> grads.shape
    (3, 4)
    """
    losses = _losses(learner, loss_fn)
    check_number("finite_differences", "epsilon", epsilon, 0, 1, "between 0 and 1", ends="()")

    def run(sequence: Sequence) -> object:
        params = sequence.params
        loss = jax.jit(lambda moving: _loss(learner, losses, sequence._replace(params=_put(params, moving))))
        moving = [np.asarray(a) for a in _moving(params)]

        def along(k: int, i: tuple[int, ...], step: complex) -> float:
            """The derivative of the loss along one direction of one number."""
            up, down = moving[k].copy(), moving[k].copy()
            up[i] += step
            down[i] -= step
            high, low = (loss([*moving[:k], a, *moving[k + 1 :]]) for a in (up, down))
            return float(high - low) / (2 * epsilon)

        grads = []
        for k, a in enumerate(moving):
            g = np.zeros(a.shape, a.dtype)
            for i in np.ndindex(*a.shape):
                g[i] = along(k, i, epsilon)
                if np.iscomplexobj(a):  # JAX's convention: ∂/∂re − i ∂/∂im
                    g[i] -= 1j * along(k, i, 1j * epsilon)
            grads.append(jnp.asarray(g))
        return _put(jax.tree.map(jnp.zeros_like, params), grads)

    return _checked(run, learner, losses)


def dense_rtrl(learner: Learner, loss_fn: LossFunction) -> Oracle:
    """Textbook RTRL in real numbers: J ← (∂h'/∂h) J + ∂h'/∂θ with full matrices, g = Σ_t ∂ℓ/∂θ + (∂ℓ/∂h) J.

    For small models only: it holds (states × parameters) numbers and full Jacobians across the batch.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> loss = lambda output, target: ((output - target) ** 2).mean()
    >>> run = etrax.testing.dense_rtrl(learner, loss)
    >>> grads = run(learner.params, learner.hidden, jnp.ones((6, 3)), jnp.ones((6, 4)))
    >>> grads.shape
    (3, 4)
    """

    def run(sequence: Sequence) -> object:
        params, hidden, inputs, targets, *more = sequence
        if any(value is not None for value in more):
            raise ArgumentError("`dense_rtrl` takes no mask and no resets: use `bptt`.")
        inputs = learner.program.as_tuple(inputs)
        # Jacobians of complex numbers are those of pairs of real ones: a step need not be holomorphic.
        theta, back = ravel_pytree(_as_real(_moving(params)))
        start = _moving(hidden)
        state, unravel = ravel_pytree(_as_real(start))

        def one(
            theta: jax.Array, state: jax.Array, rest: object, x: object, target: object
        ) -> tuple[jax.Array, jax.Array, object]:
            values = _put(params, _from_real(back(theta), _moving(params)))
            h, output = learner.plain_step(values, _put(rest, _from_real(unravel(state), start)), x)
            return ravel_pytree(_as_real(_moving(h)))[0], loss_fn(output, target), h

        @jax.jit
        def advance(
            state: jax.Array, influence: jax.Array, rest: object, x: object, target: object
        ) -> tuple[jax.Array, jax.Array, object, jax.Array]:
            to_h, to_theta = jax.jacrev(lambda s, t: one(t, s, rest, x, target)[0], argnums=(0, 1))(state, theta)
            g_h, g_theta = jax.grad(lambda s, t: one(t, s, rest, x, target)[1], argnums=(0, 1))(state, theta)
            new, _, h = one(theta, state, rest, x, target)
            return new, to_h @ influence + to_theta, h, g_theta + g_h @ influence

        influence, total = jnp.zeros((state.size, theta.size), theta.dtype), jnp.zeros_like(theta)
        steps = jax.tree.leaves((inputs, targets))[0].shape[0]
        for t in range(steps):
            x, target = jax.tree.map(lambda a, t=t: a[t], (inputs, targets))
            state, influence, hidden, g = advance(state, influence, hidden, x, target)
            total = total + g
        # A complex gradient is ∂/∂re − i ∂/∂im, by JAX's convention.
        grads = [jnp.conj(g) for g in _from_real(back(total / steps), _moving(params))]
        return _put(jax.tree.map(jnp.zeros_like, params), grads)

    return _checked(run, learner, _losses(learner, loss_fn))


def _as_real(arrays: list[jax.Array]) -> list[tuple[jax.Array, ...]]:
    """Complex arrays as pairs of their real and imaginary parts."""
    return [(a.real, a.imag) if jnp.iscomplexobj(a) else (a,) for a in map(jnp.asarray, arrays)]


def _from_real(parts: list[tuple[jax.Array, ...]], like: list[jax.Array]) -> list[jax.Array]:
    return [jax.lax.complex(*p) if jnp.iscomplexobj(a) else p[0] for p, a in zip(parts, like, strict=True)]
