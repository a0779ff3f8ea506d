r"""How far the gradient of a rule is from the true one, while a stream goes by and without BPTT.

With directions v ~ N(0, 1) of one parameter, the pairs (g·v, ĝ·v) of the true and the rule's gradient are normal with
the correlation cos(g, ĝ). The first number is exact (`_tangents.py`), the second a plain product. Their sample
correlation estimates the cosine, and Fisher's transformation of it gives an interval.

Where a stretch can be run twice, ĝ itself is a direction in the second run, so that g·ĝ is exact. Only the part of g
that is orthogonal to ĝ is then estimated, by a χ² of as many degrees of freedom as there are directions. The interval
is narrow where the cosine is near one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._arguments import check_key, check_whole, short
from .._compat import is_inexact, transfers_meant
from .._errors import ArgumentError, ArgumentTypeError
from ..compiler.ir import LossFunction, Path, PyTree, Role, format_path
from ..learn import Learner, LearnerState, Losses, check_learner, check_window, strong
from ._staleness import Stale, described, last_window, staleness
from ._tangents import Direction, push_arguments, zero_tangents


class MeterState(NamedTuple):
    """A stretch that is being measured.

    Parameters stay those of the beginning, whatever the learner does meanwhile. `state` is the rule's own state along
    the stretch, and `grads` the sum of its gradients; `tangents` and `products` (g·v) belong to the directions. The
    last set of directions is the one that the caller asked for, if there is one.
    """

    params: PyTree
    state: LearnerState
    directions: list[list[Array]]
    tangents: list[list[Array]]
    products: list[Array]
    grads: PyTree
    weight: Array


class Measured(NamedTuple):
    """What is known of one parameter's gradient.

    `cosine` is that between the rule's gradient and the true one, `interval` holds it in about 95 of 100
    measurements, `norm` estimates the length of the true gradient. Where a gradient is zero there is no angle:
    `cosine` is NaN, and the interval is all of [-1, 1].
    """

    cosine: float
    interval: tuple[float, float]
    norm: float


NOTHING = Measured(math.nan, (-1.0, 1.0), 0.0)


class Reading(NamedTuple):
    """A measurement of each parameter, by path, and of all together (`whole`).

    `slope` is g·v/‖v‖ for the direction v that was asked for, the change of the mean loss per unit of v; None if no
    direction was given. An update along -v goes downhill where it is positive. `staleness` says by path how far the
    trace of a learner whose parameters moved along the stretch is from that of a replay; it is empty if that was not
    asked for.
    """

    parameters: Mapping[Path, Measured]
    slope: float | None
    whole: Measured = NOTHING
    staleness: Mapping[Path, Stale] = {}

    def __str__(self) -> str:
        names = {path: format_path(path, "params") for path in self.parameters}
        width = max(map(len, names.values()), default=3)
        shown = [(names[path], m, described(self.staleness, path)) for path, m in self.parameters.items()]
        rows = [
            f"{name:{width}}  cosine {m.cosine:6.3f}  [{m.interval[0]:6.3f}, {m.interval[1]:6.3f}]{stale}"
            for name, m, stale in [*shown, ("all", self.whole, "")]
        ]
        return "\n".join(rows if self.slope is None else [*rows, f"slope along the direction: {self.slope:.4g}"])


class Meter:
    """Made by `learner.meter(loss_fn, window, probes)`.

    >>> import etrax, jax, jax.numpy as jnp
    >>> step = lambda w, h, x: (jnp.tanh(h @ w["rec"] + x @ w["in"]),) * 2
    >>> w = {"rec": jnp.eye(4) * 0.5, "in": jnp.ones((3, 4)) * 0.3}
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=w, hidden=jnp.zeros(4))
    >>> meter = learner.meter(lambda o, y: ((o - y) ** 2).mean(), window=1, probes=8)
    >>> xs, ys = jax.random.normal(jax.random.key(1), (30, 3)), jnp.zeros((30, 4))
    >>> reading = meter.measure(w, learner.init(), xs, ys, key=jax.random.key(0))
    >>> low, high = reading.parameters["in",].interval
    >>> 0 < low <= reading.parameters["in",].cosine <= high <= 1
    True
    """

    def __init__(self, learner: Learner, loss_fn: LossFunction, window: int, probes: int):
        check_learner(learner)
        self.learner, self.window = learner, check_window(window)
        self.probes = check_whole("probes", probes, "directions", least=4)
        self._losses = Losses(learner.facts.step, loss_fn, "sum", learner.program.decode)
        self._gradient = learner.value_and_grad(loss_fn, self.window, "sum")
        leaves = learner.facts.step.select(Role.PARAM)
        # Numbers among all parameters; directions count only those that have derivatives.
        self._moving = [i for i, leaf in enumerate(leaves) if is_inexact(leaf.aval)]
        self._learned = [i for i in self._moving if i not in learner.program.frozen]
        if not self._learned:
            raise ArgumentError("`meter`: every parameter is frozen or holds whole numbers, so none has a gradient.")
        self.paths = [leaves[i].path for i in self._learned]
        self._push = jax.jit(self._new_push)

    @transfers_meant()
    def init(self, params: PyTree, state: LearnerState, key: Array, direction: PyTree = None) -> MeterState:
        """Begin a stretch at this state. What the parameters did before it does not count, in either gradient.

        `direction` is like the parameters: the last update, for its slope along the true gradient of this stretch.
        """
        program, learner = self.learner.program, self.learner
        by_lane = learner.resets.lanes_for(state, None)
        (learner if by_lane is None else by_lane).program.check_both(params, state)
        leaves = program.params(params)
        keys = jax.random.split(check_key("key", key), len(leaves))
        random = [[jax.random.normal(keys[i], (self.probes, *leaves[i].shape), leaves[i].dtype)] for i in self._learned]
        asked = [] if direction is None else [[a[None] for a in self._direction_leaves(direction)]]
        fresh = learner.init(params, state.hidden)
        values = [*random, *asked]
        states = program.states(state.hidden)
        return MeterState(
            strong(params), fresh, values, zero_tangents(states, self._directions(values)),
            [jnp.zeros(v[0].shape[0]) for v in values], jax.tree.map(jnp.zeros_like, params), jnp.zeros(()),
        )  # fmt: skip

    def _direction_leaves(self, direction: PyTree) -> list[Array]:
        leaves = self.learner.program.params(direction, "direction")
        return [leaves[i] for i in self._moving]

    def _directions(self, values: list[list[Array]]) -> list[Direction]:
        """Which parameters each set of directions moves: one each, then all of them for the one that was asked for."""
        place = {i: n for n, i in enumerate(self._moving)}
        one_each = [(place[i],) for i in self._learned]
        everything = tuple(range(len(self._moving)))
        return [Direction(one_each[n] if n < len(one_each) else everything, v) for n, v in enumerate(values)]

    def update(
        self, measured: MeterState, inputs: PyTree, targets: PyTree = None, mask: PyTree = None, reset: PyTree = None
    ) -> MeterState:
        """Go on by a piece of the stretch: as `learner.value_and_grad` takes it, and about `probes` forward passes."""
        if not isinstance(measured, MeterState):
            raise ArgumentTypeError(f"`measured` is {short(measured)}; pass what `meter.init` returned.")
        (_, grads), state = self._gradient(measured.params, measured.state, inputs, targets, mask, reset)
        data = (inputs, targets, mask, reset, self.learner.resets.start_of(reset, None))
        tangents, products, weight = self._push(
            measured.params, measured.state.hidden, measured.directions, measured.tangents, *data
        )
        sums = jax.tree.map(jnp.add, measured.grads, grads)
        totals = [a + b for a, b in zip(measured.products, products, strict=True)]
        return measured._replace(
            state=state, tangents=tangents, products=totals, grads=sums, weight=measured.weight + weight
        )

    def _new_push(
        self, params: PyTree, hidden: PyTree, values: list[list[Array]], tangents: list[list[Array]], inputs: PyTree,
        targets: PyTree, mask: PyTree, reset: PyTree, initial: PyTree,
    ) -> tuple[list[list[Array]], list[Array], Array]:  # fmt: skip
        by_lane = self.learner.resets.lanes_for(None, reset)
        program = (self.learner if by_lane is None else by_lane).program
        arguments = program.arguments(params, hidden, inputs, targets, mask, self._losses, reset, initial)
        return push_arguments(program.facts, self._losses, arguments, targets, self._directions(values), tangents)

    def read(self, measured: MeterState) -> Reading:
        """Cosines by the correlation of g·v and ĝ·v, with the interval of Fisher's transformation."""
        grads = self.learner.program.params(measured.grads)
        total = max(float(measured.weight), np.finfo(float).tiny)
        pairs = []
        for n, i in enumerate(self._learned):
            true = np.asarray(measured.products[n], float) / total
            values = np.asarray(measured.directions[n][0]).reshape(self.probes, -1)
            # For a complex parameter dL = Re(g dθ), so that products with directions are real parts.
            pairs.append((true, np.real(values @ np.asarray(grads[i]).reshape(-1)) / total))
        rows = {path: _by_correlation(*pair) for path, pair in zip(self.paths, pairs, strict=True)}
        asked = len(measured.directions) > len(self._learned)
        slope = self._slope(measured.products[-1][0], measured.directions[-1], total) if asked else None
        # The directions of all parameters are together one direction of the whole.
        true, rule = (np.sum(values, 0) for values in zip(*pairs, strict=True))
        return Reading(rows, slope, _by_correlation(true, rule))

    @staticmethod
    def _slope(product: Array, direction: list[Array], total: float) -> float:
        """The change of the mean loss per unit of a direction."""
        squares = sum(float(jnp.vdot(v, v).real) for v in direction)
        return float(product) / total / math.sqrt(squares) if squares else math.nan

    def measure(
        self, params: PyTree, state: LearnerState, inputs: PyTree, targets: PyTree = None, mask: PyTree = None,
        reset: PyTree = None, *, key: Array, now: LearnerState | None = None,
    ) -> Reading:  # fmt: skip
        """One stretch that is run twice: first the rule's gradient, then its exact product with the true one.

        The intervals are much narrower than those of `read`. `slope` is that of the true gradient along the rule's.
        `now` is the state of a learner that went through this stretch from `state` on while its parameters moved, up to
        `params`: its trace is held against a replay of the stretch at `params`, as `staleness` of the reading.
        """
        fresh = self.learner.init(params, state.hidden)
        (_, grads), _ = self._gradient(params, fresh, inputs, targets, mask, reset)
        # dL = Re(g dθ): along its gradient a complex parameter moves by the conjugate of it.
        measured = self.init(params, state, key, direction=jax.tree.map(jnp.conj, grads))
        leaves = self.learner.program.params(grads)
        exact = [[jnp.conj(leaves[i])[None]] for i in self._learned]
        values = [*[[jnp.concatenate([a, b]) for a, b in zip(r, e, strict=True)]
                    for r, e in zip(measured.directions, exact, strict=False)], measured.directions[-1]]  # fmt: skip
        states = self.learner.program.states(state.hidden)
        tangents = zero_tangents(states, self._directions(values))
        data = (inputs, targets, mask, reset, self.learner.resets.start_of(reset, None))
        _, products, weight = self._push(params, state.hidden, values, tangents, *data)
        total = max(float(weight), np.finfo(float).tiny)
        parts = []
        for n, i in enumerate(self._learned):
            *random, along = np.asarray(products[n], float) / total
            drawn = np.asarray(values[n][0])[:-1].reshape(self.probes, -1)
            parts.append((np.asarray(random), along, drawn, np.asarray(leaves[i]).reshape(-1)))
        rows = {path: _by_projection(*part) for path, part in zip(self.paths, parts, strict=True)}
        slope = self._slope(products[-1][0], measured.directions[-1], total)
        reading = Reading(rows, slope, _by_projection(*_joined(parts)))
        if now is None:
            return reading
        return reading._replace(staleness=self._staleness(params, state, now, (inputs, targets, mask), reset))

    def _staleness(
        self, params: PyTree, before: LearnerState, now: LearnerState, data: tuple[PyTree, ...], reset: PyTree
    ) -> dict[Path, Stale]:
        self.learner.refuse_by_call("staleness")
        by_lane = self.learner.resets.lanes_for(now, reset)
        learner = self.learner if by_lane is None else by_lane
        now = learner.resets.in_lanes(now)
        learner.program.check_both(params, now)
        _, replayed = self._gradient(params, before, *data, reset)
        pair = (learner.resets.in_lanes(replayed), last_window(data, self.window))
        return staleness(learner, self._gradient, params, now, *pair)


