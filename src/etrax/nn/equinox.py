"""The cells of `etrax.nn` as Equinox modules.

>>> import etrax, jax, jax.numpy as jnp
>>> cell = etrax.nn.equinox.MinGRUCell(3, 4, key=jax.random.key(0))
>>> learner = etrax.compile(cell, "d_rtrl", jnp.ones(3), hidden=cell.hidden(), call=etrax.nn.equinox.call)
>>> learner.report.verdicts["params", "W"].kind == "exact"
True
"""

from collections.abc import Callable

import jax

from ._faces import as_equinox, cell_named
from .pure import CELLS


def call(module: Callable, hidden: dict[str, jax.Array], *inputs: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """How `etrax.compile` is to call such a module: `call=etrax.nn.equinox.call`."""
    output, hidden = module(*inputs, hidden)
    return hidden, output


def __getattr__(name: str) -> type:
    return cell_named(name, __name__, as_equinox)


def __dir__() -> list[str]:
    return [*sorted(CELLS), "call"]
