"""How old a trace is: it holds sensitivities at the parameters of the past, and parameters move.

The last steps are replayed at today's parameters, from the state before them. What the replay carries at its end is
held against what the learner carries after the same steps, along which its parameters moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from ..compiler.ir import Path, PyTree, Role
from ..learn import Learner, LearnerState


class Stale(NamedTuple):
    """Relative differences of one parameter's trace, and of its gradient over one window more, from the replay's.

    NaN where the replay carries nothing, or has no gradient.
    """

    trace: float
    gradient: float


def staleness(
    learner: Learner, gradient: Callable[..., PyTree], params: PyTree, now: LearnerState, replayed: LearnerState,
    last_window: tuple[PyTree, ...],
) -> dict[Path, Stale]:  # fmt: skip
    """Of every parameter. Both gradients are of the last window once more, from the hidden state of now."""
    carried, fresh = (learner.program.transport.parts(state.trace) for state in (now, replayed))
    both = []
    for state in (now, replayed._replace(hidden=now.hidden)):
        (_, grads), _ = gradient(params, state, *last_window)
        both.append(learner.program.params(grads))
    rows = {}
    for i, leaf in enumerate(learner.facts.step.select(Role.PARAM)):
        sites = [j for j in learner.facts.sites_of(i) if j in fresh]
        traces = [[a for j in sites for a in parts[j]] for parts in (carried, fresh)]
        rows[leaf.path] = Stale(_apart(*traces), _apart([both[0][i]], [both[1][i]]))
    return rows


def last_window(data: tuple[PyTree, ...], window: int) -> tuple[PyTree, ...]:
    """The last steps of inputs, targets and mask; no reset, which would hide the trace."""
    return jax.tree.map(lambda a: a[-window:], data)


def _apart(one: list[Array], other: list[Array]) -> float:
    """The distance of two lists of arrays, over the length of the second."""
    squares = [(float(np.sum(np.abs(np.asarray(a) - np.asarray(b)) ** 2)), float(np.sum(np.abs(np.asarray(b)) ** 2)))
               for a, b in zip(one, other, strict=True)]  # fmt: skip
    distance, length = (sum(column) for column in zip(*squares, strict=True)) if squares else (0.0, 0.0)
    return float(np.sqrt(distance / length)) if length else float("nan")


def described(rows: Mapping[Path, Stale], path: Path) -> str:
    """The difference in words, for a reading."""
    stale = rows.get(path)
    if stale is None:
        return ""
    parts = [f"{what} {100 * value:.2g} %" for what, value in stale._asdict().items() if np.isfinite(value)]
    return f"  stale: {', '.join(parts)}" if parts else ""
