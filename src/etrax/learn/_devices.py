"""The devices that a learner runs on: what a learner asks of them, and the answers of a single one.

Those of a mesh are in the leaf `mesh/`, which is imported where a mesh is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Protocol

import jax
import numpy as np

from .._errors import ArgumentError
from .._sums import watched
from ..compiler.ir import PyTree
from ..rules import Rule
from ._memory import Memory, predict
from ._options import Options
from ._program import Program

# Takes values by position, and gives results by name: the names say where values lie on a mesh.
Run = Callable[..., dict[str, PyTree]]
_NEEDS_MESH = "needs a model compiled for many devices: `etrax.compile(..., mesh=, shard=)`."


class Devices(Protocol):
    """Where the arrays of a learner lie, and how its programs are compiled. `program` is the one that runs there."""

    @property
    def program(self) -> Program: ...

    @property
    def shardings(self) -> PyTree: ...

    def new_trace(self) -> PyTree:
        """The trace before the first step."""
        ...

    def place(self, **values: PyTree) -> dict[str, PyTree]:
        """Values by name, each where it lies."""
        ...

    def place_batch(self, inputs: PyTree, targets: PyTree, mask: np.ndarray, samples: np.ndarray) -> PyTree:
        """Some samples of inputs and targets, and the mask of these, where they lie."""
        ...

    def compiled(self, run: Run, donate: str = "", check: bool = True) -> Callable[..., list[PyTree]]:
        """`run` under `jit`; `donate` names an argument that is used up. With `check`, arrays that are bound to other
        devices are refused."""
        ...

    def memory(self, window: int, steps: int, donate: bool, remat: int | None = None) -> Memory:
        """Bytes that a gradient takes."""
        ...

    def notes(self) -> list[str]:
        """What the report says of the devices."""
        ...


@dataclass(frozen=True, eq=False)
class OneDevice:
    """Arrays lie wherever JAX puts them."""

    program: Program

    @property
    def shardings(self) -> PyTree:
        raise ArgumentError(f"`shardings` {_NEEDS_MESH}")

    def new_trace(self) -> PyTree:
        return self.program.new_trace()

    def place(self, **values: PyTree) -> dict[str, PyTree]:
        return values

    def place_batch(self, inputs: PyTree, targets: PyTree, mask: np.ndarray, samples: np.ndarray) -> PyTree:
        raise ArgumentError(f"`place_batch` {_NEEDS_MESH}")

    def compiled(self, run: Run, donate: str = "", check: bool = True) -> Callable[..., list[PyTree]]:
        listed = watched(lambda *args: list(run(*args).values()))
        return jax.jit(listed, donate_argnums=donated(run, donate))

    def memory(self, window: int, steps: int, donate: bool, remat: int | None = None) -> Memory:
        return predict(self.program, window, steps, donate, remat)

    def notes(self) -> list[str]:
        return []


def donated(run: Run, name: str) -> tuple[int, ...]:
    """The number of the argument that is used up, if one is."""
    return (list(signature(run).parameters).index(name),) if name else ()


def on_mesh(program: Program, rule: Rule, options: Options) -> Devices:
    """The devices of the mesh that a model is compiled for."""
    from ..mesh import meshed

    assert options.mesh is not None and options.shard is not None
    return meshed(program, rule, options.mesh, options.shard)
