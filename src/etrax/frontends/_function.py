"""Plain functions `step(params, hidden, *inputs) -> (hidden, output)` over pytrees, and what is made into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax

from .._errors import ArgumentTypeError, CompilationError
from ..compiler.ir import Bound, BoundState, PyTree, Role, describe, keys_of, leaves_with_paths, merged, trace_step

# How users say that a module is called.
CALL = "call(module, hidden, *inputs)"


class Trees(NamedTuple):
    """What a step reads besides its inputs: parameters, hidden states, and states that are carried alone."""

    params: PyTree
    hidden: PyTree
    other: PyTree = None


def bind_function(step: Callable[..., Any], inputs: tuple[object, ...], params: PyTree, hidden: PyTree) -> Bound:
    """Bind a function to example parameters, hidden state and inputs (arrays or `jax.ShapeDtypeStruct`)."""

    def fn(params: PyTree, hidden: PyTree, other: PyTree, *inputs: object) -> tuple[Any, Any, Any]:
        hidden, output = pair_of(step(params, hidden, *inputs), "the step", "step(params, hidden, *inputs)")
        return hidden, other, output

    return replace(bind_trees(fn, inputs, lambda: Trees(params, hidden)), model=step)


def pair_of(result: object, who: str, call: str) -> tuple[Any, Any]:
    """What a step returns, if it is a pair."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise CompilationError(
            f"{who} returned {describe(result, 'result')}, not a pair. It is called as "
            f"`{call} -> (hidden, output)`: return the new hidden state and the output."
        )
    return result


def bind_trees(
    fn: Callable[..., tuple[Any, Any, Any]],
    inputs: tuple[object, ...],
    read: Callable[[], Trees],
    join: Callable[[PyTree, PyTree], PyTree] = merged,
    called: str = "",
) -> Bound:
    """Bind `fn(params, hidden, other, *inputs) -> (hidden, other, output)` to the trees that `read` gives.

    `called` says how the model was called, for who reads what it raised.
    """
    trees = read()
    traced = trace_step(fn, trees.params, trees.hidden, tuple(inputs), trees.other, called=called)
    roles = (Role.PARAM, Role.HIDDEN, Role.OTHER)
    leaves = [(i, leaf) for i, leaf in enumerate(traced.ins) if leaf.role in roles]
    values = [v for tree in trees for _, v in leaves_with_paths(tree)]
    states = tuple(BoundState(leaf.path, leaf.role, leaf, (i,)) for i, leaf in leaves)
    return Bound(
        step=traced,
        states=states,
        known=dict(zip(keys_of(states), values, strict=True)),
        read=read,
        encode=_inputs,
        decode_output=lambda out: out,
        encode_state=lambda path, value: jax.tree.leaves(value),
        decode_state=lambda path, hidden: next(iter(hidden)),
        join=join,
    )


def _inputs(args: tuple[object, ...], kwargs: Mapping[str, object], lead: int = 0) -> tuple[object, ...]:
    for name in kwargs:
        raise ArgumentTypeError(f"a step takes its inputs by position here, not `{name}=`.")
    return tuple(args)
