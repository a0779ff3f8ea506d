"""Pieces of a group's transition for people who put groups together themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._compat import Jaxpr, JaxprEqn, Literal, Var, build_jaxpr, open_jaxpr
from .._errors import ArgumentError, CompilationError
from ..compiler.analysis import target_places
from ..compiler.dataflow import reach_through
from ..compiler.ir import Path
from ..frontends import compiling
from ._group import HiddenGroup

_T = TypeVar("_T", bound=Hashable)


class Hidden2GroupTransition(NamedTuple):
    """How one hidden state acts on the states after the step, see `write_jaxpr_of_hidden_group_transition`.

    `transition_jaxpr` holds the equations of the model's jaxpr between `hidden_invar` and
    `connected_hidden_outvars`; `other_invars` are the variables that these equations read besides.
    """

    hidden_invar: Var
    hidden_path: Path
    connected_hidden_outvars: list[Var]
    connected_hidden_paths: list[Path]
    transition_jaxpr: Jaxpr
    other_invars: list[Var]


class Transition(Protocol):
    """What has the equations of a hidden state's transition: a `Hidden2GroupTransition`, a `HiddenGroup`."""

    @property
    def transition_jaxpr(self) -> Jaxpr: ...


def group_merging(groups: Iterable[Iterable[_T]], version: int = 1) -> list[frozenset[_T]]:
    """Sets that share a member become one, until none do; in the order in which their first members come.

    `version` 0 and 1 give the same result.

    >>> [sorted(group) for group in group_merging([("a", "b"), ("b", "c"), ("d", "e")])]
    [['a', 'b', 'c'], ['d', 'e']]
    """
    if version not in (0, 1):
        raise ArgumentError(f"`version` is {version!r}; expected 0 or 1.")
    merged: list[set[_T]] = []
    for group in map(set, groups):
        meets = [other for other in merged if other & group]
        if not meets:
            merged.append(group)
            continue
        first, *rest = meets  # it takes in the others, and keeps its place
        first.update(group, *rest)
        merged = [other for other in merged if not any(other is gone for gone in rest)]
    return [frozenset(group) for group in merged]


def write_jaxpr_of_hidden_group_transition(
    hidden_invar_to_transition: Mapping[Var, Transition], hidden_invars: Sequence[Var], hidden_outvars: Sequence[Var]
) -> Jaxpr:
    """The jaxpr of h_1', h_2', … = f(h_1, h_2, …, x) from the transitions of its states, each equation once.

    A transition is a `Hidden2GroupTransition`, a `HiddenGroup`, or anything else with a `transition_jaxpr`; all are
    parts of one jaxpr. What they read and do not make is among the constvars:
    `jax.core.eval_jaxpr(jaxpr, values of constvars, *hidden)` runs the result.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> graph = etrax.compile_etrace_graph(step, jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> (group,) = graph.hidden_groups
    >>> by_state = {group.hidden_invars[0]: group}
    >>> jaxpr = write_jaxpr_of_hidden_group_transition(by_state, group.hidden_invars, group.hidden_outvars)
    >>> len(jaxpr.eqns) == len(group.transition_jaxpr.eqns)
    True
    """
    if not hidden_invars:
        raise CompilationError("`hidden_invars` is empty: a transition is that of one hidden state or more.")
    for k, v in enumerate(hidden_invars):
        if v not in hidden_invar_to_transition:
            raise CompilationError(
                f"`hidden_invar_to_transition` has no transition for number {k} of `hidden_invars`: pass one for each."
            )
    parts = [open_jaxpr(hidden_invar_to_transition[v].transition_jaxpr)[0] for v in hidden_invars]
    equations: dict[Var, JaxprEqn] = {}
    for eqn in (eqn for part in parts for eqn in part.eqns):
        for v in eqn.outvars:
            equations.setdefault(v, eqn)
    ordered = _in_order(equations, hidden_invars, hidden_outvars)
    defined = {*hidden_invars, *(v for eqn in ordered for v in eqn.outvars)}
    read = [*(v for eqn in ordered for v in eqn.invars), *hidden_outvars]
    others = dict.fromkeys(v for v in read if not isinstance(v, Literal) and v not in defined)
    return build_jaxpr(list(hidden_invars), list(hidden_outvars), ordered, parts[0], list(others))