# g·v of random directions, g·ĝ, the directions, and ĝ
_Part: TypeAlias = tuple[np.ndarray, float, np.ndarray, np.ndarray]


def _joined(parts: list[_Part]) -> _Part:
    """The measurements of all parameters as those of one, whose directions are theirs side by side."""
    random, along, drawn, rule = zip(*parts, strict=True)
    return np.sum(random, 0), float(np.sum(along)), np.concatenate(drawn, 1), np.concatenate(rule)


def _by_correlation(true: np.ndarray, rule: np.ndarray) -> Measured:
    """From g·v and ĝ·v for the same random directions v."""
    count, norm = true.size, float(np.sqrt(np.mean(true**2)))
    lengths = float(np.linalg.norm(true) * np.linalg.norm(rule))
    if not (np.isfinite(lengths) and lengths > 0):
        return Measured(math.nan, (-1.0, 1.0), norm)
    cosine = float(np.clip(true @ rule / lengths, -1, 1))
    if abs(cosine) > 1 - 1e-12:
        return Measured(cosine, (cosine, cosine), norm)
    # The means are known to be zero, which is worth one sample more than Fisher's 1 / √(n − 3).
    middle, half = math.atanh(cosine), 1.96 / math.sqrt(count - 2)
    return Measured(cosine, (math.tanh(middle - half), math.tanh(middle + half)), norm)


