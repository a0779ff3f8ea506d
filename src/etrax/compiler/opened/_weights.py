"""θ → w: the weights of all sites, as a function of the parameters alone.

The step is walked with values that are computed on demand, so that only the equations that lead from parameters to
weights ever run. Differentiating this function gives every parameter its share of its weights' gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..._compat import (
    INLINED,
    Jaxpr,
    JaxprEqn,
    ScanParts,
    bodies_of,
    cond_branches,
    inner_jaxpr,
    is_inexact,
    needed_for,
    run_equation,
    scan_parts,
)
from ..ir import Address, Role, Step, inline, interpret, mapped
from ..ops import ALIGNED
from . import Addresses, WeightSite

T = TypeVar("T")


class _Lazy(Generic[T]):
    """A value that is computed when it is first asked for."""

    __slots__ = ("_thunk", "_value")

    def __init__(self, thunk: Callable[[], T]):
        self._thunk: Callable[[], T] | None = thunk

    def get(self) -> T:
        if self._thunk is not None:
            self._value = self._thunk()
            self._thunk = None
        return self._value


# What the walk holds for a variable.
Value: TypeAlias = Array | _Lazy[Array]


def _force(v: Value) -> Array:
    return v.get() if isinstance(v, _Lazy) else v


class _NeedsData(Exception):
    """Raised by the stand-in for data when it is asked for its value."""


def _data() -> Array:
    raise _NeedsData("a weight depends on data: the sites of this step are not what the step computes")


class Weights(NamedTuple):
    """Per site: its weight, and its op's constant operands; `ops`, where there is a faster way to compute one."""

    weight: list[Array]
    fixed: list[tuple[Array, ...]]
    ops: Mapping[int, Callable[..., Array]] = {}


def weights(step: Step, sites: Sequence[WeightSite], params: Sequence[Array]) -> Weights:
    """Per site its weight (elementwise: broadcast to the shape of y; sliced: one per slice) and constant operands."""
    finder = _Finder(sites)
    args: list[Value] = list(step.consts)
    values = iter(params)
    for leaf in step.ins:
        args.append(next(values) if leaf.role is Role.PARAM else _Lazy(_data))
    outs = finder.walk(step.jaxpr, (), args, ())
    n = len(step.jaxpr.eqns)
    for j, s in enumerate(sites):
        if len(s.at) == 1 and s.at[0] >= n:
            finder.operands[j] = (outs[s.at[0] - n], ())
    weight, fixed = [], []
    for j, s in enumerate(sites):
        w, rest = finder.operands[j]
        w = _force(w)
        weight.append(_aligned(s, w) if s.rule is ALIGNED else w)
        with jax.ensure_compile_time_eval():  # constants stay known
            fixed.append(tuple(_force(v) for v in rest))
    return Weights(weight, fixed)


def param_grads(
    step: Step,
    sites: Sequence[WeightSite],
    params: Sequence[Array],
    site_grads: Mapping[int, Array],
    frozen: frozenset[int] = frozenset(),
) -> list[Array]:
    """Each parameter's share of its weights' gradients, by the VJP of θ → w; zeros for those that are frozen."""
    leaves = step.select(Role.PARAM)
    moving = [i for i, leaf in enumerate(leaves) if is_inexact(leaf.aval) and i not in frozen]

    def values(some: list[Array]) -> dict[int, Array]:
        all_params = list(params)
        for i, v in zip(moving, some, strict=True):
            all_params[i] = v
        weight = weights(step, sites, all_params).weight
        return {j: weight[j] for j in site_grads}

    primal, pull = jax.vjp(values, [params[i] for i in moving])
    (back,) = pull({j: site_grads[j].astype(primal[j].dtype) for j in primal})
    out = [jnp.zeros(leaf.aval.shape, leaf.aval.dtype) for leaf in leaves]
    for i, g in zip(moving, back, strict=True):
        out[i] = g
    return out


def _aligned(site: WeightSite, w: Array) -> Array:
    """(slices…, weight…) → (slices…, out…): the weight's own axes are aligned from the last."""
    lead, shape = site.slices, site.call.out.shape
    axes = jnp.shape(w)[len(lead) :]
    return jnp.broadcast_to(jnp.reshape(w, (*lead, *[1] * (len(shape) - len(axes)), *axes)), (*lead, *shape))


def fixed_operands(step: Step, sites: Sequence[WeightSite]) -> list[tuple[Array | None, ...]]:
    """Constant operands of every site's op, as values; None for what is a parameter (indices among the weights)."""
    finder = _Finder(sites)
    with jax.ensure_compile_time_eval():
        finder.walk(step.jaxpr, (), [*step.consts, *(_Lazy(_data) for _ in step.ins)], ())
        operands = [finder.operands[j][1] if j in finder.operands else () for j in range(len(sites))]
        return [tuple(_force(v) if _is_ready(v) else None for v in values) for values in operands]


def fixed_examples(step: Step, sites: Sequence[WeightSite]) -> list[tuple[Array | np.ndarray, ...]]:
    """Constant operands of every site's op, with zeros for those that are parameters: an example of indices."""
    examples = []
    for site, values in zip(sites, fixed_operands(step, sites), strict=True):
        shapes = [site.call.operands[i] for i in site.rule.fixed_operands]
        pairs = zip(values, shapes, strict=True)
        examples.append(tuple(np.zeros(s.shape, s.dtype) if v is None else v for v, s in pairs))
    return examples