def _in_order(equations: Mapping[Var, JaxprEqn], sources: Sequence[Var], targets: Sequence[Var]) -> list[JaxprEqn]:
    """The equations that lead from sources to targets, each after those that make what it reads.

    `equations` holds for each variable the one that makes it.
    """
    makers = {v: eqn for v, eqn in equations.items() if v not in sources}
    done: dict[int, JaxprEqn] = {}
    # By a stack of its own: chains of equations are longer than Python's.
    todo = [v for v in reversed(targets) if not isinstance(v, Literal)]
    while todo:
        eqn = makers.get(todo[-1])
        if eqn is None or id(eqn) in done:
            todo.pop()
            continue
        operands = [v for v in eqn.invars if not isinstance(v, Literal)]
        missing = [v for v in operands if v in makers and id(makers[v]) not in done]
        if missing:
            todo += reversed(missing)
        else:
            done[id(eqn)] = eqn
    return list(done.values())


def jacrev_last_dim(fn: Callable[[Array], Array], hid_vals: Array) -> Array:
    """∂fn(h)[p, :]/∂h[p, :] at every position p: (*varshape, S, S) for h of shape (*varshape, S).

    One pull-back per state if positions do not act on each other; if they do, one per state and position, so that a
    block is never a sum over positions. `fn` must keep the shape of `h`.

    >>> import jax.numpy as jnp
    >>> blocks = jacrev_last_dim(lambda h: jnp.stack([h[..., 0] * h[..., 1], h[..., 0]], -1), jnp.array([[2.0, 3.0]]))
    >>> blocks.tolist()
    [[[3.0, 2.0], [1.0, 0.0]]]
    """
    h = jnp.asarray(hid_vals)
    out = jax.eval_shape(fn, h)
    assert h.ndim and len(out.shape) == h.ndim and out.shape[-1] == h.shape[-1], (
        f"`fn` takes {list(h.shape)} and gives {list(out.shape)}: the last axis counts states, and must be the same."
    )
    assert out.shape == h.shape, f"`fn` takes positions {list(h.shape[:-1])} and gives {list(out.shape[:-1])}."
    _, pull = jax.vjp(fn, h)
    states = jnp.eye(h.shape[-1], dtype=out.dtype)
    if _keeps_positions(fn, h):
        rows = jax.vmap(lambda row: pull(jnp.broadcast_to(row, h.shape))[0])(states)
        return jnp.moveaxis(rows, 0, -2)
    count = int(np.prod(h.shape[:-1], dtype=np.int64))

    def block(p: Array) -> Array:
        at = jnp.zeros((count, 1), out.dtype).at[p].set(1)  # cotangents at one position alone
        rows = jax.vmap(lambda row: pull((at * row).reshape(h.shape))[0])(states)
        return rows.reshape(h.shape[-1], count, h.shape[-1])[:, p]

    return lax.map(block, jnp.arange(count)).reshape(*h.shape, h.shape[-1])


def _keeps_positions(fn: Callable[[Array], Array], h: Array) -> bool:
    """Whether each element of h reaches elements at its own position only."""
    shape = jax.ShapeDtypeStruct(h.shape, h.dtype)
    (reached,), _ = reach_through(lambda moving, _: [fn(moving[0])], [shape], [], ["h"])
    if "h" not in reached:
        return True
    positions = np.arange(h.size) // max(h.shape[-1], 1)  # of each element: the last axis counts states
    places = target_places(reached["h"], positions.reshape(h.shape))
    if places is None:  # an element reaches several positions
        return False
    places = places.reshape(-1)
    return bool(((places == positions) | (places < 0)).all())  # -1: it reaches nothing


def order_hidden_group_index(hidden_groups: Sequence[HiddenGroup]) -> None:
    """Raise an `AssertionError` unless the index of each group is its place in the sequence.

    >>> order_hidden_group_index([])
    """
    for place, group in enumerate(hidden_groups):
        assert group.index == place, f"hidden group {group.index} is at place {place} of the sequence."


def compiler_context(name: str) -> contextlib.AbstractContextManager[None]:
    """A context in which this thread compiles: a second one inside it is a `NotImplementedError`.

    The compile functions of this package enter it themselves. Leaving it, also by an error, leaves nothing behind.

    >>> with compiler_context("mine"):
    ...     with compiler_context("another"):
    ...         pass
    Traceback (most recent call last):
    ...
    etrax._errors.NotSupportedError: `another` was called while `mine` is compiling a model on this thread. ...
    """
    return compiling(name)
