"""How far a gradient points where BPTT's does: one curve for each parameter."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from .._arguments import check_flag, short
from .._errors import ArgumentError
from ..testing import Comparison
from ._panels import COLOURS, MARKERS, name, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def cosines(
    comparisons: Mapping[float, Comparison], *, along: str = "window (steps)", log: bool = False, ax: Axes | None = None
) -> Figure:
    """Curves of the cosine between a learner's gradient and BPTT's, over window lengths, epochs or anything else.

    `comparisons` maps the place on the axis to what `etrax.testing.compare` found there; `along` names the axis.
    The parameters with the lowest cosines have a colour and a name, the others are grey.

    >>> import etrax, etrax.viz, jax.numpy as jnp
    >>> def step(params, h, x):
    ...     h = jnp.tanh(h @ params["u"] + x @ params["w"])
    ...     return h, h
    >>> params, h, x = {"w": jnp.ones((2, 3)), "u": jnp.eye(3)}, jnp.zeros(3), jnp.ones((8, 2))
    >>> learner = etrax.compile(step, "d_rtrl", x[0], params=params, hidden=h)
    >>> loss = lambda y, t: (y**2).mean()
    >>> at = {k: etrax.testing.compare(learner, loss, params, h, x, window=k) for k in (1, 2, 4)}
    >>> etrax.viz.cosines(at).axes[0].get_legend_handles_labels()[1]
    ['u (approximate)', 'w (approximate)']
    """
    legal = isinstance(comparisons, Mapping) and all(isinstance(c, Comparison) for c in comparisons.values())
    if legal and not all(isinstance(x, Real) for x in comparisons):
        raise ArgumentError("`cosines` takes a dictionary from numbers (the places on the axis) to comparisons.")
    check_flag("log", log)
    if not legal or not comparisons:
        raise ArgumentError(
            "`cosines` needs at least one comparison, such as `{1: etrax.testing.compare(..., window=1)}`."
        )
    places = sorted(comparisons)
    paths = [r.path for r in comparisons[places[0]].rows]
    curves = {p: [comparisons[x][p].cosine for x in places] for p in paths}
    named = sorted(sorted(paths, key=lambda p: float(np.mean(curves[p])))[: len(COLOURS)], key=paths.index)
    figure, (one,) = panels(1, ax, height=2.6)
    rest = [p for p in paths if p not in named]
    for k, p in enumerate(rest):
        one.plot(places, curves[p], color="#b0b0b0", lw=1, label=f"{len(rest)} others" if k == 0 else None)
    for k, p in enumerate(named):
        label = f"{name(p, 'params')} ({comparisons[places[-1]][p].verdict.kind})"
        one.plot(places, curves[p], color=COLOURS[k], marker=MARKERS[k], ms=4.5, lw=1.4, label=label)
    draw_axes(one, places, {**curves}, along, log)
    return figure


def draw_axes(ax: Axes, places: list[float], curves: Mapping[Hashable, list[float]], along: str, log: bool) -> None:
    """Limits that hold all curves and the one, ticks, names, and a legend below."""
    from matplotlib.ticker import MaxNLocator

    if log:
        ax.set_xscale("log", base=2)
    if len(places) <= 8:
        ax.set_xticks(places, [f"{x:g}" for x in places])
        ax.minorticks_off()
    low = min(min(c) for c in curves.values())
    ax.set_ylim(min(low - 0.05 * (1 - low), 0.95), 1 + 0.05 * max(1 - low, 0.05))
    ax.axhline(1, color="#808080", lw=0.8, zorder=0)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_formatter("{x:.3g}")
    ax.set_xlabel(along if isinstance(along, str) else short(along), fontsize=9)
    ax.set_ylabel("cosine with BPTT", fontsize=9)
    ax.tick_params(labelsize=8)
    ax.legend(
        fontsize=7,
        loc="upper left",
        bbox_to_anchor=(-0.2, -0.26),
        frameon=False,
        ncols=2,
        borderaxespad=0,
        columnspacing=1,
    )
