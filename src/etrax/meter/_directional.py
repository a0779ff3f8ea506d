r"""The gradient of one call, projected on the span of candidates: what `etrax.directional` runs.

The candidates are made orthonormal first, and tangents are carried along the orthonormal directions q,

.. math::
    \hat g = \sum_j (g \cdot q_j)\, q_j

so that nothing is divided by what nearly dependent candidates have apart from each other: V (VᵀV)⁻¹ Vᵀ g would be, with
VᵀV close to singular. A candidate that depends on those before it gives a direction of zero, which adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from .._compat import common_dtype, is_inexact
from ..compiler.analysis import Facts
from ..compiler.ir import PyTree, Role
from ..learn import Arguments, Losses, Program, run_sequence, steps_of
from ..rules import CallMemory, Candidates, next_keys, numbers_of
from ._tangents import Direction, push_arguments, zero_tangents

# (arguments, memory of the calls before, targets, losses, window, remat) -> loss, gradients, states at the end, memory
ByCall = Callable[..., tuple[Array, PyTree, list[Array], CallMemory]]
# A direction whose part outside of those before it is shorter than this many units in the last place is zero.
_ROUNDING = 16


def projected_gradient(
    facts: Facts, members: Sequence[Program], candidates: Candidates, frozen: frozenset[int]
) -> ByCall:
    """The gradient of a call by the rules of `members`, each once, and by tangents along what they gave."""
    leaves = facts.step.select(Role.PARAM)
    moving = [i for i, leaf in enumerate(leaves) if is_inexact(leaf.aval)]
    # Numbers among the parameters that have derivatives, as directions count them; frozen ones never move.
    learned = [n for n, i in enumerate(moving) if i not in frozen and leaves[i].aval.size]
    groups = [(n,) for n in learned] if candidates.by_parameter else [tuple(learned)] if learned else []

    def run(
        arguments: Arguments, memory: CallMemory, targets: PyTree, losses: Losses, k: int, remat: int | None
    ) -> tuple[Array, PyTree, list[Array], CallMemory]:
        pairs = zip(members, memory.learned, strict=True)
        runs = [_by_rule(member, learned, arguments, targets, losses, k, remat) for member, learned in pairs]
        loss, _, states, _ = runs[0]
        now, later = next_keys(candidates.key, memory.key)
        columns = [grads for _, grads, _, _ in runs] + ([memory.last] if candidates.last else [])
        columns += [_drawn(key, arguments.params) for key in jax.random.split(now, candidates.random)]
        parts = [[column[i] for i in moving] for column in columns]
        bases = [orthonormal([[part[n] for n in group] for part in parts]) for group in groups]
        directions = [
            Direction(group, [_moves(q, arguments.params[moving[n]]) for n, q in zip(group, basis, strict=True)])
            for group, basis in zip(groups, bases, strict=True)
        ]
        weighed = (targets, arguments.weight)
        scale = losses.total(weighed, steps_of(arguments.inputs, (weighed, arguments.reset)))
        _, products, _ = push_arguments(
            facts, losses, arguments, targets, directions, zero_tangents(arguments.states, directions)
        )
        grads = [jnp.zeros_like(p) for p in arguments.params]
        for group, basis, slopes in zip(groups, bases, products, strict=True):
            for n, q in zip(group, basis, strict=True):
                sums = jnp.tensordot(slopes.astype(jnp.real(q).dtype) / scale, q, 1)
                grads[moving[n]] = sums.astype(grads[moving[n]].dtype)
        tree = jax.tree.unflatten(facts.step.trees[Role.PARAM], grads)
        last = grads if candidates.last else []
        return loss, tree, states, CallMemory(last, numbers_of(later), [memory for *_, memory in runs])

    return run


def _moves(q: Array, param: Array) -> Array:
    """How a parameter moves along a gradient: since dL = Re(g dθ), a complex one by its conjugate."""
    return jnp.conj(q).astype(param.dtype)


def _by_rule(
    program: Program,
    learned: PyTree,
    arguments: Arguments,
    targets: PyTree,
    losses: Losses,
    k: int,
    remat: int | None,
) -> tuple[Array, list[Array], list[Array], PyTree]:
    """Loss, leaves of the gradient, states at the end, and what the rule keeps; its trace begins with the call."""
    persistent = program.transport.persistent
    trace = persistent.renew(program.transport.init(), learned)
    loss, grads, states, trace = run_sequence(program, arguments, trace, targets, losses, k, remat)
    return loss, jax.tree.leaves(grads), states, persistent.learned(trace)


def _drawn(key: Array, params: Sequence[Array]) -> list[Array]:
    """Normal numbers for each parameter; nothing that has no derivative moves."""
    keys = jax.random.split(key, max(len(params), 1))

    def one(key: Array, param: Array) -> Array:
        if not is_inexact(param):
            return jnp.zeros(param.shape)
        return jax.random.normal(key, param.shape, common_dtype(param.dtype, jnp.float32))

    return [one(key, param) for key, param in zip(keys, params, strict=False)]


def orthonormal(columns: Sequence[Sequence[Array]]) -> list[Array]:
    """An orthonormal basis of the span of columns, each a list of arrays; per array, basis vectors along a new axis.

    Complex arrays count as pairs of real ones. Each column is freed of those before it twice, which is enough to make
    it orthogonal to rounding; what is then left of a dependent one is rounding, and becomes zero.
    """
    basis: list[list[Array]] = []
    for column in columns:
        wide = [a.astype(common_dtype(a.dtype, jnp.float32)) for a in column]
        vector = _unit(wide, 0.0)
        for q in basis * 2:
            along = _product(q, vector)
            vector = [a - along.astype(jnp.real(a).dtype) * b for a, b in zip(vector, q, strict=True)]
        basis.append(_unit(vector, _ROUNDING * max(float(jnp.finfo(a.dtype).eps) for a in wide)))
    return [jnp.stack(arrays) for arrays in zip(*basis, strict=True)]


def _product(one: Sequence[Array], other: Sequence[Array]) -> Array:
    return sum((jnp.real(jnp.vdot(a, b)) for a, b in zip(one, other, strict=True)), jnp.zeros(()))


def _unit(vector: Sequence[Array], least: float) -> list[Array]:
    """The vector at length one; zeros if it is not longer than `least`, or not finite."""
    # Divided by the largest element first, since squares of small gradients would vanish.
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(a)) for a in vector]))
    size = jnp.where(largest > 0, largest, 1)
    length = size * jnp.sqrt(sum((jnp.sum(jnp.abs(a / size) ** 2) for a in vector), jnp.zeros(())))
    usable = jnp.isfinite(length) & (length > least)
    return [jnp.where(usable, a / jnp.where(usable, length, 1).astype(jnp.real(a).dtype), 0) for a in vector]
