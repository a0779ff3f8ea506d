"""What a config asks for, compared with what makes sense and what the machine has, before anything is built."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import jax
import numpy as np

from .._arguments import foreign, format_bytes, short
from .._compat import shape_struct
from .._errors import ArgumentError
from ..compiler.ir import PyTree
from ..learn import Optimizer, default_budget

# Options of an optimizer by what they may be: a share from 0 up to 1, true or false, a type; else a number from 0 on.
SHARES = ("b1", "b2", "decay", "momentum", "warmup")
ABOVE_ZERO = ("learning_rate", "clip")
NAMES = ("name", "schedule")
FLAGS = ("nesterov", "centered", "bias_correction", "eps_in_sqrt")
DTYPES = ("mu_dtype", "accumulator_dtype")
FLOATS = ("float16", "bfloat16", "float32", "float64")
LARGEST = float(np.finfo(np.float32).max)
SMALL = 1024  # a network of fewer neurons and samples is made without looking
COPIES = 4  # of the weights: with their gradient and what an optimizer keeps


class State(Protocol):
    """A `brainstate.State`."""

    value: PyTree


class Network(Protocol):
    """A `brainstate.nn.Module`."""

    def states(self) -> Mapping[object, State]: ...


def check_optimizer_options(options: Mapping[str, object]) -> dict[str, object]:
    """Values that an optimizer can use: optax takes whatever it is given, and finds out in the middle of a run."""
    for name, value in options.items():
        if name not in NAMES and (expected := _expected(name, value)):
            raise ArgumentError(f"`{foreign(name)}` of [optimizer] is {short(value)}; expected {expected}.")
    return {**options, "learning_rate": float(options["learning_rate"])}  # type: ignore[arg-type]


def check_model_options(options: Mapping[str, object]) -> dict[str, object]:
    """Numbers of a cell are finite, also in float32: weights and states are filled with them."""
    for name, value in options.items():
        if name != "neurons" and isinstance(value, int | float) and not abs(value) <= LARGEST:
            raise ArgumentError(f"`{foreign(name)}` of [model] is {short(value)}; expected a finite number.")
    return dict(options)


def _expected(name: str, value: object) -> str:
    """What the value of an option should have been; nothing if it is that. Numbers are judged as float32 has them."""
    if name in FLAGS:
        return "" if isinstance(value, bool) else "true or false"
    if name in DTYPES:
        return "" if value in FLOATS else f"one of {', '.join(FLOATS)}"
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST:
        number = float(np.float32(value))
    if name in SHARES:
        return "" if 0 <= number < 1 else "a number from 0 up to 1"
    if name in ABOVE_ZERO:
        return "" if number > 0 else "a number above zero"
    return "" if number >= 0 else "a number that is not below zero"


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


def check_meter(directions: int, params: PyTree) -> None:
    """So many directions of all parameters, with what they give, fit into memory."""
    size = 2 * directions * sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(params))
    if size > default_budget():
        raise ArgumentError(
            f"`meter` of [training] is {directions:,}: so many directions of all parameters take {format_bytes(size)}, "
            "more than half of the memory here. Eight are enough."
        )


def _size_of(network: Network) -> int:
    """Bytes of the parameters."""
    return sum(a.size * a.dtype.itemsize for s in network.states().values() for a in jax.tree.leaves(s.value))
