"""A model compiled, one of its samples alone, and its constants with other numbers in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

import etrax

from .cases import rule_of
from .spec import Built


def compiled(built: Built, rule: str) -> Any:
    return etrax.compile(built.step, rule_of(rule), *(x[0] for x in built.xs), params=built.params, hidden=built.hidden)


def sample(built: Built, i: int) -> Built:
    """The model of one sample: the plain step under `vmap`, a batch of one else."""
    cut = (lambda a: a[i]) if built.one is not None else (lambda a: a[i : i + 1])
    hidden = jax.tree.map(cut, built.hidden)
    xs = tuple(np.stack([cut(row) for row in x]) for x in built.xs)
    return built._replace(step=built.one or built.step, hidden=hidden, xs=xs)


@contextmanager
def changed(consts: dict[str, Any]) -> Iterator[None]:
    """Other numbers in the arrays of numpy that a step reads, until the end of the block."""
    arrays = [a for a in consts.values() if isinstance(a, np.ndarray)]
    before = [a.copy() for a in arrays]
    for a in arrays:
        a[...] = 0.4 - 1.5 * a
    try:
        yield
    finally:
        for a, old in zip(arrays, before, strict=True):
            a[...] = old
