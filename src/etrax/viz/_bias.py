"""The bias of a rule's gradient along training: cosines with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from .._arguments import short
from .._errors import ArgumentError
from ..compiler.ir import format_path
from ..meter import Reading
from ..train import Epoch, Result
from ._cosines import draw_axes
from ._panels import COLOURS, MARKERS, panels, whole_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# By name, the cosine and the ends of its interval.
_Cosines: TypeAlias = Mapping[str, tuple[float, float, float]]
ALL = "all"


def bias(
    readings: Result | Sequence[Epoch] | Mapping[float, Reading], *, along: str = "epoch", ax: Axes | None = None
) -> Figure:
    """Curves of the cosine between a rule's gradient and the true one, each with the band that its interval spans.

    `readings` is what `Trainer(meter=...)` gave (a `Result`, or its history), or a dictionary from places on the axis
    to readings of a meter; `along` names the axis. All parameters together are black, those with the lowest cosines
    have a colour and a name.

    >>> import etrax, jax, jax.numpy as jnp
    >>> step = lambda p, h, x: (jnp.tanh(h @ p["u"] + x @ p["w"]),) * 2
    >>> params, xs = {"w": jnp.ones((2, 3)), "u": jnp.eye(3)}, jnp.ones((8, 2))
    >>> learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=jnp.zeros(3))
    >>> meter = learner.meter(lambda y, t: (y**2).mean())
    >>> at = {n: meter.measure(params, learner.init(), xs, key=jax.random.key(n)) for n in range(2)}
    >>> etrax.viz.bias(at, along="try").axes[0].get_legend_handles_labels()[1]
    ['all', 'u', 'w']
    """
    places = _places(readings)
    names = [name for name in next(iter(places.values())) if name != ALL]
    # (places, 3): cosine and the ends of its interval
    curves = {name: np.array([at[name] for at in places.values()], float) for name in (ALL, *names)}
    with np.errstate(invalid="ignore"):
        order = sorted(names, key=lambda name: float(np.nan_to_num(curves[name][:, 0], nan=1.0).mean()))
    named = sorted(order[: len(COLOURS) - 1], key=names.index)
    figure, (one,) = panels(1, ax, height=2.6)
    for k, name in enumerate((ALL, *named)):
        colour = "#000000" if name == ALL else COLOURS[k - 1]
        middle, low, high = curves[name].T
        one.fill_between(list(places), low, high, color=colour, alpha=0.15, lw=0)
        one.plot(
            list(places), middle, color=colour, marker=MARKERS[k], ms=4, lw=1.8 if name == ALL else 1.2, label=name
        )
    ends = {name: [float(v) for v in curve[:, 1] if np.isfinite(v)] or [1.0] for name, curve in curves.items()}
    draw_axes(one, list(places), {name: ends[name] for name in (ALL, *named)}, along, log=False)
    if len(places) > 1 and all(x == int(x) for x in places):
        whole_steps(one)
    one.set_ylabel("cosine with the true gradient", fontsize=9)
    return figure


def _places(readings: object) -> dict[float, _Cosines]:
    """What was measured at each place of the axis, by name."""
    if isinstance(readings, Result):
        readings = readings.history
    if isinstance(readings, Mapping) and readings and all(isinstance(r, Reading) for r in readings.values()):
        return {x: _of_reading(readings[x]) for x in sorted(readings)}
    every = readings if isinstance(readings, Sequence) and all(isinstance(e, Epoch) for e in readings) else ()
    measured = {float(e.epoch): e.cosines for e in every if e.cosines}
    if not measured:
        raise ArgumentError(
            f"`bias` has nothing to draw in {short(readings)}: pass what `Trainer(..., meter=8).fit` returned, or a "
            "dictionary of readings of a meter."
        )
    return measured


def _of_reading(reading: Reading) -> _Cosines:
    named = {format_path(path, "params").strip("'"): m for path, m in reading.parameters.items()}
    return {name: (m.cosine, *m.interval) for name, m in {**named, ALL: reading.whole}.items()}
