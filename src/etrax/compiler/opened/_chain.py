"""What several rewritings of chains of equations share: how axes run through them, what is data, and how they run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from ..._compat import (
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    build_jaxpr,
    close_jaxpr,
    is_inexact,
    open_jaxpr,
    run_equation,
    shape_struct,
    without_sources,
)
from ..dataflow import uniformity
from ..ir import Role, Step
from ..ops import size
from ..primitives import Along

# For each axis of a value, the axis of another value that it runs along, element by element; None: it is made anew.
Axes: TypeAlias = tuple[int | None, ...]
# Axes of each output of an equation, as axes of one of its operands.
Moves: TypeAlias = Callable[[JaxprEqn, int], list[Axes]]


def data_variables(step: Step) -> set[Var]:
    """Variables that are made of more than parameters and constants."""
    leaves = zip(step.jaxpr.invars[len(step.consts) :], step.ins, strict=True)
    data = {v for v, leaf in leaves if leaf.role is not Role.PARAM}
    for eqn in step.jaxpr.eqns:
        if any(not isinstance(v, Literal) and v in data for v in eqn.invars):
            data.update(eqn.outvars)
    return data


def uniform_along(step: Step, data: set[Var]) -> dict[Var, Along]:
    """Of the variables that are no data, the axes along which all elements are equal."""
    # An equation may read data and have no results (a `cond` whose branches give the same).
    eqns = [eqn for eqn in step.jaxpr.eqns if not any(not isinstance(v, Literal) and v in data for v in eqn.invars)]
    outs = list(dict.fromkeys(v for eqn in eqns for v in eqn.outvars))
    free = [v for v in step.jaxpr.invars if v not in data]
    jaxpr = close_jaxpr(build_jaxpr(free, [*free, *outs], eqns, step.jaxpr))
    values = uniformity(jaxpr, [True] * len(free))
    return {v: value.along for v, value in zip([*free, *outs], values, strict=True)}


def equations_between(jaxpr: Jaxpr, ends: Collection[Var], roots: Collection[Var], data: set[Var]) -> tuple[int, ...]:
    """Numbers of the equations that lead from roots to some values, in order."""
    wanted, chain = set(ends), []
    for n in reversed(range(len(jaxpr.eqns))):
        eqn = jaxpr.eqns[n]
        if any(v in wanted and v not in roots for v in eqn.outvars):
            chain.append(n)
            wanted |= {v for v in eqn.invars if not isinstance(v, Literal) and v in data and v not in roots}
    return tuple(reversed(chain))


# --- how axes run through equations ---


def is_fine(aval: Any) -> bool:
    """Whether numbers are of a type in which another order of products makes no difference that matters."""
    return is_inexact(aval) and aval.dtype.itemsize >= 4


def elementwise(eqn: JaxprEqn, i: int) -> list[Axes]:
    """Axes of an equation that makes each element of elements in its place."""
    shape, out = eqn.invars[i].aval.shape, eqn.outvars[0].aval.shape
    same = len(shape) == len(out)
    return [tuple(a if same and shape[a] == n else None for a, n in enumerate(out))]


def _product(eqn: JaxprEqn, i: int) -> list[Axes]:
    contracted, batch = eqn.params["dimension_numbers"]
    free = [
        [a if side == i else None for a in range(len(v.aval.shape)) if a not in (*contracted[side], *batch[side])]
        for side, v in enumerate(eqn.invars)
    ]
    return [(*batch[i], *free[0], *free[1])]


def _broadcast(eqn: JaxprEqn, i: int) -> list[Axes]:
    shape, out = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    source = {d: a for a, d in enumerate(eqn.params["broadcast_dimensions"]) if shape[a] == out[d]}
    return [tuple(source.get(d) for d in range(len(out)))]


def _reshape(eqn: JaxprEqn, i: int) -> list[Axes]:
    """An axis runs through if it has the same length, and the axes before it hold as many elements as before."""
    shape, out = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    source = {(size(shape[:a]), n): a for a, n in enumerate(shape) if n > 1}
    return [tuple(source.get((size(out[:d]), n)) for d, n in enumerate(out))]


def _along_all_but(changed: Callable[[JaxprEqn], Sequence[int]]) -> Moves:
    """Operations on some axes, which leave their number as it is."""

    def moves(eqn: JaxprEqn, i: int) -> list[Axes]:
        axes = changed(eqn)
        return [tuple(None if a in axes else a for a in range(len(v.aval.shape))) for v in eqn.outvars]

    return moves


def _without(dropped: Callable[[JaxprEqn], Sequence[int]]) -> Moves:
    """Operations that drop axes."""

    def moves(eqn: JaxprEqn, i: int) -> list[Axes]:
        axes = dropped(eqn)
        return [tuple(a for a in range(len(eqn.invars[0].aval.shape)) if a not in axes)]

    return moves


def _shortened(eqn: JaxprEqn) -> list[int]:
    """Axes of which a part is taken, or to which something is added."""
    pairs = zip(eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape, strict=True)
    return [a for a, (n, m) in enumerate(pairs) if n != m]


# How axes run through equations that are not elementwise, and those elementwise ones that are linear or affine.
MOVES: dict[str, Moves] = {
    **dict.fromkeys(
        ("mul", "div", "add", "add_any", "sub", "neg", "copy", "convert_element_type", "select_n"), elementwise
    ),
    "dot_general": _product,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": lambda eqn, i: [tuple(eqn.params["permutation"])],
    "squeeze": _without(lambda eqn: eqn.params["dimensions"]),
    **dict.fromkeys(
        ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"), _without(lambda eqn: eqn.params["axes"])
    ),
    "slice": _along_all_but(_shortened),
    "split": _along_all_but(lambda eqn: (eqn.params["axis"],)),
    "concatenate": _along_all_but(lambda eqn: (eqn.params["dimension"],)),
    "rev": _along_all_but(lambda eqn: eqn.params["dimensions"]),
    **dict.fromkeys(("cumsum", "cummax", "cumlogsumexp"), _along_all_but(lambda eqn: (eqn.params["axis"],))),
    "pad": _along_all_but(lambda eqn: [a for a, widths in enumerate(eqn.params["padding_config"]) if any(widths)]),
}


# --- running a chain ---


def read_atom(env: Mapping[Var, Array], atom: Any) -> Array:
    """The value of a variable, or of a number in the program."""
    return atom.val if isinstance(atom, Literal) else env[atom]


def evaluated(chain: Sequence[JaxprEqn], env: Mapping[Var, Array], value: Var) -> Array:
    """A value that a chain of equations makes of others."""
    env = dict(env)
    for eqn in chain:
        env.update(zip(eqn.outvars, run_equation(eqn, [read_atom(env, v) for v in eqn.invars]), strict=True))
    return env[value]


def in_rows(
    function: Callable[[Array], list[Array]], arrays: Array, lengths: Sequence[int], rows: Sequence[int],
    rows_out: Sequence[Sequence[int]],
) -> list[Array]:  # fmt: skip
    """A function of one array for each of `arrays` (number, *rest), by a program that serves several at once.

    The program takes an array with axes `rows` of these `lengths`, along which it does the same at each place;
    `rows_out` are these axes in each of its results. Each place takes another array, so that nothing is computed twice.
    """
    number, at_once, behind = arrays.shape[0], size(lengths), range(1, 1 + len(lengths))
    rounds = -(-number // at_once)
    # Places that are left take the first array once more: whatever the function is, it is defined there.
    again = jnp.broadcast_to(arrays[:1], (rounds * at_once - number, *arrays.shape[1:]))
    padded = jnp.concatenate([arrays, again]) if again.shape[0] else arrays
    padded = padded.reshape(rounds, *lengths, *arrays.shape[1:])
    outs = jax.vmap(function)(jnp.moveaxis(padded, behind, [1 + a for a in rows]))
    moved = [jnp.moveaxis(out, [1 + a for a in axes], behind) for out, axes in zip(outs, rows_out, strict=True)]
    return [out.reshape(rounds * at_once, *out.shape[1 + len(lengths) :])[:number] for out in moved]


def as_call(eqn: JaxprEqn, operands: Sequence[Var], compute: Callable[..., Any]) -> JaxprEqn:
    """An equation with the results and the source line of another, which computes them from other operands."""
    structs = [shape_struct(v.aval) for v in operands]
    (call,) = open_jaxpr(jax.make_jaxpr(jax.jit(compute))(*structs))[0].eqns
    body, consts = open_jaxpr(call.params["jaxpr"])
    params = {**call.params, "jaxpr": close_jaxpr(without_sources(body), consts)}
    return eqn.replace(invars=list(operands), primitive=call.primitive, params=params)
