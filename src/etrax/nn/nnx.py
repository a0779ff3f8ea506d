"""The cells of `etrax.nn` as Flax NNX modules.

>>> import etrax, jax.numpy as jnp
>>> from flax import nnx
>>> cell = etrax.nn.nnx.MinGRUCell(3, 4, rngs=nnx.Rngs(0))
>>> learner = etrax.compile(cell, "d_rtrl", jnp.ones((2, 3)), hidden=cell.hidden(batch_size=2))
>>> learner.report.verdicts["W",].kind == "exact"
True
"""

from ._faces import as_nnx, cell_named
from .pure import CELLS


def __getattr__(name: str) -> type:
    return cell_named(name, __name__, as_nnx)


def __dir__() -> list[str]:
    return sorted(CELLS)
