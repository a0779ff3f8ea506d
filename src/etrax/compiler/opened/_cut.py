"""Run a step with its weight ops opened: their data read off, their outputs perturbed, and some of them cut.

For site j:  y_j = op(u_j, w_j)  becomes  y_j + δ_j,  and  stop_gradient(y_j) + δ_j  where it is cut. For an elementwise
weight δ_j is added to the weight itself (broadcast to the op's shape), and a cut stops the gradient of its data.
A state can be held as well: where the step computes its new value h', what follows reads  stop_gradient(h') + δ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..._compat import Jaxpr, JaxprEqn, Literal, ScanParts, cond_branches, run_equation, scan_parts, source_of, zeros_of
from ..ir import Address, Detach, Step, interpret
from ..ops import ALIGNED
from ._sites import Addresses, WeightSite


class SeenOp(NamedTuple):
    """One op as it ran: y before it was perturbed, its varying data operands, and y as it was passed on."""

    y: Array
    data: tuple[Array, ...]
    perturbed: Array


# By site number.
Seen: TypeAlias = dict[int, SeenOp]
# Perturbations by site; None where there is none.
Deltas: TypeAlias = dict[int, Array | None]
# What a scan hands to one iteration: its own slices, perturbations, and slices of weights.
Scanned: TypeAlias = tuple[list[Array], Deltas, dict[int, Array]]


@dataclass(frozen=True, eq=False)
class OpenStep:
    """A step with perturbation inputs at its sites."""

    step: Step
    sites: tuple[WeightSite, ...]
    cut: frozenset[int]

    def __call__(
        self,
        leaves: Sequence[Array],
        deltas: Mapping[int, Array],
        weights: Sequence[Array] | None = None,
        given: Mapping[int, Array] | None = None,
        kernels: Mapping[int, Callable[..., Array]] | None = None,
        held: Mapping[int, Array] | None = None,
        states: Mapping[int, Array] | None = None,
        detach: Detach = lax.stop_gradient,
    ) -> tuple[list[Array], Seen]:
        """Outputs, and what was seen at each site, for input leaves in order and perturbations δ, by site.

        `weights`, one per site, stand in for what the step would compute from its parameters; `given` values of y, by
        site, for what ops would compute (one that is not cut keeps its derivative in its data); `kernels`, by site,
        compute an op from its data in another way; `held` are the perturbations of states to hold, by number. A state
        that is an old state or a constant is not computed, so it cannot be held. `states`, by number, take the place
        of old states among the leaves. `detach` is how a value becomes a constant: by default of every derivative; in
        numbers that a user may differentiate, of one derivative.
        """
        run = _Run(self.sites, self.cut, weights, given, kernels, detach)
        run.held = _defined(self.step, held or {})
        leaves = self.step.with_states(leaves, states or {})
        all_deltas = {j: deltas.get(j) for j in range(len(self.sites))}
        outs, seen = run.body(self.step.jaxpr, (), [*self.step.consts, *leaves], (), all_deltas)
        n = len(self.step.jaxpr.eqns)
        for j, s in enumerate(self.sites):
            if len(s.at) == 1 and s.at[0] >= n:
                k = s.at[0] - n
                out = outs[k] if weights is None else weights[j]
                seen[j] = SeenOp(out, (), out)
                outs[k] = _plus(out, deltas.get(j))
        return outs, seen

    def no_deltas(self, sites: Iterable[int]) -> dict[int, Array]:
        """Perturbations by zero, to differentiate at."""
        return {j: jnp.zeros(self.sites[j].y_shape, self.sites[j].call.out.dtype) for j in sites}

    def inside(
        self, eqn: JaxprEqn, values: list[Array], number: int, outputs: Mapping[int, Array] | None = None
    ) -> list[Array] | None:
        """The outputs of equation `number` with the sites inside it open and not perturbed; None if it is no loop.

        `outputs`, by site, take the place of the first result of the site's equation, behind an axis for each loop.
        """
        run = _Run(self.sites, self.cut, None)
        run.replaced = frozenset(outputs or {})
        enter = {"scan": run.scan, "cond": run.cond}.get(eqn.primitive.name)
        at = (number,)
        deltas = {j: (outputs or {}).get(j) for j in run.at.below[at]}
        return None if enter is None else enter(eqn, values, at, deltas)[0]


def run_opened(
    jaxpr: Jaxpr, args: Sequence[Array], sites: Sequence[WeightSite], cut: frozenset[int], deltas: Mapping[int, Array]
) -> tuple[list[Array], Seen]:
    """Outputs of a part of a step, and what was seen at each of its sites; all sites are perturbed."""
    return _Run(sites, cut, None).body(jaxpr, (), args, (), dict(deltas))


def _defined(step: Step, held: Mapping[int, Array]) -> dict[int, list[tuple[int, Array]]]:
    """By equation of the step, which of its results are held, and the perturbation of each."""
    new = [(step.jaxpr.outvars[i], delta) for i, delta in held.items()]
    by_var = {v: delta for v, delta in reversed(new) if not isinstance(v, Literal)}  # one value may be two states
    results_of: dict[int, list[tuple[int, Array]]] = {}
    for n, eqn in enumerate(step.jaxpr.eqns if by_var else ()):
        results_of[n] = [(k, by_var[v]) for k, v in enumerate(eqn.outvars) if v in by_var]
    return {n: results for n, results in results_of.items() if results}


def _plus(y: Array, delta: Array | None) -> Array:
    return y if delta is None else y + delta.astype(y.dtype)


@jax.custom_jvp
def _of_value(y: Array, value: Array) -> Array:
    """A known value, with the derivative of what computes it: what is computed for the value alone is left out."""
    return value


_of_value.defjvp(lambda primals, tangents: (primals[1], tangents[0]))


class _Run:
    """One evaluation. Sites are found by the address of their equation, also inside scans and branches."""

    def __init__(
        self,
        sites: Sequence[WeightSite],
        cut: frozenset[int],
        weights: Sequence[Array] | None,
        given: Mapping[int, Array] | None = None,
        kernels: Mapping[int, Callable[..., Array]] | None = None,
        detach: Detach = lax.stop_gradient,
    ):
        self.sites, self.cut, self.given, self.kernels = sites, cut, given or {}, kernels or {}
        self.detach = detach
        self.weights = {} if weights is None else dict(enumerate(weights))
        self.at = Addresses(sites)
        self.held: dict[int, list[tuple[int, Array]]] = {}
        self.replaced: frozenset[int] = frozenset()  # what is given for these sites is the result of their equation

    def body(
        self, jaxpr: Jaxpr, consts: Sequence[Array], args: Sequence[Array], at: Address, deltas: Deltas
    ) -> tuple[list[Array], Seen]:
        seen: Seen = {}

        def handle(site: Address, eqn: JaxprEqn, values: list[Array]) -> Sequence[Array] | None:
            outs = opened(site, eqn, values)
            first, *inner = site
            if inner or first not in self.held:
                return outs
            outs = list(run_equation(eqn, values) if outs is None else outs)
            for k, delta in self.held[first]:
                outs[k] = _plus(self.detach(outs[k]), delta)
            return outs

        def opened(site: Address, eqn: JaxprEqn, values: list[Array]) -> Sequence[Array] | None:
            enter = {"scan": self.scan, "cond": self.cond}.get(eqn.primitive.name)
            here = self.at.here.get(site, ())
            results = [d for j in here if j in self.replaced and (d := deltas[j]) is not None]
            moves = {**deltas, **dict.fromkeys(j for j in here if j in self.replaced)} if results else deltas
            if here and site not in self.at.below:
                outs = self.weight_op(eqn, values, here, moves, seen)
            elif enter is not None and site in self.at.below:
                for j in here:  # a weight with which the loop begins
                    values = self.perturbed(j, eqn, values, moves, seen)
                with source_of(eqn):
                    outs, inside = enter(eqn, values, site, {j: deltas[j] for j in self.at.below[site]})
                seen.update(inside)
            else:
                return None
            return [results[0], *outs[1:]] if results else outs

        return interpret(jaxpr, consts, args, handle, at), seen

    def weight_op(
        self, eqn: JaxprEqn, values: list[Array], sites: Sequence[int], deltas: Deltas, seen: Seen
    ) -> list[Array]:
        for j in sites:
            values = self.perturbed(j, eqn, values, deltas, seen)
        traced = [j for j in sites if self.sites[j].rule is not ALIGNED]
        replaced = [j for j in traced if j in self.given and len(self.sites[j].at) == 1]
        # One op may be the site of two weights: its output is the same value.
        data = {j: tuple(values[i] for i in self.sites[j].rule.varying(self.sites[j].call)) for j in traced}
        rule = self.sites[traced[0]].rule if traced else ALIGNED
        if replaced and len(eqn.outvars) == 1:
            outs = [self.given[replaced[0]]]
            if not any(j in self.cut for j in traced):
                outs = [_of_value(rule.rows_moved_last(run_equation(eqn, values)[0]), outs[0])]
        elif traced and traced[0] in self.kernels and (len(eqn.outvars) == 1 or len(self.sites[traced[0]].at) == 1):
            # At the top of a step nothing reads further outputs of an op that has a kernel: they are its work space.
            outs = [self.kernels[traced[0]](*data[traced[0]]), *(zeros_of(v.aval) for v in eqn.outvars[1:])]
        else:
            outs = run_equation(eqn, values)
            outs[0] = rule.rows_moved_last(outs[0]) if traced else outs[0]
        y = outs[0]
        with source_of(eqn):
            if any(j in self.cut for j in traced):
                outs[0] = self.detach(outs[0])
            for j in traced:
                outs[0] = _plus(outs[0], deltas[j])
            for j in traced:
                seen[j] = SeenOp(y, data[j], outs[0])
            outs[0] = rule.rows_moved_first(outs[0]) if traced else outs[0]
        return outs

    def perturbed(self, j: int, eqn: JaxprEqn, values: Sequence[Array], deltas: Deltas, seen: Seen) -> list[Array]:
        """Operands with the weight of a site in its place, and perturbed if it is elementwise."""
        site, values = self.sites[j], list(values)
        values[site.operand] = self.weights.get(j, values[site.operand])
        if site.rule is not ALIGNED:
            return values
        w = jnp.broadcast_to(values[site.operand], site.call.out.shape)
        # What a cut product would have passed on is read off before it is cut.
        y = run_equation(eqn, values)[0] if j in self.cut else w
        seen[j] = SeenOp(y, (), y)
        with source_of(eqn):
            values[site.operand] = _plus(w, deltas[j])
            if j in self.cut:
                values = [v if i == site.operand else self.detach(v) for i, v in enumerate(values)]
        return values

    def scan(self, eqn: JaxprEqn, values: list[Array], at: Address, deltas: Deltas) -> tuple[list[Array], Seen]:
        parts: ScanParts = scan_parts(eqn)
        n, m = parts.num_consts, parts.num_consts + parts.num_carry

        sliced = {j: self.weights[j] for j in deltas if j in self.weights and self.sites[j].is_sliced_by(at)}

        def step(carry: list[Array], xs: Scanned) -> tuple[list[Array], tuple[list[Array], Seen]]:
            scanned, inner, slices = xs
            self.weights.update(slices)
            outs, seen = self.body(parts.jaxpr, parts.consts, [*values[:n], *carry, *scanned], at, inner)
            self.weights.update(sliced)
            return outs[: parts.num_carry], (outs[parts.num_carry :], seen)

        xs = (values[m:], deltas, sliced)
        carry, (ys, seen) = lax.scan(step, values[n:m], xs, parts.length, parts.reverse, parts.unroll)
        return [*carry, *ys], seen

    def cond(self, eqn: JaxprEqn, values: list[Array], at: Address, deltas: Deltas) -> tuple[list[Array], Seen]:
        def branch(b: int, body: Jaxpr, consts: Sequence[Array]) -> Callable[..., tuple[list[Array], Seen]]:
            def run(operands: list[Array], inner: Deltas) -> tuple[list[Array], Seen]:
                outs, seen = self.body(body, consts, operands, (*at, b), inner)
                return outs, {j: seen.get(j) or self.blank(j, at) for j in deltas}

            return run

        runs = [branch(b, body, consts) for b, (body, consts) in enumerate(cond_branches(eqn))]
        return lax.switch(values[0], runs, values[1:], deltas)

    def blank(self, j: int, at: Address) -> SeenOp:
        """What a branch that was not taken shows of a site in another: zeros."""
        site = self.sites[j]
        loops = [n for where, n in site.loops if where[: len(at)] == at]
        varying = () if site.rule is ALIGNED else site.rule.varying(site.call)
        shapes = [site.call.out, *(site.call.operands[i] for i in varying)]
        y, *u = (jnp.zeros((*loops, *s.shape), s.dtype) for s in shapes)
        return SeenOp(y, tuple(u), y)
