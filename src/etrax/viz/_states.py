"""Hidden states and spikes over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .._arguments import as_numbers, check_whole
from .._errors import ArgumentError
from ..compiler.ir import Path
from ._panels import COLOURS, STEPS, as_paths, check_recording, few, name, panels, units_of, whole_steps
from ._record import Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def states(
    recording: Recording, *, states: Sequence[Path] | None = None, units: int = 4, sample: int | None = None,
    ax: Axes | None = None,
) -> Figure:  # fmt: skip
    """Lines of some units of each hidden state, evenly apart; of a batch, `sample` takes one.

    >>> import etrax, etrax.viz, jax.numpy as jnp
    >>> def step(params, h, x):
    ...     h = 0.5 * h + x @ params["w"]
    ...     return h, h
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(2), params={"w": jnp.ones((2, 3))}, hidden=jnp.zeros(3))
    >>> len(etrax.viz.states(etrax.viz.record(learner, jnp.ones((5, 2)))).axes[0].lines)
    3
    """
    check_recording(recording)
    check_whole("units", units, "units")
    paths = list(recording.states) if states is None else as_paths("states", states, recording.states)
    for path in paths:
        if path not in recording.states:
            names = ", ".join(name(p, "hidden") for p in recording.states)
            raise ArgumentError(f"the recording has no state {name(path, 'hidden')}; it has {names}.")
    figure, axes = panels(len(paths), ax)
    for path, one in zip(paths, axes, strict=True):
        values = units_of(recording.states[path], sample)
        values = np.abs(values) if np.iscomplexobj(values) else values
        for k, unit in enumerate(few(values.shape[1], min(units, len(COLOURS)))):
            one.plot(recording.time, values[:, unit], color=COLOURS[k], lw=1.4, label=f"unit {unit}")
        one.set_title(name(path, "hidden"), fontsize=9, loc="left")
        one.tick_params(labelsize=8)
        one.margins(x=0.02)
        whole_steps(one)
        one.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, handlelength=1.2)
    axes[-1].set_xlabel(STEPS, fontsize=9)
    return figure


def raster(
    spikes: Recording | np.ndarray, *, state: Path | None = None, sample: int | None = None, ax: Axes | None = None
) -> Figure:  # fmt: skip
    """A mark for every spike: time to the right, a row for each neuron. Whatever is not zero is a spike.

    `spikes` is an array (time, neurons), or (time, batch, neurons) with a `sample`; or a recording with the path of a
    `state` (or of an output) that holds spikes.

    >>> import etrax.viz, numpy as np
    >>> etrax.viz.raster(np.eye(4)).axes[0].get_ylabel()
    'neuron'
    """
    first = 1
    if isinstance(spikes, Recording):
        first = int(spikes.time[0])
        spikes = _spikes(spikes, state)
    values = units_of(as_numbers("`spikes`", spikes), sample)
    figure, (one,) = panels(1, ax, height=2.4)
    when, who = np.nonzero(values)
    # Marks as tall as their row, thin enough to stay apart.
    one.vlines(when + first, who - 0.4, who + 0.4, color=COLOURS[0], lw=max(0.5, min(2.0, 200 / len(values))))
    one.set_xlim(first - 0.5, first + len(values) - 0.5)
    one.set_ylim(-0.7, values.shape[1] - 0.3)
    one.set_xlabel(STEPS, fontsize=9)
    one.set_ylabel("neuron", fontsize=9)
    one.tick_params(labelsize=8)
    whole_steps(one)
    whole_steps(one, "y")
    return figure


def _spikes(recording: Recording, state: Path | None) -> np.ndarray:
    arrays = recording.outputs | recording.states
    path = None if state is None else as_paths("state", [state], arrays)[0]
    if path is None or path not in arrays:
        names = ", ".join(dict.fromkeys(name(p, "output") for p in arrays))
        asked = "none was named" if path is None else f"there is no {name(path, 'hidden')}"
        raise ArgumentError(
            f"`raster` needs the path of a `state` or an output that holds spikes: {asked}; there are {names}."
        )
    return arrays[path]
