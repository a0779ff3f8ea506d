"""Reverse mode over a step, equation by equation, on dependences instead of numbers.

The pull-back of an equation is a small linear program, which JAX writes. Its pattern is the same wherever an equation
of the same kind stands, so the programs of plain primitives are kept, and those of functions with a derivative rule of
JAX's own (`relu`): a deep model asks JAX for a handful of them. Those of primitives that Etrax does not know are kept
for one sweep. What holds a body, or has a derivative rule of the user's, is transposed where it stands.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
from jax import Array

from ..._compat import (
    CUSTOM,
    INLINED,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    bodies_of,
    build_jaxpr,
    is_concrete,
    open_jaxpr,
    rule_function,
    shape_struct,
    within,
    without_dead_code,
    without_sources,
)
from ..dataflow import (
    DATA,
    Dependence,
    Mark,
    Offset,
    Problem,
    Solver,
    Value,
    moving_variables,
    pulled_back,
    sum_of_marks,
)
from ..ir import Step, equations, has_rule_of_jax
from ..opened import WeightSite, run_opened
from ..primitives import Deps, identity, is_own, union
from ._nodes import Node, OpNode

# The pull-backs of this many kinds of equations are kept.
MAX_KEPT = 4096


class Bar(NamedTuple):
    """What is known of a cotangent: its dependence on the targets, and whether it is zero where they are."""

    deps: Deps
    mark: Mark


class _Opened(NamedTuple):
    """One equation, and what of it is differentiated.

    `operands` are its variables, each once, of which some move. `outs` are the numbers of its results that have a
    cotangent. `sites` are the weight ops at it or inside it, of which some are `cut` and some `seen`, by number there.
    """

    eqn: JaxprEqn
    operands: tuple[Var, ...]
    moving: tuple[bool, ...]
    outs: tuple[int, ...]
    sites: tuple[WeightSite, ...]
    cut: frozenset[int]
    seen: tuple[int, ...]

    def split(self, moving: bool) -> list[Var]:
        return [v for v, moves in zip(self.operands, self.moving, strict=True) if moves is moving]


class _PullBack(NamedTuple):
    """The program from (moving operands, perturbations of sites, other operands, cotangents) to those of the first two.

    It is `plain` if the equation and its derivative are made of primitives that Etrax knows: then it is linear.
    """

    jaxpr: Jaxpr
    consts: tuple[Any, ...]
    plain: bool

    def shapes(self, count: int) -> list[tuple[int, ...]]:
        """Shapes of the last inputs, `count` of them."""
        return [v.aval.shape for v in self.jaxpr.invars[len(self.jaxpr.invars) - count :]]


_KEPT: dict[Hashable, _PullBack] = {}


class Sweep:
    """Cotangents of the states and weight ops of a step, with some ops cut, as dependences on targets.

    `seen` are the weight ops whose results are targets as well.
    """

    def __init__(self, step: Step, sites: Sequence[WeightSite], cut: frozenset[int], seen: Sequence[int]):
        self.step, self.sites, self.cut, self.seen = step, sites, cut, frozenset(seen)
        self.at_equation: dict[int, list[int]] = {}
        for j, site in enumerate(sites):
            self.at_equation.setdefault(site.at[0], []).append(j)
        # Both take down where the way back is not linear, in the order of the sweep.
        self.dependence = Solver(Dependence())
        self.offset = Solver(Offset(), self.dependence.notes)
        self.values: dict[Var, Value] = {}
        self.bars: dict[Var, Bar] = {}
        self.rows: dict[Node, Deps] = {OpNode(j): {} for j in range(len(sites))}
        self.programs: dict[Hashable, _PullBack] = {}

    def run(
        self, states: Mapping[Node, int], targets: Mapping[Node, int]
    ) -> tuple[dict[Node, Deps], list[Problem[Node]]]:
        """Dependences of the states, by number of their input leaf, and of all weight ops; targets are output leaves.

        Also the places where the way back is not linear in what it is given, or not known.
        """
        invars = self.step.jaxpr.invars[len(self.step.consts) :]
        start = {invars[i] for i in states.values()}
        moving = moving_variables(self.step.jaxpr, start, (site.at for site in self.sites))
        inputs = [*map(self.dependence.domain.constant, self.step.consts), *(Value({}) for _ in self.step.ins)]
        self.values = self.dependence.variables(self.step.jaxpr, (), inputs)
        self._seed(targets)
        eqns = self.step.jaxpr.eqns
        for k in reversed(range(len(eqns))):
            self._equation(k, eqns[k], moving)
        self.rows |= {node: self.bars[invars[i]].deps if invars[i] in self.bars else {} for node, i in states.items()}
        return self.rows, cast("list[Problem[Node]]", list(dict.fromkeys(self.dependence.notes)))

    def _seed(self, targets: Mapping[Node, int]) -> None:
        """Give every target its own cotangent. A weight that is an output is perturbed there."""
        outvars, count = self.step.jaxpr.outvars, len(self.step.jaxpr.eqns)
        for node, k in targets.items():
            bar = _target(node, outvars[k].aval.shape)
            self.rows |= {OpNode(j): bar.deps for j in self.at_equation.get(count + k, ())}
            if not isinstance(outvars[k], Literal):
                self._add(outvars[k], bar)

    def _add(self, v: Var, bar: Bar) -> None:
        self.bars[v] = _sum(self.bars[v], bar) if v in self.bars else bar

    def _equation(self, k: int, eqn: JaxprEqn, moving: set[Var]) -> None:
        numbers = self.at_equation.get(k, ())
        seen = tuple(n for n, j in enumerate(numbers) if j in self.seen)
        outs = tuple(i for i, v in enumerate(eqn.outvars) if v in self.bars)
        operands = tuple(dict.fromkeys(v for v in eqn.invars if not isinstance(v, Literal)))
        moves = tuple(v in moving for v in operands)
        if not (outs or seen) or not (numbers or any(moves)):
            return
        cut = frozenset(n for n, j in enumerate(numbers) if j in self.cut)
        opened = _Opened(eqn, operands, moves, outs, tuple(self.sites[j] for j in numbers), cut, seen)
        with within(eqn):
            pull = _pull_back(opened, self.step.jaxpr, self.programs)
            nodes = [OpNode(numbers[n]) for n in seen]
            shapes = pull.shapes(len(seen))
            cotangents = [*(self.bars[eqn.outvars[i]] for i in outs), *map(_target, nodes, shapes)]
            pulled = self._through(pull, opened, cotangents)
        for v, bar in zip(opened.split(moving=True), pulled, strict=False):
            if bar.deps or bar.mark.sources:
                self._add(v, bar)
        self.rows |= {OpNode(j): bar.deps for j, bar in zip(numbers, pulled[sum(moves) :], strict=True)}

    def _through(self, pull: _PullBack, opened: _Opened, cotangents: Sequence[Bar]) -> list[Bar]:
        """The cotangents of the moving operands and of the perturbations."""
        first, fixed = sum(opened.moving) + len(opened.sites), opened.split(moving=False)
        data = [*(Value({}) for _ in range(first)), *(self.values[v] for v in fixed)]
        rows = self.dependence.run(pull.jaxpr, pull.consts, [*data, *(Value(bar.deps) for bar in cotangents)])
        if pull.plain:
            mark = sum_of_marks([bar.mark for bar in cotangents])
            return [Bar(value.deps, mark) for value in rows]
        marks = self._marks_for_any_data(pull, len(data), cotangents)
        if marks is None:  # what is known to be zero adds nothing; to know it, constants are computed
            constants = [value.constant() for value in data]
            data_marks = [DATA if c is None else self.offset.domain.constant(c) for c in constants]
            marks = self.offset.run(pull.jaxpr, pull.consts, [*data_marks, *(bar.mark for bar in cotangents)])
        return [Bar(value.deps, mark) for value, mark in zip(rows, marks, strict=True)]

    def _marks_for_any_data(self, pull: _PullBack, count: int, cotangents: Sequence[Bar]) -> list[Mark] | None:
        """The marks of what is pulled back; None unless it is zero where the cotangents are, whatever the data are."""
        notes, first = self.offset.notes, len(self.offset.notes)
        marks = self.offset.run(pull.jaxpr, pull.consts, [*[DATA] * count, *(bar.mark for bar in cotangents)])
        if len(notes) == first and all(mark.zero or not mark.sources for mark in marks):
            return marks
        del notes[first:]
        return None


def _target(node: Node, shape: Sequence[int]) -> Bar:
    return Bar({node: identity(shape)}, Mark(True, frozenset({node})))


def _sum(a: Bar, b: Bar) -> Bar:
    deps = dict(a.deps)
    for source, dep in b.deps.items():
        deps[source] = union([deps[source], dep]) if source in deps else dep
    return Bar(deps, sum_of_marks([a.mark, b.mark]))


def _pull_back(opened: _Opened, like: Jaxpr, programs: dict[Hashable, _PullBack]) -> _PullBack:
    """The pull-back of an equation; one of a kind (`_kind`) is kept, for good or in the `programs` of a sweep."""
    kind = _kind(opened)
    pull = None if kind is None else _KEPT.get(kind) or programs.get(kind)
    if pull is not None:
        return pull
    jaxpr, consts = open_jaxpr(_transposed(opened, like))
    if kind is None:
        return _PullBack(jaxpr, consts, plain=False)
    # JAX runs the equation forwards first, of which the way back mostly needs nothing.
    jaxpr = without_sources(without_dead_code(jaxpr))
    name = opened.eqn.primitive.name
    plain = (name in CUSTOM or is_own(name)) and is_concrete(consts) and all(map(_is_linear, equations(jaxpr)))
    if plain and len(_KEPT) >= MAX_KEPT:
        _KEPT.clear()
    pull = (_KEPT if plain else programs)[kind] = _PullBack(jaxpr, consts, plain)
    return pull


def _is_linear(eqn: JaxprEqn) -> bool:
    """Whether an equation of a derivative that JAX wrote is known: what a user registered may be affine, and change."""
    return eqn.primitive.name in INLINED or is_own(eqn.primitive.name)


def _kind(opened: _Opened) -> Hashable | None:
    """What the pull-back of a primitive without bodies, or of a function of JAX's with a rule, depends on.

    None for others, and if that cannot be compared.
    """
    eqn, number = opened.eqn, {v: i for i, v in enumerate(opened.operands)}
    does = _rule_of_jax(opened) if eqn.primitive.name in CUSTOM else tuple(eqn.params.items())
    if does is None or (eqn.primitive.name not in CUSTOM and bodies_of(eqn)):
        return None
    args = tuple((v.aval, np.asarray(v.val).tobytes()) if isinstance(v, Literal) else number[v] for v in eqn.invars)
    avals = tuple(v.aval for v in opened.operands)
    sites = tuple((site.operand, site.rule) for site in opened.sites)
    kind = (eqn.primitive, does, args, avals, sites, *opened[2:4], *opened[5:])
    try:
        hash(kind)
    except TypeError:
        return None
    return kind


def _rule_of_jax(opened: _Opened) -> Hashable | None:
    """The derivative rule of a function of JAX's own, which is the same whenever it is called; None for others."""
    if not has_rule_of_jax(opened.eqn) or any(len(site.at) > 1 for site in opened.sites):
        return None
    rule = rule_function(opened.eqn)
    return None if rule is None else (*rule, opened.eqn.params["symbolic_zeros"])


def _transposed(opened: _Opened, like: Jaxpr) -> Any:
    eqn = opened.eqn
    jaxpr = build_jaxpr(opened.operands, [eqn.outvars[i] for i in opened.outs], [eqn], like)
    sites = [_first(site) for site in opened.sites]
    moving, fixed = opened.split(moving=True), opened.split(moving=False)

    def run(some: list[Array], rest: list[Array]) -> list[Array]:
        values = dict(zip(moving, some, strict=False)) | dict(zip(fixed, rest, strict=True))
        deltas = dict(enumerate(some[len(moving) :]))
        outs, observed = run_opened(jaxpr, [values[v] for v in opened.operands], sites, opened.cut, deltas)
        return [*outs, *(observed[n].y for n in opened.seen)]

    some = [*(shape_struct(v.aval) for v in moving), *(site.y_struct for site in sites)]
    return pulled_back(run, some, [shape_struct(v.aval) for v in fixed])


def _first(site: WeightSite) -> WeightSite:
    """A weight op of an equation that stands alone."""
    loops = tuple(((0, *where[1:]), length) for where, length in site.loops)
    return replace(site, at=(0, *site.at[1:]), loops=loops)
