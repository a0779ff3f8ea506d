"""Eligibility traces over time as heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .._arguments import check_whole
from .._errors import ArgumentError
from ..compiler.ir import Path
from ._panels import STEPS, as_paths, check_recording, few, name, panels, whole_steps
from ._record import Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def traces(
    recording: Recording, *, parameters: Sequence[Path] | None = None, states: Sequence[Path] | None = None,
    rows: int = 48, ax: Axes | None = None,
) -> Figure:  # fmt: skip
    """Heat maps of e_t[θ] = Σ_p ∂h_t[p]/∂θ: one for each parameter and state, a row for each number of θ.

    Of larger parameters `rows` numbers are shown, evenly apart. Colours are symmetric around zero; a complex trace
    is shown by its size.

    >>> import etrax, etrax.viz, jax.numpy as jnp
    >>> def step(params, h, x):
    ...     h = 0.5 * h + x @ params["w"]
    ...     return h, h
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(2), params={"w": jnp.ones((2, 1))}, hidden=jnp.zeros(1))
    >>> len(etrax.viz.traces(etrax.viz.record(learner, jnp.ones((3, 2)))).axes)  # a heat map and its scale
    2
    """
    check_recording(recording)
    check_whole("rows", rows, "rows")
    chosen = _chosen(recording, parameters, states)
    figure, axes = panels(len(chosen), ax)
    for (parameter, state), one in zip(chosen, axes, strict=True):
        _heat_map(figure, one, recording, (parameter, state), rows)
    axes[-1].set_xlabel(STEPS, fontsize=9)
    return figure


def _heat_map(figure: Figure, ax: Axes, recording: Recording, key: tuple[Path, Path], rows: int) -> None:
    trace = recording.traces[key]
    trace = np.abs(trace) if np.iscomplexobj(trace) else trace
    flat = trace.reshape(len(trace), -1)
    shown = few(flat.shape[1], rows)
    top = float(np.abs(flat).max()) or 1.0
    time = recording.time
    image = ax.imshow(
        flat[:, shown].T,
        aspect="auto",
        interpolation="nearest",
        cmap="PuOr_r",
        vmin=-top,
        vmax=top,
        extent=(time[0] - 0.5, time[-1] + 0.5, len(shown) - 0.5, -0.5),
    )
    ax.set_title(f"{name(key[0], 'params')} on {name(key[1], 'hidden')}", fontsize=9, loc="left")
    ax.set_ylabel("element" if len(shown) == flat.shape[1] else f"{len(shown)} of {flat.shape[1]} elements", fontsize=8)
    ax.tick_params(labelsize=8)
    whole_steps(ax)
    whole_steps(ax, "y")
    bar = figure.colorbar(image, ax=ax, pad=0.02, ticks=[-top, 0, top], format="%.2g")
    bar.ax.tick_params(labelsize=8)


def _chosen(
    recording: Recording, parameters: Sequence[Path] | None, states: Sequence[Path] | None
) -> list[tuple[Path, Path]]:
    asked = {"parameters": parameters, "states": states}
    traced = zip(*recording.traces, strict=True) if recording.traces else [(), ()]
    wanted = [
        None if w is None else as_paths(what, w, paths)
        for (what, w), paths in zip(asked.items(), traced, strict=True)
    ]  # fmt: skip
    chosen = [
        key for key in recording.traces if all(w is None or k in w for k, w in zip(key, wanted, strict=True))
    ]  # fmt: skip
    if not chosen:
        names = "; ".join(f"{name(p, 'params')} on {name(s, 'hidden')}" for p, s in recording.traces)
        raise ArgumentError(
            f"`traces` finds nothing to draw: under {recording.rule} the recording holds {names or 'no trace'}"
            + (", so choose from these." if names else ".")
        )
    return chosen
