"""What is known of D and F before anything runs: read off the jaxpr of the probes that compute them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import permutations, product
from typing import NamedTuple, TypeAlias

import jax
from jax import Array

from .._compat import Var
from ..compiler.dataflow import Uniform as Even
from ..compiler.dataflow import number_outputs
from ..compiler.dataflow import uniformity as evenness
from ..compiler.ir import Role
from ..compiler.opened import weights
from ..compiler.primitives import Name
from ._plan import Plan
from ._probes import as_lists

# block[s][t]; None is an entry that is always zero.
Evens: TypeAlias = list[list[Even | None]]


class Shared(NamedTuple):
    """A relation's trace is that of another, turned: ε[s] = signs[s] · (that of relation `source`)[places[s]]."""

    source: int
    signs: tuple[int, ...]
    places: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Structure:
    """Of D per group, of F per relation and state scalar, and of D at the elements of a relation's y.

    `shared`, by relation, are earlier ones on the same data whose F is the same up to a turn R that D commutes with.
    `gains`, by relation, are fixed vectors that F is a multiple of, F = f·c[o]: the state scalar that has one, and what
    holds of c. `rows` are then those of f.
    """

    blocks: tuple[Evens, ...]
    rows: tuple[Sequence[Even], ...]
    at_ops: tuple[Evens, ...]
    gains: Mapping[int, tuple[int, Even]] = field(default_factory=dict)
    shared: Mapping[int, Shared] = field(default_factory=dict)

    def of(self, relations: Sequence[int]) -> Structure:
        """The same for some relations."""
        gains = {n: self.gains[k] for n, k in enumerate(relations) if k in self.gains}
        rows, at = tuple(self.rows[k] for k in relations), tuple(self.at_ops[k] for k in relations)
        number = {k: n for n, k in enumerate(relations)}
        shared = {number[k]: s._replace(source=number[s.source]) for k, s in self.shared.items()
                  if k in number and s.source in number and not {k, s.source} & self.gains.keys()}  # fmt: skip
        return Structure(self.blocks, rows, at, gains, shared)

    def with_gains(self, relations: Sequence[int]) -> Structure:
        """The same with fixed vectors taken out of F of these where the trace is then equal along more axes.

        One state scalar is driven, by numbers that are made of parameters only: these multiply the whole trace.
        """
        found = self
        for k, row in ((k, self.rows[k]) for k in relations):
            driven = [s for s, e in enumerate(row) if not e.zero]
            if len(driven) != 1 or not row[driven[0]].fixed:
                continue
            (s,) = driven
            one = row[s]._replace(along=(True,) * len(row[s].along))
            rows = (*self.rows[:k], [*row[:s], one, *row[s + 1 :]], *self.rows[k + 1 :])
            changed = replace(self, rows=rows)
            if changed.slots(k) != self.slots(k):
                rows = (*found.rows[:k], rows[k], *found.rows[k + 1 :])
                found = replace(found, rows=rows, gains={**found.gains, k: (s, row[s])})
        return found

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
    fixed = [leaf.role is Role.PARAM or i in facts.parameter_inputs for i, leaf in enumerate(facts.step.ins)]
    found = evenness(traced, [*fixed, *(False for _ in ys)])
    tree = jax.tree.structure(shapes)
    blocks, rows, at = jax.tree.unflatten(tree, found)
    names = jax.tree.unflatten(tree, number_outputs(traced))
    return Structure(tuple(blocks), tuple(rows), tuple(at), shared=_shared(plan, names[0], names[1]))


def _shared(plan: Plan, blocks: Sequence[Sequence[Sequence[Name | None]]], rows: Sequence[Sequence[Name]]) -> dict:
    """Relations whose trace is that of an earlier one, turned."""
    found: dict[int, Shared] = {}
    alike = [_data_of(plan, k) for k in range(len(rows))]
    for k, r in enumerate(plan.relations):
        earlier = (m for m in range(k) if m not in found and alike[m] is not None and alike[m] == alike[k])
        for m in earlier:
            turn = _turn(blocks[r.group], rows[m], rows[k])
            if turn is not None:
                found[k] = Shared(m, *turn)
                break
    return found


def _data_of(plan: Plan, k: int) -> Hashable:
    """What is equal for ops of one kind on the same data, to the same positions; None inside of loops."""
    r = plan.relations[k]
    site, eqns = plan.facts.sites[r.site], plan.facts.step.jaxpr.eqns
    first, *inside = site.at
    if inside or site.loops or r.copies is not None or first >= len(eqns):
        return None
    eqn, call = eqns[first], site.call
    others = tuple((i, v if isinstance(v, Var) else repr(v)) for i, v in enumerate(eqn.invars) if i != site.operand)
    shapes = tuple((a.shape, str(a.dtype)) for a in (*call.operands, call.out))
    return (site.rule.name, repr(sorted(eqn.params.items(), key=str)), site.operand, others, shapes, r.group,
            r.places.tobytes(), str(plan.dtypes[k]))  # fmt: skip


def _turn(
    block: Sequence[Sequence[Name | None]], one: Sequence[Name], other: Sequence[Name]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Signs and places of R with other = R · one and R D = D R, if there are such."""
    n = len(one)
    if n > 3:
        return None
    d = [[(0, None) if e is None or e[0] == 0 else e for e in line] for line in block]
    for places in permutations(range(n)):
        for signs in product((1, -1), repeat=n):
            if any(other[s] != _times(signs[s], one[places[s]]) for s in range(n)):
                continue
            back = [places.index(t) for t in range(n)]
            if all(
                _times(signs[s], d[places[s]][t]) == _times(signs[back[t]], d[s][back[t]])
                for s in range(n)
                for t in range(n)
            ):
                return signs, places
    return None


def _times(sign: int, name: Name) -> Name:
    return (0, None) if name[0] == 0 else (sign * name[0], name[1])
