"""A learner's gradient beside BPTT's, parameter by parameter; and whether the compiler under JAX is at fault."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import check_number, short
from .._errors import ArgumentError, EtraxError
from .._sums import sums_go_wrong, what_is_wrong
from ..compiler.ir import LossFunction, Path, PyTree, Role, format_path, is_at, leaves_with_paths
from ..learn import Learner, check_learner
from ..report import monospace
from ..rules import Kind, Verdict
from ._oracles import bptt


def compiler_fault() -> str | None:
    """What is known to be wrong with the compiler of this process, and the remedy; None if nothing is found.

    >>> import etrax
    >>> fault = etrax.testing.compiler_fault()
    >>> fault is None or "XLA_FLAGS" in fault
    True
    """
    return what_is_wrong() if sums_go_wrong() else None


class GradientError(EtraxError, AssertionError):
    """A gradient that is not what its verdict promises."""


@dataclass(frozen=True)
class Row:
    """One parameter: cosine with BPTT's gradient, relative error, verdict, whether its gradient is not wanted, whether
    BPTT's is a number at all, and whether the gradient is exactly zero where BPTT's is not."""

    path: Path
    cosine: float
    relative_error: float
    verdict: Verdict
    frozen: bool = False
    bptt_finite: bool = True
    zero: bool = False


@dataclass(frozen=True)
class Comparison:
    """The table of `compare`. `print` it, index it by path, or `check()` it.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> loss = lambda output, target: ((output - target) ** 2).mean()
    >>> xs, ys = jnp.ones((6, 3)), jnp.zeros((6, 4))
    >>> table = etrax.testing.compare(learner, loss, learner.params, learner.hidden, xs, ys, window=2).check()
    >>> round(table[()].cosine, 6)
    1.0
    """

    rows: tuple[Row, ...]
    window: int
    tolerance: float
    steps: int = 0

    def __getitem__(self, path: Path | str) -> Row:
        for row in self.rows:
            if is_at(row.path, path):
                return row
        names = ", ".join(format_path(r.path, "params") for r in self.rows)
        raise ArgumentError(f"there is no parameter {short(path)} in this comparison; there are {names}.")

    def check(self) -> Comparison:
        """Raise if a parameter with verdict `exact` or `unused` differs from BPTT; else return itself.

        An `approximate` gradient is not exactly zero where BPTT's is not: that raises, too, if the sequence has at
        least two windows. In windows shorter than `verdict.least_window` the verdict is `truncated`, which says so.
        """
        wrong = [
            r
            for r in self.rows
            if r.verdict.kind in (Kind.EXACT, Kind.UNUSED) and not r.frozen and not r.relative_error <= self.tolerance
        ]
        diverged = [format_path(r.path, "params") for r in self.rows if not r.bptt_finite]
        if wrong and diverged and all(math.isnan(r.relative_error) for r in wrong):
            raise GradientError(
                f"BPTT's own gradient is not finite (of {', '.join(diverged)}), so there is nothing to compare with: "
                "the model leaves all bounds on these data. `etrax.compile(..., check_finite=True)` says at which "
                "step; smaller weights, inputs or time steps help."
            )
        if wrong:
            lines = "\n".join(
                f"  {format_path(r.path, 'params')}: relative error {r.relative_error:.3g}, {r.verdict.kind}"
                for r in wrong
            )
            raise GradientError(
                f"these gradients should equal BPTT's within {self.tolerance:g} and do not (window {self.window}):\n"
                f"{lines}\n" + (compiler_fault() or "Please report the model: a verdict `exact` is a promise.")
            )
        if silent := [format_path(r.path, "params") for r in self.rows if self._is_silent(r)]:
            raise GradientError(
                f"the gradient of {', '.join(silent)} is exactly zero where BPTT's is not (window {self.window}), and "
                "the model does not show why: a delay whose length is computed while it runs, perhaps. Longer windows "
                "help, or `etrax.rtrl()`."
            )
        return self

    def _is_silent(self, row: Row) -> bool:
        approximate = row.verdict.kind_at(self.window) is Kind.APPROXIMATE
        return approximate and row.zero and not row.frozen and self.steps >= 2 * self.window

    def __str__(self) -> str:
        width = max([len("parameter"), *(len(format_path(r.path, "params")) for r in self.rows)])
        head = (
            f"{'parameter':<{width}}  {'cosine':>8}  {'rel. error':>10}  verdict   (window {self.window}, against BPTT)"
        )
        body = [
            f"{format_path(r.path, 'params'):<{width}}  {r.cosine:8.4f}  {r.relative_error:10.2e}  "
            + str(r.verdict.kind_at(self.window))
            for r in self.rows
        ]
        return "\n".join([head, *body])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return monospace(self)


def compare(
    learner: Learner, loss_fn: LossFunction, params: PyTree, hidden: PyTree, inputs: PyTree, targets: PyTree = None,
    window: int = 1, mask: jax.Array | None = None, tolerance: float | None = None, *, reset: jax.Array | None = None,
) -> Comparison:  # fmt: skip
    """Compare a learner's gradient over a sequence with BPTT's.

    - `learner`: what `etrax.compile` returned.
    - `loss_fn`: `loss_fn(output, target) -> scalar`, the loss of one step.
    - `params`, `hidden`: the parameters and the hidden state to start from; None stands for those of the learner.
    - `inputs`, `targets`: a short sequence, time first; several inputs as a tuple.
    - `window`: shorter than the sequence. With a single window every rule equals BPTT.
    - `mask`, `reset`: as in `value_and_grad`; a reset returns to `hidden`.
    - `tolerance`: the relative error allowed for `exact`; by default 1e-9 in float64, and otherwise what the precision
      of a parameter allows.

    >>> import etrax, jax.numpy as jnp
    >>> def step(params, h, x):
    ...     h = 0.9 * h + x @ params["w"]
    ...     return h, h
    >>> params, h, x = {"w": jnp.ones((3, 4))}, jnp.zeros(4), jnp.ones((7, 3))
    >>> learner = etrax.compile(step, "d_rtrl", x[0], params=params, hidden=h)
    >>> table = etrax.testing.compare(learner, lambda y, t: (y**2).mean(), params, h, x, window=2).check()
    >>> round(table[("w",)].cosine, 3)
    1.0
    """
    check_learner(learner)
    if tolerance is not None:
        check_number("compare", "tolerance", tolerance, 0, math.inf, "of at least 0")
    params, hidden = (learner.params if params is None else params), (learner.hidden if hidden is None else hidden)
    data, initial = (inputs, targets, mask, reset), None if reset is None else hidden
    (_, got), _ = learner.value_and_grad(loss_fn, window=window)(
        params, learner.init(params, hidden), *data, initial=initial
    )
    _, want = bptt(learner, loss_fn)(params, hidden, *data, initial=initial)
    frozen = {learner.facts.step.select(Role.PARAM)[i].path for i in learner.rule.frozen(learner.facts)}
    rows, names = [], {leaf.path: leaf.path for leaf in learner.facts.step.select(Role.PARAM)}
    for (path_in_tree, g), (_, w) in zip(leaves_with_paths(got), leaves_with_paths(want), strict=True):
        path = names[path_in_tree]  # by which people call it
        finite = bool(jnp.isfinite(jnp.asarray(w)).all())
        zero = bool(jnp.any(jnp.asarray(w))) and not bool(jnp.any(jnp.asarray(g)))
        rows.append(Row(path, *_distance(g, w), learner.report.verdicts[path], path in frozen, finite, zero))
    if tolerance is None:
        inexact = [a.dtype for a in jax.tree.leaves(want) if jnp.issubdtype(a.dtype, jnp.inexact)]
        bits = min((jnp.finfo(dtype).bits for dtype in inexact), default=64)
        tolerance = 5e-2 if bits <= 16 else 1e-4 if bits <= 32 else 1e-9
    leaves = jax.tree.leaves(data)
    return Comparison(tuple(rows), window, tolerance, leaves[0].shape[0] if leaves else 0)


def _distance(got: jax.Array, want: jax.Array) -> tuple[float, float]:
    kind = np.complex128 if jnp.iscomplexobj(want) else np.float64
    g, w = (np.asarray(jnp.asarray(a)).astype(kind).ravel() for a in (got, want))
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is said by who asked
        size, error = float(np.linalg.norm(w)), float(np.linalg.norm(g - w))
    if size == 0:
        return (1.0, 0.0) if not g.any() else (0.0, float("inf"))
    cosine = float(np.real(np.vdot(w, g))) / (size * float(np.linalg.norm(g))) if g.any() else 0.0
    return cosine, error / size
