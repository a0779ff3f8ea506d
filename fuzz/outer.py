"""Derivatives of what a learner computes: its loss, and a training run.

The loss of a learner is the model's own, so that its derivative is BPTT's whatever the rule. JAX itself must be able to
do as much: the oracle differentiates `jax.value_and_grad` over `lax.scan`, in the same mode. A training run is held
against finite differences, where the model's derivatives are those of what it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import etrax

from .cases import Case
from .measure import EXACT, close, relative, tolerance_of
from .oracle import bptt, inexact
from .spec import Built, step_source

# What a step says where its derivative is another function's than its value's, or rounds.
NOT_BY_DIFFERENCES = (
    "stop_gradient", "spike_", "clip_gradient", "scale_gradient", "host_rule", "constant_of", "unbatched",
    "astype(jnp.", "reduce_precision",
)  # fmt: skip
# What calls functions with derivative rules of their own, whose second derivatives are refused.
WITH_RULES = (
    "spike_",
    "clip_gradient",
    "scale_gradient",
    "host_rule",
    "constant_of",
    "unbatched",
    "own_rule",
    "own_jvp",
    "custom_vjp",
    "custom_jvp",
)
# The norms of their random vectors start at zero, where a root has no derivative.
WITHOUT_SLOPE = ("uoro", "kf_rtrl")
SIZE = 1e-5


class Sgd(NamedTuple):
    """Gradient descent whose rate is its state."""

    init: Callable[[Any], Any] = lambda params: jnp.asarray(0.05)
    update: Callable[..., Any] = lambda grads, rate, params=None: (
        jax.tree.map(lambda g, p: -rate * g if inexact(p) else jnp.zeros_like(p), grads, params),
        rate,
    )


def moving(tree: Any) -> list[Any]:
    return [a for a in jax.tree.leaves(tree) if inexact(a)]


def put(tree: Any, numbers: list[Any]) -> Any:
    """The tree with other values of its inexact leaves."""
    left = iter(numbers)
    return jax.tree.map(lambda a: next(left) if inexact(a) else a, tree)


def direction(numbers: list[Any]) -> list[Any]:
    """Random numbers of the shapes and types of others."""
    rng = np.random.RandomState(5)
    drawn = [rng.standard_normal((2, *np.shape(a))) for a in numbers]
    return [
        (d[0] + 1j * d[1] if np.iscomplexobj(a) else d[0]).astype(a.dtype) for a, d in zip(numbers, drawn, strict=True)
    ]


def product(left: list[Any], right: list[Any]) -> float:
    """The change along `right` of a function whose gradient is `left`, as JAX counts complex numbers."""
    return float(
        sum(np.real(np.asarray(a, complex) * np.asarray(b, complex)).sum() for a, b in zip(left, right, strict=True))
    )


def wrong_derivative(
    run: Callable[..., Any], learner: Any, case: Case, built: Built, mask: Any
) -> tuple[str, str] | None:
    """A claim that fails and how, or None."""
    clock = None if built.xs else np.zeros(built.model.steps)
    window = min(case.window, built.model.steps)
    at = moving(built.params)
    along, loose = direction(at), 10 * tolerance_of(built.model)
    values = learner.value_and_grad(built.loss, window=window, reduction=case.reduction)
    whole = bptt(built, None, case.reduction)

    def by_learner(numbers: list[Any]) -> Any:
        params = put(built.params, numbers)
        return values(params, learner.init(params, built.hidden), built.xs, clock, mask)[0][0]

    def by_model(numbers: list[Any]) -> Any:
        return whole(put(built.params, numbers), built.hidden, built.xs, mask)[0]

    modes = {
        "reverse": lambda f: lambda n: jax.grad(f)(n),
        "forward": lambda f: lambda n: [jax.jvp(f, (n,), (along,))[1]],
    }
    for mode, derivative in modes.items():
        try:
            want = run(derivative(by_model), at)
        except Exception:  # JAX cannot: a rule of the model has no such derivative
            continue
        if not all(np.isfinite(w).all() for w in want):
            continue
        try:
            got = run(derivative(by_learner), at)
        except etrax.NotSupportedError as error:
            if "derivative rules of its own" in str(error) and has_rules(built):
                return None  # JAX gives numbers, which need not be right
            raise
        scale = max(float(np.abs(w).max(initial=0)) for w in want)
        for g, w in zip(got, want, strict=True):
            if not close(g, w, loose, loose * scale):
                return f"{mode} mode through the loss is BPTT", f"relative error {relative(g, w):.3g}"
    if case.rule in WITHOUT_SLOPE or not by_differences(built):
        return None
    return wrong_training(run, learner, case, built, mask, clock)


def has_rules(built: Built) -> bool:
    """Whether the model calls functions with derivative rules that are not JAX's own."""
    return any(word in step_source(built.model) for word in WITH_RULES)


def by_differences(built: Built) -> bool:
    text = step_source(built.model)
    return tolerance_of(built.model) == EXACT and not any(word in text for word in NOT_BY_DIFFERENCES)


def wrong_training(
    run: Callable[..., Any], learner: Any, case: Case, built: Built, mask: Any, clock: Any
) -> tuple[str, str] | None:
    """The losses and the last parameters of a training run, by the first parameters and the rate."""
    window, optimizer = min(case.window, built.model.steps), Sgd()
    train = learner.train(optimizer, built.loss, window=window, reduction=case.reduction)
    at = [*moving(built.params), np.asarray(0.05)]
    along, weights = direction(at), direction(at[:-1])

    def total(numbers: list[Any]) -> Any:
        params = put(built.params, numbers[:-1])
        state = learner.init(params, built.hidden)
        params, _, _, losses = train(params, numbers[-1], state, built.xs, clock, mask)
        return losses.sum() + sum(jnp.real(a * b).sum() for a, b in zip(moving(params), weights, strict=True))

    def difference(size: float) -> float:
        there, back = (run(total, [a + s * size * v for a, v in zip(at, along, strict=True)]) for s in (1, -1))
        return float((there - back) / (2 * size))

    want, other = difference(SIZE), difference(SIZE / 4)
    large = not np.isfinite([want, other]).all() or abs(want) > 1e6
    if large or abs(want - other) > 1e-5 * (1 + abs(want)):
        return None  # a corner lies between, or the numbers are too large
    got = product(run(jax.grad(total), at), along)
    if not np.isfinite(got) and not differentiable_twice(run, built, case, mask, weights):
        return None  # a root of a state at zero: JAX's own second derivative has no value either
    if abs(got - other) <= 1e-4 * (1 + abs(other)):
        return None
    return "derivatives through train are those of differences", f"{got:.6g}, by differences {other:.6g}"


def differentiable_twice(run: Callable[..., Any], built: Built, case: Case, mask: Any, weights: list[Any]) -> bool:
    """Whether JAX has numbers for a second derivative of the model's loss."""
    whole = bptt(built, None, case.reduction)

    def slope(numbers: list[Any]) -> Any:
        grads = jax.grad(lambda n: whole(put(built.params, n), built.hidden, built.xs, mask)[0])(numbers)
        return sum(jnp.real(g * w).sum() for g, w in zip(grads, weights, strict=True))

    return all(np.isfinite(a).all() for a in run(jax.grad(slope), moving(built.params)))
