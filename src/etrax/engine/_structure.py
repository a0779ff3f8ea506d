"""What is known of D and F before anything runs: read off the jaxpr of the probes that compute them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import jax
from jax import Array

from ..analysis import Even, evenness
from ..ir import Role
from ._plan import Plan
from ._probes import as_lists
from ._weights import weights

# block[s][t]; None is an entry that is always zero.
Evens: TypeAlias = list[list[Even | None]]


@dataclass(frozen=True, eq=False)
class Structure:
    """Of D per group, of F per relation and state scalar, and of D at the elements of a relation's y."""

    blocks: tuple[Evens, ...]
    rows: tuple[Sequence[Even], ...]
    at_ops: tuple[Evens, ...]

    def of(self, relations: Sequence[int]) -> Structure:
        """The same for some relations."""
        return Structure(self.blocks, tuple(self.rows[k] for k in relations), tuple(self.at_ops[k] for k in relations))

    def is_fixed(self, group: int) -> bool:
        """Whether D of a group is made of parameters only."""
        return all(e.fixed for line in self.blocks[group] for e in line if e is not None)

    def is_known(self, k: int, group: int) -> bool:
        """Whether F of a relation, and D of its group, are made of parameters only."""
        return self.is_fixed(group) and all(e.fixed for e in self.rows[k])

    def slots(self, k: int) -> list[Even]:
        """What holds of the trace of each state scalar of relation k, along the axes of y."""
        rows = self.rows[k]
        return [
            _of(part for e, row in zip(line, rows, strict=True) if e is not None for part in (e, row))
            for line in products(self.at_ops[k], len(rows[0].along))
        ]


def products(block: Evens, rank: int) -> Evens:
    """What holds of products of any number of such blocks, that of none among them."""
    n, one = len(block), Even(True, (True,) * rank)
    found: Evens = [[one if s == t else None for t in range(n)] for s in range(n)]
    while True:
        more = [[_maybe([found[s][t], *_terms(found, block, s, t)]) for t in range(n)] for s in range(n)]
        if more == found:
            return found
        found = more


def _terms(a: Evens, b: Evens, s: int, t: int) -> list[Even]:
    pairs = ((a[s][r], b[r][t]) for r in range(len(a)))
    return [p.both(q) for p, q in pairs if p is not None and q is not None]


def _maybe(found: Iterable[Even | None]) -> Even | None:
    some = [e for e in found if e is not None]
    return _of(some) if some else None


def _of(found: Iterable[Even]) -> Even:
    """What holds of all."""
    return reduce(Even.both, found)


def structure_of(plan: Plan) -> Structure:
    """Dependence and evenness of all blocks that a plan reads."""
    facts, probes = plan.facts, plan.probes

    def read(
        leaves: Sequence[Array], ys: Mapping[int, Array]
    ) -> tuple[list[list[list[Array | None]]], list[list[Array]], list[list[list[Array | None]]]]:
        # Weights are made here, so that it is seen where one is spread over samples.
        made = weights(facts.step, facts.sites, leaves[: facts.step.first_state]).weight
        blocks, rows = as_lists(probes(leaves, made, ys))
        at = [
            [[None if entry is None else gather(entry) for entry in line] for line in blocks[r.group]]
            for r, gather in zip(plan.relations, plan.gathers, strict=True)
        ]
        return blocks, rows, at

    leaves, _, ys = probes.stand_ins()
    traced, shapes = jax.make_jaxpr(read, return_shape=True)(leaves, ys)
    fixed = [leaf.role is Role.PARAM or i in facts.steady for i, leaf in enumerate(facts.step.ins)]
    found = evenness(traced, [*fixed, *(False for _ in ys)])
    blocks, rows, at = jax.tree.unflatten(jax.tree.structure(shapes), found)
    return Structure(tuple(blocks), tuple(rows), tuple(at))