def _by_projection(random: np.ndarray, along: float, directions: np.ndarray, rule: np.ndarray) -> Measured:
    """From g·v for random directions and g·ĝ itself."""
    from scipy.stats import chi2

    length = float(np.linalg.norm(rule))
    if not (np.isfinite(length) and length > 0 and np.isfinite([*random, along]).all()):
        return Measured(math.nan, (-1.0, 1.0), float(np.sqrt(np.mean(random**2))))
    onto = float(along) / length  # the part of g along ĝ
    rest = random - onto * np.real(directions @ rule) / length  # (g − that part) · v
    square = float(rest @ rest)
    size = rule.size * (2 if np.iscomplexobj(rule) else 1)
    if size == 1 or square <= 1e-24 * onto**2 * random.size:
        square = 0.0
    if square == 0 and onto == 0:
        return Measured(math.nan, (-1.0, 1.0), 0.0)

    def cosine(orthogonal_square: float) -> float:
        return onto / math.sqrt(onto**2 + orthogonal_square)

    ends = sorted(cosine(square / float(chi2.ppf(q, random.size))) for q in (0.025, 0.975))
    middle = square / random.size
    return Measured(cosine(middle), (ends[0], ends[1]), math.sqrt(onto**2 + middle))


def meter(learner: Learner, loss_fn: LossFunction, window: int = 1, probes: int = 8) -> Meter:
    """A meter of a learner's bias: `learner.meter(loss_fn, window, probes)`."""
    return Meter(learner, loss_fn, window, probes)
