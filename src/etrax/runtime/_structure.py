"""What is known of D and F before anything runs: read off the jaxpr of the reader that computes them.

    ε_K = P ε_0 + Σ_k u_k ⊗ c_k        P = D_K ··· D_1        c_k = D_K ··· D_{k+1} F_k

*Time-invariant*: D is made of parameters only (linear recurrences, leaky integrators). P and the products of D are then
those of every window and every sample, D^K and D^(K−k). They are computed once, not recorded step by step, and
have no axis of samples: where F is made of parameters too, Σ_k u_k ⊗ c_k is one plain product (B·I, K) × (K, O).

*Factored*: D and F are equal for all outputs of the op (one leak for a layer; they may change in time and differ
from sample to sample). All columns of ε are then equal, ε[i, o] = x̂[i], and one of them is kept:

    x̂ ← D x̂ + F u        credit: Σ_b x̂[b, i] (∂L/∂h_0)[b, o], which is one row more in the window's own product

A gain c[o] for each output, made of parameters only, does not hinder that: with F = c[o] it is ε[i, o] = c[o] x̂[i],
x̂ ← D x̂ + u, and c, as it is now, is multiplied with the credit.

*Shared*: two ops on the same data whose F differ by a turn R that D commutes with (real and imaginary part of a complex
matrix) have traces that differ by it. One is kept, and the other's credit is taken of it: g · R ε = (Rᵀ g) · ε.

All are one thing: arrays have an axis of length one wherever all along it is equal, and so has the trace.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import permutations, product
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import Var
from ..compiler.analysis import Facts, Relation, is_steep
from ..compiler.dataflow import Uniform, number_outputs, uniformity
from ..compiler.ir import Role
from ..compiler.opened import weights
from ..compiler.primitives import Name
from ._layout import Gather
from ._readers import Reader
from ._resets import equal_along, lanes_of_group
from .blocks import shortened

# block[s][t]; None is an entry that is always zero.
Uniforms: TypeAlias = list[list[Uniform | None]]
# Per axis, whether all along it is equal.
Along: TypeAlias = tuple[bool, ...]


class Shared(NamedTuple):
    """A relation's trace is that of another, turned: ε[s] = signs[s] · (that of relation `source`)[places[s]]."""

    source: int
    signs: tuple[int, ...]
    places: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Structure:
    """What is known before running about D (per group), F (per relation and slot), and D gathered at y.

    A group or relation that is missing has nothing known of it. `shared`, by relation, are earlier ones on the same
    data whose F is the same up to a turn R that D commutes with. `gains`, by relation, are fixed vectors that F is a
    multiple of, F = f·c[o]: the slot that has one, and what holds of c. `rows` are then those of f.

    Of blocks with many states nothing is known entry by entry. `even_blocks`, by group, are the axes of positions along
    which D is equal (a delta rule moves all rows of its memory alike), `even_rows`, by relation, those of y for F.
    """

    blocks: Mapping[int, Uniforms] = field(default_factory=dict)
    rows: Mapping[int, Sequence[Uniform]] = field(default_factory=dict)
    at_ops: Mapping[int, Uniforms] = field(default_factory=dict)
    gains: Mapping[int, tuple[int, Uniform]] = field(default_factory=dict)
    shared: Mapping[int, Shared] = field(default_factory=dict)
    even_blocks: Mapping[int, Along] = field(default_factory=dict)
    even_rows: Mapping[int, Along] = field(default_factory=dict)

    def of(self, numbers: Mapping[int, int], groups: Collection[int]) -> Structure:
        """What is known of some relations and groups; `numbers` are the new numbers of the relations."""
        shared = {numbers[k]: s._replace(source=numbers[s.source]) for k, s in self.shared.items()
                  if k in numbers and s.source in numbers and not {k, s.source} & self.gains.keys()}  # fmt: skip
        return Structure(
            {g: evens for g, evens in self.blocks.items() if g in groups},
            {n: self.rows[k] for k, n in numbers.items()},
            {n: self.at_ops[k] for k, n in numbers.items()},
            {n: self.gains[k] for k, n in numbers.items() if k in self.gains},
            shared,
        )

    def with_gains(self, relations: Sequence[int]) -> Structure:
        """This, with fixed vectors taken out of F of some relations where the trace is then equal along more axes.

        One state scalar is driven, by numbers that are made of parameters only: these multiply the whole trace.
        """
        out = self
        for k, row in ((k, self.rows[k]) for k in relations):
            driven = [s for s, e in enumerate(row) if not e.zero]
            if len(driven) != 1 or not row[driven[0]].fixed:
                continue
            (s,) = driven
            one = row[s]._replace(along=(True,) * len(row[s].along))
            changed = replace(self, rows={**self.rows, k: [*row[:s], one, *row[s + 1 :]]})
            if changed.slots(k) != self.slots(k):
                rows = {**out.rows, k: changed.rows[k]}
                out = replace(out, rows=rows, gains={**out.gains, k: (s, row[s])})
        return out

    def equal_along(self, groups: Mapping[int, Along], ops: Mapping[int, Along]) -> Structure:
        """This, of blocks times numbers that are equal along some axes only, of positions (by group) and of y."""
        blocks = {g: _narrower(evens, groups[g]) for g, evens in self.blocks.items()}
        return replace(self, blocks=blocks, at_ops={k: _narrower(evens, ops[k]) for k, evens in self.at_ops.items()})

    def is_fixed(self, group: int) -> bool:
        """Whether D of a group is made of parameters only."""
        uniforms = self.blocks.get(group)
        return uniforms is not None and all(e.fixed for line in uniforms for e in line if e is not None)

    def is_known(self, k: int, group: int) -> bool:
        """Whether F of a relation, and D of its group, are made of parameters only."""
        return k in self.rows and self.is_fixed(group) and all(e.fixed for e in self.rows[k])

    def slots(self, k: int) -> list[Uniform]:
        """What holds of the trace of each state scalar of relation k, along the axes of y."""
        rows = self.rows[k]
        return [
            _of(part for e, row in zip(line, rows, strict=True) if e is not None for part in (e, row))
            for line in products(self.at_ops[k], len(rows[0].along))
        ]


