"""How a graph in continuous time becomes steps: simulators differ, and a NIR file does not say which one wrote it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal

import jax

from .._arguments import check_flag, check_number, short
from .._errors import ArgumentError, ArgumentTypeError
from ..nn.surrogate import arctan, fast_sigmoid, triangle

Spike = Callable[[jax.Array], jax.Array]


@dataclass(frozen=True)
class Simulator:
    r"""Forward Euler with steps of `dt` seconds.

    .. math::
        v_t = v_{t-1} + \frac{dt}{\tau} (v_{leak} - v_{t-1} + R x_t)

    `reset` says what a spike does to the membrane: `"to"` puts it at `v_reset`, as NIR has it, `"subtract"` takes the
    threshold off. With `late_reset` that happens in the next step: the membrane keeps its value above the threshold
    until then, and the subtraction comes after the leak. With `jumps` an input is added whole to a synaptic current
    (`i + w_in x`, which the membrane reads before it leaks) and to an integrator (`v + r x`), not by the share
    dt of a step. `detach_reset` lets no gradient through the reset.
    """

    dt: float = 1e-4
    reset: Literal["to", "subtract"] = "to"
    late_reset: bool = False
    jumps: bool = False
    detach_reset: bool = True

    def __post_init__(self):
        check_number("Simulator", "dt", self.dt, 0, float("inf"), "above 0, in seconds", ends="()")
        if self.reset not in ("to", "subtract"):
            raise ArgumentError(f"`reset` is {short(self.reset)}; expected 'to' or 'subtract'.")
        for name in ("late_reset", "jumps", "detach_reset"):
            check_flag(name, getattr(self, name))


# NIR's equations, and what exporters do with the networks that they write: snnTorch's neurons subtract and reset late
# by default; norse writes time constants in units of its own step of 1 ms, so that one step is 1e-3 of 1e-3 s.
SIMULATORS = {
    "nir": Simulator(),
    "snntorch": Simulator(reset="subtract", late_reset=True),
    "norse": Simulator(dt=1e-6, jumps=True, detach_reset=False),
}


def as_simulator(simulator: Simulator | str, dt: float | None) -> Simulator:
    if not isinstance(simulator, Simulator) and simulator not in SIMULATORS:
        names = ", ".join(map(repr, SIMULATORS))
        raise ArgumentError(
            f"`simulator` is {short(simulator)}; expected {names}, or an `etrax.nir.Simulator` of your own with "
            f"{', '.join(f'`{f.name}`' for f in fields(Simulator))}."
        )
    chosen = simulator if isinstance(simulator, Simulator) else SIMULATORS[simulator]
    return chosen if dt is None else replace(chosen, dt=dt)


# By name, as snnTorch ("fast_sigmoid", "arctan") and norse ("superspike") compute them by default.
SURROGATES: dict[str, Spike] = {
    "fast_sigmoid": fast_sigmoid(25.0),
    "superspike": fast_sigmoid(1.0),
    "arctan": arctan(2.0),
    "triangle": triangle(0.3),
}


def as_spike(surrogate: Spike | str) -> Spike:
    if isinstance(surrogate, str) and surrogate in SURROGATES:
        return SURROGATES[surrogate]
    if not callable(surrogate):
        raise ArgumentTypeError(
            f"`surrogate` is {short(surrogate)}; expected {', '.join(map(repr, SURROGATES))}, or a function of the "
            "distance from the threshold, such as `etrax.nir.spike_with(derivative)` makes."
        )
    return surrogate