class _Finder:
    def __init__(self, sites: Sequence[WeightSite]):
        self.sites = sites
        self.at = Addresses(sites)
        self.operands: dict[int, tuple[Value, tuple[Value, ...]]] = {}  # the weight, and the constant operands

    def walk(self, jaxpr: Jaxpr, consts: Sequence[Value], args: Sequence[Value], at: Address) -> list[Value]:
        return interpret(jaxpr, consts, args, self.handle, at)

    def handle(self, site: Address, eqn: JaxprEqn, values: list[Value]) -> list[Value] | None:
        name = eqn.primitive.name
        for j in self.at.here.get(site, ()):
            s = self.sites[j]
            self.operands[j] = (values[s.operand], tuple(values[i] for i in s.rule.fixed_operands))
        if site in self.at.below:
            if name in INLINED:
                return None
            (self.scan if name == "scan" else self.cond)(site, eqn, values)
        if name in INLINED and any(isinstance(v, _Lazy) for v in values):
            body, consts = inner_jaxpr(eqn)
            return self.walk(body, consts, values, site)
        outs = _Lazy(lambda: run_equation(eqn, [_force(v) for v in values]))
        split = len(eqn.outvars) > 1 and bool(bodies_of(eqn))

        def output(i: int) -> Array:
            return _alone(eqn, values, i) if split and not all(map(_is_ready, values)) else outs.get()[i]

        return [_Lazy(lambda i=i: output(i)) for i in range(len(eqn.outvars))]

    def cond(self, site: Address, eqn: JaxprEqn, values: list[Value]) -> None:
        for b, (body, consts) in enumerate(cond_branches(eqn)):
            self.walk(body, consts, values[1:], (*site, b))

    def scan(self, site: Address, eqn: JaxprEqn, values: list[Value]) -> None:
        parts = scan_parts(eqn)
        n, m = parts.num_consts, parts.num_consts + parts.num_carry
        same = [parts.jaxpr.outvars[k] is parts.jaxpr.invars[n + k] for k in range(parts.num_carry)]
        carry = [v if s else _Lazy(_data) for v, s in zip(values[n:m], same, strict=True)]
        slices = [_Lazy(_data) for _ in values[m:]]
        self.walk(parts.jaxpr, parts.consts, [*values[:n], *carry, *slices], site)
        for j in self.at.below[site]:
            if self.sites[j].is_sliced_by(site):
                stack = _Stack(self.sites, j, site, parts, values)
                self.operands[j] = (_Lazy(stack.weights), self.operands[j][1])


class _Stack(NamedTuple):
    """A scan that has another weight in each iteration: for one site, all of these weights.

    Of what the scan slices and carries, that which does not depend on data (counters, weights that are halved in each
    iteration) can be computed; the rest is never asked for.
    """

    sites: Sequence[WeightSite]
    site: int
    at: Address
    parts: ScanParts
    values: Sequence[Value]

    def weights(self) -> Array:
        parts, n = self.parts, self.parts.num_consts
        m = n + parts.num_carry
        slices = {i: _force(v) for i, v in enumerate(self.values[m:]) if _is_ready(v)}
        carried = self.carried(slices)

        def body(carry: dict[int, Array], xs: dict[int, Array]) -> tuple[dict[int, Array], Array]:
            ends, weight = self.iteration(carry, xs)
            return {k: _force(ends[k]) for k in carry}, _force(weight)

        start = {k: jnp.asarray(_force(self.values[n + k])) for k in carried}
        if all(parts.jaxpr.outvars[k] is parts.jaxpr.invars[n + k] for k in carried) and slices:
            return mapped(lambda xs: body(start, xs)[1], slices)
        return lax.scan(body, start, slices, parts.length, parts.reverse)[1]

    def iteration(self, carry: Mapping[int, Array], xs: Mapping[int, Array]) -> tuple[list[Value], Value]:
        """The carry after one iteration, and the weight of the site in it; both on demand."""
        parts, n = self.parts, self.parts.num_consts
        finder = _Finder(self.sites)
        start = [carry[k] if k in carry else _Lazy(_data) for k in range(parts.num_carry)]
        scanned = [xs[i] if i in xs else _Lazy(_data) for i in range(len(self.values) - n - parts.num_carry)]
        ends = finder.walk(parts.jaxpr, parts.consts, [*self.values[:n], *start, *scanned], self.at)
        return ends[: parts.num_carry], finder.operands[self.site][0]

    def carried(self, slices: Mapping[int, Array]) -> list[int]:
        """What of the carry never depends on data."""
        n = self.parts.num_consts
        carried = [k for k in range(self.parts.num_carry) if _is_ready(self.values[n + k])]
        one = {i: jax.tree.map(lambda a: a[0], v) for i, v in slices.items()} if self.parts.length else {}
        while True:
            ends, _ = self.iteration({k: _force(self.values[n + k]) for k in carried}, one)
            still = [k for k in carried if _is_ready(ends[k])]
            if still == carried:
                return carried
            carried = still


def _alone(eqn: JaxprEqn, values: Sequence[Value], output: int) -> Array:
    """One output of an equation, of whose operands others may need data."""
    jaxpr, read = needed_for(eqn, output)
    return inline(jaxpr, (), [_force(v) for v, needed in zip(values, read, strict=True) if needed])[0]


def _is_ready(v: Value) -> bool:
    try:
        _force(v)
    except _NeedsData:
        return False
    return True