def _narrower(block: Uniforms, along: Along) -> Uniforms:
    def one(e: Uniform | None) -> Uniform | None:
        return None if e is None else e._replace(along=tuple(a and b for a, b in zip(e.along, along, strict=True)))

    return [[one(e) for e in line] for line in block]


def products(block: Uniforms, rank: int) -> Uniforms:
    """What holds of every power of a block, the identity included."""
    n, one = len(block), Uniform(True, (True,) * rank)
    powers: Uniforms = [[one if s == t else None for t in range(n)] for s in range(n)]
    while True:
        more = [[_maybe([powers[s][t], *_terms(powers, block, s, t)]) for t in range(n)] for s in range(n)]
        if more == powers:
            return powers
        powers = more


def _terms(a: Uniforms, b: Uniforms, s: int, t: int) -> list[Uniform]:
    pairs = ((a[s][r], b[r][t]) for r in range(len(a)))
    return [p.both(q) for p, q in pairs if p is not None and q is not None]


def _maybe(terms: Iterable[Uniform | None]) -> Uniform | None:
    some = [e for e in terms if e is not None]
    return _of(some) if some else None


def _of(parts: Iterable[Uniform]) -> Uniform:
    """What holds of all parts together."""
    return reduce(Uniform.both, parts)


def known_structure(reader: Reader, gathers: Sequence[Gather], dtypes: Sequence[np.dtype]) -> Structure:
    """What is known of the relations of a reader and of their groups."""
    # To ask it of each entry of many states would take long; copies are as narrow as they get. A trace may be carried
    # to no state of a group (a filter, of states that neither the loss of a step nor a state reads).
    few = [
        k for k, r in enumerate(reader.relations)
        if can_be_narrow(reader.facts, r) and not reader.layouts[r.group].stacked and reader.layouts[r.group].size
    ]  # fmt: skip
    return _even_structure(reader, _structure_of_few(reader, gathers, dtypes, few) if few else Structure())


