"""Weights that meet data element by element: biases, gains, leaks, thresholds, and whatever no other family serves.

The weight itself, broadcast to the op's shape, is the traced quantity: y = w. An element of w then needs an entry of
its own for each position that it reaches, which the broadcast provides.
"""

from __future__ import annotations

from ._base import Columns, OpRule, sum_unrolled

ALIGNED = OpRule(
    name="elementwise",
    mixes=False,
    accepts=lambda call: True,
    trace_shape=lambda call: call.out.shape,
    outer=lambda call, fixed, u, c: sum_unrolled(c),
    spread=lambda call, fixed, p: p,
    apply=lambda call, fixed, trace, g: trace * g,
    grad=lambda call, fixed, u, g: sum_unrolled(g),
    narrow=True,
    columns=lambda call: Columns(-1, -1, new=not call.out.shape),
)
