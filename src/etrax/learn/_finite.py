"""Where numbers stopped being finite, as an error that names the step, the states and the parameters."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import EtraxError
from ..compiler.analysis import Facts
from ..compiler.ir import PyTree, Role, format_path
from ..runtime import LAST_STEP
from ._watch import Watched, is_finite


class NonFiniteError(EtraxError, FloatingPointError):
    """NaN or infinity appeared in a stream."""


def raise_if_broken(facts: Facts, trace: Watched) -> None:
    """Raise for the first step at which a state, an input, a parameter or a trace was not finite."""
    step = facts.step
    inputs = [*step.select(Role.PARAM), *step.select(Role.INPUT)]
    broken: list[tuple[int, str]] = []
    broken += [
        (t, f"the {leaf.role.value} {format_path(leaf.path, 'params' if leaf.role is Role.PARAM else 'inputs')}")
        for t, leaf in zip(_steps(trace.given), inputs, strict=True)
    ]
    broken += [(t, f"the state {facts.state_name(i)}") for i, t in enumerate(_steps(trace.states))]
    params = step.select(Role.PARAM)
    for j, t in enumerate(_steps(trace.sites)):
        names = ", ".join(format_path(params[p].path, "params") for p in sorted(facts.sites[j].params))
        broken.append((t, f"the trace of {names} at {facts.sites[j].label}"))
    broken = [f for f in broken if f[0] >= 0]
    if not broken:
        return
    first = min(t for t, _ in broken)
    others = sorted({t for t, _ in broken} - {first})
    listed = "; ".join(what for t, what in broken if t == first)
    later = (
        f" By step {_shown(others[-1])} it had spread to {sum(t > first for t, _ in broken)} more." if others else ""
    )
    raise NonFiniteError(
        f"NaN or infinity appeared at step {_shown(first)} (counted from `init`) in {listed}.{later} Look at what the "
        "step does there (a division, a square root or a logarithm near zero, a growing state), or lower the learning "
        "rate."
    )


def raise_if_bad_gradient(facts: Facts, loss: jax.Array | float, grads: PyTree, step: int) -> None:
    """Raise for a loss or a gradient that is not finite although states and traces are."""
    leaves = facts.step.select(Role.PARAM) if grads is not None else []
    loss, grads = jax.device_get((loss, grads))
    bad = [
        format_path(leaf.path, "params")
        for leaf, g in zip(leaves, jax.tree.leaves(grads), strict=True)
        if jnp.issubdtype(g.dtype, jnp.inexact) and not np.all(np.isfinite(g))
    ]
    if np.all(np.isfinite(loss)) and not bad:
        return
    what = "the loss" if not bad else f"the gradient of {', '.join(bad)}"
    raise NonFiniteError(
        f"NaN or infinity appeared in {what} within the steps up to {_shown(step)} (counted from `init`), while states "
        "and traces are finite: look at the outputs and at the loss function."
    )


def raise_if_bad_update(facts: Facts, params: PyTree, step: int) -> None:
    """Raise for parameters that an update left not finite: of its gradients, nothing else is seen."""
    values = jax.device_get(jax.tree.leaves(params))
    bad = [
        format_path(leaf.path, "params")
        for leaf, a in zip(facts.step.select(Role.PARAM), values, strict=True)
        if jnp.issubdtype(a.dtype, jnp.inexact) and not np.all(np.isfinite(a))
    ]
    if bad:
        raise NonFiniteError(
            f"NaN or infinity appeared in {', '.join(bad)} by an update within the steps up to {_shown(step)} (counted "
            "from `init`), while states, traces and losses are finite: look at the derivative of the loss function "
            "(a square root at zero), and at the optimizer and its learning rate."
        )


def flag_sample(inputs: Sequence[jax.Array], states: Sequence[jax.Array], loss: jax.Array) -> jax.Array:
    """Which inputs, which states after the step, and whether the loss of one sample are not finite."""
    return jnp.stack([~is_finite(a) for a in (*inputs, *states, loss)])


def raise_if_bad_sample(facts: Facts, flags: jax.Array, step: int) -> None:
    """Raise for a sample that is not to be learned from."""
    names = [f"the input {format_path(leaf.path, 'inputs')}" for leaf in facts.step.select(Role.INPUT)]
    names += [f"the state {facts.state_name(i)}" for i in range(len(facts.states))]
    bad = [name for name, flag in zip([*names, "the loss"], jax.device_get(flags), strict=True) if flag]
    if bad:
        raise NonFiniteError(
            f"NaN or infinity appeared at step {_shown(step)} (counted from `init`) in {'; '.join(bad)}. The sample "
            "was not taken: the stream is as it was before, and the next one can be fed."
        )


def _steps(a: jax.Array) -> list[int]:
    """First bad steps of things, over all streams if there are several."""
    rows = np.asarray(jax.device_get(a)).reshape(-1, np.shape(a)[-1]).astype(np.int64)
    # −1 (never) must not win against the steps of other streams.
    first_steps = np.where(rows < 0, np.iinfo(np.int64).max, rows).min(0)
    return [int(t) if t != np.iinfo(np.int64).max else -1 for t in first_steps]


def _shown(step: int) -> str:
    """The number of a step; counts stop at the last number that they can hold."""
    return f"{step} or later" if step >= LAST_STEP else f"{step}"