def _even_structure(reader: Reader, structure: Structure) -> Structure:
    """Add, for groups of many states, the axes along which their blocks are equal."""
    facts, layouts = reader.facts, reader.layouts
    many = [k for k, r in enumerate(reader.relations) if layouts[r.group].stacked]
    if not many or is_steep(facts):
        return structure
    blocks, rows = even_structure(reader.of([reader.relations[k] for k in many]))
    for g in blocks if facts.lanes is not None else ():
        lanes = lanes_of_group(facts, layouts[g].group, layouts[g].shape)
        assert lanes is not None
        blocks[g] = tuple(a and b for a, b in zip(blocks[g], equal_along(lanes), strict=True))
    blocks = {g: along for g, along in blocks.items() if shortened(layouts[g].shape, along) != layouts[g].shape}
    narrow = {k: row for k, row in zip(many, rows, strict=True) if can_be_narrow(facts, reader.relations[k])}
    return replace(structure, even_blocks=blocks, even_rows=narrow)


def _structure_of_few(
    reader: Reader, gathers: Sequence[Gather], dtypes: Sequence[np.dtype], few: Sequence[int]
) -> Structure:
    """The structure of some relations and their groups, but for relations that gain nothing by it."""
    some = reader.of([reader.relations[k] for k in few])
    types = [dtypes[k] for k in few]
    real = [n for n, dtype in enumerate(types) if not np.issubdtype(dtype, np.complexfloating)]
    structure = structure_of(some, [gathers[k] for k in few], types).with_gains(real)
    numbers = {n: k for n, k in enumerate(few) if _gains(some, structure, n)}
    structure = structure.of(numbers, {reader.relations[k].group for k in numbers.values()})
    return structure if reader.facts.lanes is None else _by_lane(reader, structure)


def _by_lane(reader: Reader, structure: Structure) -> Structure:
    """Forget what holds across lanes: where each may start again on its own, blocks and traces differ between them."""
    layouts, groups, ops = reader.layouts, {}, {}
    for g in structure.blocks:
        lanes = lanes_of_group(reader.facts, layouts[g].group, layouts[g].shape)
        assert lanes is not None
        lead = (True,) * layouts[g].lead
        groups[g] = (*lead, *equal_along(lanes))
        at = {
            k: np.maximum(r.places, 0) for k, r in enumerate(reader.relations) if k in structure.at_ops and r.group == g
        }
        ops |= {k: (*lead, *equal_along(lanes.reshape(-1)[places])) for k, places in at.items()}
    return structure.equal_along(groups, ops)


def can_be_narrow(facts: Facts, relation: Relation) -> bool:
    """Whether the axes of y are those of F and of D, so that what holds along them can be compared."""
    site = facts.sites[relation.site]
    plain = site.rule.narrow and not site.loops and relation.copies is None
    return plain and relation.places.shape == site.call.out.shape


def _gains(reader: Reader, structure: Structure, k: int) -> bool:
    """Whether the trace of relation k is smaller, or moved by fewer products, by what is known of D and F."""
    r = reader.relations[k]
    if reader.layouts[r.group].counts:
        return True  # each of many leaks is one number
    shape = reader.facts.sites[r.site].call.out.shape
    saved = any(e and n > 1 for slot in structure.slots(k) for e, n in zip(slot.along, shape, strict=True))
    return saved or structure.is_fixed(r.group)


def even_structure(reader: Reader) -> tuple[dict[int, Along], list[Along]]:
    """Axes along which D of each stacked group, and F of each relation, are equal; relations are to stacked groups."""
    facts, groups = reader.facts, sorted({r.group for r in reader.relations})

    def read(leaves: Sequence[Array], ys: Mapping[int, Array]) -> tuple[list[Array], list[Array]]:
        # Weights are made here, so that it is seen where one is spread over samples.
        weight_values = weights(facts.step, facts.sites, leaves[: facts.step.first_state]).weight
        blocks, rows = reader(leaves, weight_values, ys)
        return [blocks[g].values for g in groups], list(rows)

    leaves, _, ys = reader.stand_ins()
    traced = jax.make_jaxpr(read)(leaves, ys)
    uniforms = uniformity(traced, [False] * (len(leaves) + len(ys)))
    # The first axis of both is that of entries or slots.
    alongs = [uniform.along[1:] for uniform in uniforms]
    return dict(zip(groups, alongs, strict=False)), alongs[len(groups) :]


