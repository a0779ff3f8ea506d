"""What a config asks for, compared with what makes sense and what the machine has, before anything is built."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import jax

from .._arguments import foreign, format_bytes, short
from .._compat import shape_struct
from .._errors import ArgumentError
from ..compiler.ir import PyTree
from ..learn import Optimizer, default_budget

# Options of an optimizer by what they may be: a share from 0 up to 1, or a number from 0 on.
SHARES = ("b1", "b2", "decay", "momentum")
SMALL = 1024  # a network of fewer neurons and samples is made without looking
COPIES = 4  # of the weights: with their gradient and what an optimizer keeps


class State(Protocol):
    """A `brainstate.State`."""

    value: PyTree


class Network(Protocol):
    """A `brainstate.nn.Module`."""

    def states(self) -> Mapping[object, State]: ...


def check_optimizer_options(options: Mapping[str, object]) -> dict[str, object]:
    """Numbers that an optimizer can use: optax takes whatever it is given, and finds out in the middle of a run."""
    for name, value in options.items():
        if isinstance(value, bool | str) or name == "name":
            continue
        number = value if isinstance(value, int | float) else math.nan
        if not 0 <= number <= 1e300 or (name in SHARES and number >= 1):
            kind = "a number from 0 up to 1" if name in SHARES else "a number that is not below zero"
            raise ArgumentError(f"`{foreign(name)}` of [optimizer] is {short(value)}; expected {kind}.")
    rate = options["learning_rate"]
    if isinstance(rate, bool | str) or not rate > 0:  # type: ignore[operator]
        raise ArgumentError(f"`learning_rate` of [optimizer] is {short(rate)}; expected a number above zero.")
    return {**options, "learning_rate": float(rate)}  # type: ignore[arg-type]


def check_update(optimizer: Optimizer, params: object) -> None:
    """The optimizer can be begun and make an update, by shapes alone."""
    shapes = jax.tree.map(shape_struct, params)
    try:
        jax.eval_shape(lambda p: optimizer.update(p, optimizer.init(p), p), shapes)
    except Exception as error:
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArgumentError(f"[optimizer] makes no update: {foreign(text)}.") from error


def check_size(build: Callable[[int], Network], neurons: int, batch: int, n_in: int) -> float:
    """A network of so many neurons fits into memory; `build` makes one of another number of them. Returns the budget.

    Numbers of weights and states are polynomials of the number of neurons of degree two at most, so that three small
    networks say what a large one takes.
    """
    budget = default_budget()
    if neurons <= SMALL and batch <= SMALL:
        return budget
    small = [_size_of(build(n)) for n in (2, 3, 4)]
    second = small[2] - 2 * small[1] + small[0]
    steps = neurons - 2
    weights = small[0] + steps * (small[1] - small[0]) + steps * (steps - 1) // 2 * second
    size = COPIES * weights + 8 * batch * (n_in + 8 * neurons)
    if size > budget:
        raise ArgumentError(
            f"a network of {neurons:,} neurons for a batch of {batch:,} takes {format_bytes(size)}, more than half of "
            "the memory here: lower `neurons` of [model] or `batch` of [training]."
        )
    return budget


def _size_of(network: Network) -> int:
    """Bytes of the parameters."""
    return sum(a.size * a.dtype.itemsize for s in network.states().values() for a in jax.tree.leaves(s.value))
