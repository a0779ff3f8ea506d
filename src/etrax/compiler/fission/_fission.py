"""A loop over steps, split: what is on no cycle runs for all steps at once (`compiler/fission/_schedule.py` says when).

    for every step: all of it        becomes        all steps: X W₁;  for every step: layer 1;  all steps: Z W₂;  …

The numbers are those of the loop, in another order. Derivatives are taken of the split program, so that reverse mode is
split alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..._compat import JaxprEqn, Literal, ScanParts, Var, bodies_of, open_jaxpr, run_equation, scan_parts
from ..ir import Address, PyTree, interpret, mapped
from ._schedule import Part, Parted, Schedule, products_to_part, schedule

Step: TypeAlias = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]


def split_scan(step: Step, carry: PyTree, xs: PyTree, length: int) -> tuple[PyTree, PyTree]:
    """`lax.scan(step, carry, xs, length)`, split where that pays."""

    def loop(carry: PyTree, xs: PyTree) -> tuple[PyTree, PyTree]:
        return lax.scan(step, carry, xs, length)

    if length == 1:
        return loop(carry, xs)
    traced, tree = jax.make_jaxpr(loop, return_shape=True)(carry, xs)

    def handle(_: object, eqn: JaxprEqn, values: list[Array]) -> Sequence[Array] | None:
        return _split(scan_parts(eqn), values) if eqn.primitive.name == "scan" else None

    jaxpr, consts = open_jaxpr(traced)
    outs = interpret(jaxpr, consts, jax.tree.leaves((carry, xs)), handle)
    return jax.tree.unflatten(jax.tree.structure(tree), outs)


def _split(loop: ScanParts, values: Sequence[Array]) -> list[Array] | None:
    """Run a loop in parts and return its results; None if it is better run as it is."""
    parted = products_to_part(loop.jaxpr, loop.num_consts, loop.num_carry)
    if parted:
        n, m = loop.num_consts, loop.num_consts + loop.num_carry

        def step(carry: list[Array], xs: list[Array]) -> tuple[list[Array], list[Array]]:
            outs = _with_products_apart(loop, [*values[:n], *carry, *xs], parted)
            return outs[: loop.num_carry], outs[loop.num_carry :]

        ends, outs = split_scan(step, list(values[n:m]), list(values[m:]), loop.length)
        return [*ends, *outs]
    plan = schedule(loop.jaxpr, loop.num_consts, loop.num_carry)
    return None if plan.is_one_loop else _Run(loop)(plan, values)


def _with_products_apart(loop: ScanParts, args: Sequence[Array], parted: Mapping[int, Parted]) -> list[Array]:
    """One step, in which products over concatenated data are sums of products over parts of these."""
    pieces_of: dict[int, list[Array]] = {p.concatenation: [] for p in parted.values()}

    def handle(site: Address, eqn: JaxprEqn, values: list[Array]) -> list[Array]:
        (n,) = site
        if n in pieces_of:
            pieces_of[n] = values
        if n not in parted:
            return run_equation(eqn, values)
        p, values = parted[n], list(values)
        concatenation = loop.jaxpr.eqns[p.concatenation]
        axis, other = concatenation.params["dimension"], 1 - p.operand
        contracted = eqn.params["dimension_numbers"][0]
        at = contracted[other][contracted[p.operand].index(axis)]
        ends = np.cumsum([0, *(v.aval.shape[axis] for v in concatenation.invars)])
        weight, terms = values[other], []
        for now in (True, False):
            numbers = [k for k, ahead in enumerate(p.ahead) if ahead is now]
            values[p.operand] = lax.concatenate([pieces_of[p.concatenation][k] for k in numbers], axis)
            pieces = [lax.slice_in_dim(weight, int(ends[k]), int(ends[k + 1]), axis=at) for k in numbers]
            values[other] = lax.concatenate(pieces, at)
            # [a, b] W = a W_a + b W_b: what is known for all steps leaves the loop, and the loop multiplies by less.
            terms.append(run_equation(eqn, values)[0])
        return [terms[0] + terms[1]]

    return interpret(loop.jaxpr, loop.consts, args, handle)


class _Run:
    """One evaluation, with what is known by variable: `fixed` at all steps, `stacked` over them."""

    def __init__(self, loop: ScanParts):
        n, m = loop.num_consts, loop.num_consts + loop.num_carry
        self.jaxpr, self.length, ins = loop.jaxpr, loop.length, loop.jaxpr.invars
        self.constants, self.carried, self.slices = ins[:n], ins[n:m], ins[m:]
        self.fresh, self.outputs = loop.jaxpr.outvars[: loop.num_carry], loop.jaxpr.outvars[loop.num_carry :]
        self.fixed: dict[Var, Array] = dict(zip(loop.jaxpr.constvars, loop.consts, strict=True))
        self.stacked: dict[Var, Array] = {}
        self.start: list[Array] = []
        self.end: dict[int, Array] = {}

    def __call__(self, plan: Schedule, values: Sequence[Array]) -> list[Array]:
        n, m = len(self.constants), len(self.constants) + len(self.carried)
        self.fixed.update(zip(self.constants, values[:n], strict=True))
        self.start = list(values[n:m])
        self.stacked.update(zip(self.slices, values[m:], strict=True))
        for old, new, value in zip(self.carried, self.fresh, self.start, strict=True):
            # A state that is passed on as it was is a constant of the loop.
            if old is new:
                self.fixed[old] = value
        self.fixed.update(self.run(plan.once, dict(self.fixed)))
        for i, part in enumerate(plan.parts):
            wanted = self.wanted(part, plan.parts[i + 1 :])
            self.loop(part, wanted) if part.loop else self.at_once(part, wanted)
        ends = [self.end[i] if i in self.end else self.last(v) for i, v in enumerate(self.fresh)]
        return [*ends, *(self.all_steps(v) for v in self.outputs)]

    def run(self, equations: Iterable[int], values: dict[Var, Array]) -> dict[Var, Array]:
        """The variables that equations give, of what is known at one step."""
        for n in equations:
            eqn = self.jaxpr.eqns[n]
            outs = run_equation(eqn, [v.val if isinstance(v, Literal) else values[v] for v in eqn.invars])
            values.update(zip(eqn.outvars, outs, strict=True))
        return values

    def reads(self, part: Part) -> list[Var]:
        """The variables that a part reads, in order."""
        atoms = [v for n in part.equations for v in self.jaxpr.eqns[n].invars]
        atoms += [self.fresh[i] for i in part.states]
        return [v for v in dict.fromkeys(v for v in atoms if not isinstance(v, Literal))]

    def given(self, part: Part) -> list[Var]:
        results = [v for n in part.equations for v in self.jaxpr.eqns[n].outvars]
        return [*results, *(self.carried[i] for i in part.states)]

    def wanted(self, part: Part, later: Sequence[Part]) -> list[Var]:
        """The variables of a part that other parts read, over all steps."""
        read = {v for other in later for v in self.reads(other)}
        read |= {v for v in self.outputs if not isinstance(v, Literal)}
        carried = {i for other in (part, *later) for i in other.states}
        # A state that no loop carries is read as what made it, a step later.
        read |= {v for i, v in enumerate(self.fresh) if i not in carried and not isinstance(v, Literal)}
        return [v for v in self.given(part) if v in read]

    def outside(self, part: Part) -> dict[Var, Array]:
        """What a part reads of others that changes from step to step."""
        results = set(self.given(part))
        return {v: self.all_steps(v) for v in self.reads(part) if v not in results and v not in self.fixed}

    def loop(self, part: Part, wanted: Sequence[Var]) -> None:
        states = [self.carried[i] for i in part.states]

        def step(carry: list[Array], slices: dict[Var, Array]) -> tuple[list[Array], list[Array]]:
            values = {**self.fixed, **slices, **dict(zip(states, carry, strict=True))}
            values = self.run(part.equations, values)
            ends = [self.fresh[i] for i in part.states]
            return [_value(v, values) for v in ends], [values[v] for v in wanted]

        outside = self.outside(part)
        names = list(outside)
        start = [self.start[i] for i in part.states]
        ends, outs = lax.scan(
            lambda carry, xs: step(carry, dict(zip(names, xs, strict=True))), start, list(outside.values()), self.length
        )
        self.end.update(zip(part.states, ends, strict=True))
        self.stacked.update(zip(wanted, outs, strict=True))

    def at_once(self, part: Part, wanted: Sequence[Var]) -> None:
        outside = self.outside(part)
        names = list(outside)

        def step(xs: list[Array]) -> list[Array]:
            values = self.run(part.equations, {**self.fixed, **dict(zip(names, xs, strict=True))})
            return [values[v] for v in wanted]

        xs = list(outside.values())
        # A model's own derivative rule may hold what cannot be batched: it then runs step by step, in a loop that has
        # no carry.
        rules = any(_has_own_derivative(self.jaxpr.eqns[n]) for n in part.equations)
        outs = lax.map(step, xs) if rules and not _maps_back(step, xs) else mapped(step, xs)
        self.stacked.update(zip(wanted, outs, strict=True))

    def all_steps(self, v: Var) -> Array:
        """A variable, stacked over the steps; a state that no loop carries is what made it, a step later."""
        if isinstance(v, Literal) or v in self.fixed:
            value = _value(v, self.fixed)
            return jnp.broadcast_to(value, (self.length, *jnp.shape(value)))
        if v not in self.stacked:
            i = self.carried.index(v)
            # The state before step k is what step k − 1 made; before the first it is the start.
            first, rest = self.start[i][None], self.all_steps(self.fresh[i])[:-1]
            self.stacked[v] = jnp.concatenate([first, rest.astype(first.dtype)])
        return self.stacked[v]

    def last(self, v: Var) -> Array:
        if isinstance(v, Literal) or v in self.fixed:
            return jnp.asarray(_value(v, self.fixed))
        return self.all_steps(v)[-1]


def _has_own_derivative(eqn: JaxprEqn) -> bool:
    """Whether a derivative rule of the model's own is in an equation."""
    inner = (e for body in bodies_of(eqn) for e in body.eqns)
    return eqn.primitive.name == "custom_vjp_call" or any(map(_has_own_derivative, inner))


def _maps_back(step: Callable[[list[Array]], list[Array]], xs: list[Array]) -> bool:
    """Whether what the derivative of a step does can be batched: a callback on the way back cannot."""

    def back(xs: list[Array]) -> PyTree:
        moving = {i: x for i, x in enumerate(xs) if jnp.issubdtype(x.dtype, jnp.inexact)}

        def run(some: dict[int, Array]) -> list[Array]:
            outs = jax.vmap(step)([some.get(i, x) for i, x in enumerate(xs)])
            return [o for o in outs if jnp.issubdtype(o.dtype, jnp.inexact)]

        outs, pull = jax.vjp(run, moving)
        return pull(outs)

    try:
        jax.eval_shape(back, xs)
    except NotImplementedError:
        return False
    return True


def _value(v: Var, values: dict[Var, Array]) -> Array:
    return v.val if isinstance(v, Literal) else values[v]