def structure_of(reader: Reader, gathers: Sequence[Gather], dtypes: Sequence[np.dtype]) -> Structure:
    """Dependence and uniformity of all blocks that are read, of groups of which none is stacked."""
    facts, relations = reader.facts, reader.relations

    def read(leaves: Sequence[Array], ys: Mapping[int, Array]) -> tuple[dict, dict, dict]:
        # Weights are made here, so that it is seen where one is spread over samples.
        weight_values = weights(facts.step, facts.sites, leaves[: facts.step.first_state]).weight
        blocks, rows = reader(leaves, weight_values, ys)
        layouts = [reader.layouts[r.group] for r in relations]
        at = {
            k: [[None if a is None else layout.at_y(gather, a) for a in line] for line in blocks[r.group]]
            for k, (r, gather, layout) in enumerate(zip(relations, gathers, layouts, strict=True))
        }
        shapes = [(*[1] * layout.lead, *gather.shape) for layout, gather in zip(layouts, gathers, strict=True)]
        groups = {r.group for r in relations}
        # A slot that an op does not drive has F = 0, of y's rank.
        full = {k: [jnp.zeros(shapes[k]) if f is None else f for f in row] for k, row in enumerate(rows)}
        return {g: d for g, d in enumerate(blocks) if g in groups}, full, at

    leaves, _, ys = reader.stand_ins()
    traced, shapes = jax.make_jaxpr(read, return_shape=True)(leaves, ys)
    fixed = [leaf.role is Role.PARAM or i in facts.parameter_inputs for i, leaf in enumerate(facts.step.ins)]
    tree = jax.tree.structure(shapes)
    blocks, rows, at = jax.tree.unflatten(tree, uniformity(traced, [*fixed, *(False for _ in ys)]))
    names = jax.tree.unflatten(tree, number_outputs(traced))
    return Structure(blocks, rows, at, shared=_shared(reader, dtypes, names[0], names[1]))


def _shared(
    reader: Reader, dtypes: Sequence[np.dtype], blocks: Mapping[int, Sequence[Sequence[Name | None]]],
    rows: Mapping[int, Sequence[Name]],
) -> dict[int, Shared]:  # fmt: skip
    """Relations whose trace is that of an earlier one, turned."""
    out: dict[int, Shared] = {}
    alike = [_data_of(reader, k, dtypes[k]) for k in range(len(rows))]
    for k, r in enumerate(reader.relations):
        earlier = (m for m in range(k) if m not in out and alike[m] is not None and alike[m] == alike[k])
        for m in earlier:
            turn = _turn(blocks[r.group], rows[m], rows[k])
            if turn is not None:
                out[k] = Shared(m, *turn)
                break
    return out


def _data_of(reader: Reader, k: int, dtype: np.dtype) -> Hashable:
    """A key that is equal for ops of one kind on the same data to the same positions; None inside loops."""
    r = reader.relations[k]
    site, eqns = reader.facts.sites[r.site], reader.facts.step.jaxpr.eqns
    first, *inside = site.at
    if inside or site.loops or r.copies is not None or first >= len(eqns):
        return None
    eqn, call = eqns[first], site.call
    others = tuple((i, v if isinstance(v, Var) else repr(v)) for i, v in enumerate(eqn.invars) if i != site.operand)
    shapes = tuple((a.shape, str(a.dtype)) for a in (*call.operands, call.out))
    return (site.rule.name, repr(sorted(eqn.params.items(), key=str)), site.operand, others, shapes, r.group,
            r.places.tobytes(), str(dtype))  # fmt: skip


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
