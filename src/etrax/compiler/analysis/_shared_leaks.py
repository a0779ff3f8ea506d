"""Few leaks in place of many: what leaky units with constant leaks remember, as sums of shared memories.

    λ^t ≈ Σ_j w_j(λ) κ_j^t        for every leak λ of a layer, and every t ≥ 0

The κ_j are Chebyshev nodes in log(−log λ), on which time constants lie evenly, over the range of the leaks. The weights
of each leak come from interpolation between the nodes or from least squares over t: whichever has the smaller error.
Where there are no more different leaks than nodes, each leak is a node, and nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Every t is looked at up to this one; behind it, t on a grid whose logarithm has this step.
_EACH, _STEP = 4096, 1 / 512
# max_x |d²/ds² exp(−x)| for x = exp(s): bounds by how much the error may rise between two points of the grid.
_CURVATURE = 0.31
# Time constants after which exp(−t / τ) is far below rounding.
_TAIL = 45.0


@dataclass(frozen=True, eq=False)
class SharedLeaks:
    """The shared leaks κ, of shape (P,), and for each unit its weights w, of shape (P, units).

    `error` is no less than |λ^t − Σ_j w_j κ_j^t| of any unit at any t; `different` is how many leaks the units have.
    """

    leaks: np.ndarray
    weights: np.ndarray
    error: float
    different: int


def shared_leaks(units: np.ndarray, count: int) -> SharedLeaks | None:
    """So many leaks for units with these; None if they cannot be shared: beyond `count`, only those in (0, 1) can.

    The shared leaks are rounded to the type of those of the units, and their error is that after rounding.
    """
    if not np.isfinite(units).all():
        return None
    each, unit = np.unique(units, return_inverse=True)
    unit = unit.reshape(-1)
    if len(each) <= count:
        return SharedLeaks(each, np.eye(len(each))[:, unit], 0.0, len(each))
    if each[0] <= 0 or each[-1] >= 1 or count < 1:
        return None
    rates = -np.log(each.astype(np.float64))
    nodes = np.unique(_nodes(rates, count).astype(units.dtype))
    if nodes[0] <= 0 or nodes[-1] >= 1:
        return None
    at_nodes = -np.log(nodes.astype(np.float64))
    fits = [_interpolated(rates, at_nodes), _least_squares(rates, at_nodes)]
    errors = np.stack([_worst_errors(rates, at_nodes, weights) for weights in fits])
    weights = np.where(errors[0] <= errors[1], *fits)
    return SharedLeaks(nodes, weights[:, unit], float(errors.min(0).max()), len(each))


def fewest_shared_leaks(units: np.ndarray, most: int, error: float) -> SharedLeaks | None:
    """As few shared leaks as keep the error below a bound, or each leak if those are few; None if `most` do not."""
    each = np.unique(units)
    if len(each) <= most:
        return shared_leaks(units, most)
    some = np.r_[each[:: len(each) // 64 + 1], each[-1:]]  # of the same range: enough to tell that a count is too small
    for count in range(2, most + 1):
        rough = shared_leaks(some, count)
        if rough is None:
            return None
        shared = shared_leaks(units, count) if rough.error <= error else None
        if shared is not None and shared.error <= error:
            return shared
    return None


def _nodes(rates: np.ndarray, count: int) -> np.ndarray:
    """Leaks at the Chebyshev nodes of the range of log(rate), where a leak is exp(−rate)."""
    low, high = np.log(rates.min()), np.log(rates.max())
    angles = (2 * np.arange(count) + 1) * np.pi / (2 * count)
    return np.exp(-np.exp((low + high) / 2 + (high - low) / 2 * np.cos(angles)))


def _interpolated(rates: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Lagrange's polynomials in log(rate), one for each node, at the leaks: their sum of sizes stays small."""
    x, at = np.log(rates), np.log(nodes)
    weights = np.ones((len(at), len(x)))
    for j in range(len(at)):
        others = np.delete(at, j)
        weights[j] = np.prod((x - others[:, None]) / (at[j] - others[:, None]), 0)
    return weights


def _least_squares(rates: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """The weights by which the errors at t, spread evenly over log(t), are least in the mean square."""
    times = np.unique(np.r_[np.arange(32.0), np.geomspace(1, max(_TAIL / rates.min(), 32), 400).round()])
    return np.linalg.lstsq(_powers(times, nodes), _powers(times, rates), rcond=1e-12)[0]


def _powers(times: np.ndarray, rates: np.ndarray) -> np.ndarray:
    return np.exp(-times[:, None] * rates)


def _worst_errors(rates: np.ndarray, nodes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """For each leak, a bound on its error at all t ≥ 0.

    Up to some t it is computed at each. Between two points of the grid behind it, at log(t) = s and s + h, a function
    of log(t) rises by at most h²/8 times the greatest size of its second derivative. Behind the grid, all terms vanish.
    """
    end = _TAIL / min(rates.min(), nodes.min())
    each = np.arange(min(np.ceil(end), _EACH) + 1)
    beyond = np.exp(np.arange(np.log(_EACH), np.log(end) + _STEP, _STEP)) if end > _EACH else np.zeros(0)
    times, size = np.r_[each, beyond], 1 + np.abs(weights).sum(0)
    powers = _powers(times, nodes)
    errors = np.empty(len(rates))
    for first in range(0, len(rates), 256):  # many units at once would take much memory
        some = slice(first, first + 256)
        errors[some] = np.abs(_powers(times, rates[some]) - powers @ weights[:, some]).max(0)
    between = size * _CURVATURE * _STEP**2 / 8 if len(beyond) else 0
    rounding = 4 * np.finfo(np.float64).eps * size
    return errors + between + rounding + size * np.exp(-_TAIL)
