"""Plain functions `step(params, hidden, *inputs) -> (hidden, output)` over pytrees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from .._errors import ArgumentTypeError, CompilationError
from ..ir import Bound, BoundState, Role, describe, leaves_with_paths, trace_step


def bind_function(step: Callable[..., Any], inputs: tuple[object, ...], params: object, hidden: object) -> Bound:
    """Bind a function to example parameters, hidden state and inputs (arrays or `jax.ShapeDtypeStruct`)."""

    def fn(params: object, hidden: object, other: object, *inputs: object) -> tuple[Any, Any, Any]:
        result = step(params, hidden, *inputs)
        if not isinstance(result, tuple) or len(result) != 2:
            raise CompilationError(
                f"the step returned {describe(result, 'result')}, not a pair. A step is "
                "`step(params, hidden, *inputs) -> (hidden, output)`: return the new hidden state and the output."
            )
        return result[0], other, result[1]

    traced = trace_step(fn, params, hidden, tuple(inputs))
    leaves = [(i, leaf) for i, leaf in enumerate(traced.ins) if leaf.role in (Role.PARAM, Role.HIDDEN)]
    values = [v for tree in (params, hidden) for _, v in leaves_with_paths(tree)]
    return Bound(
        step=traced,
        states=tuple(BoundState(leaf.path, leaf.role, leaf, (i,)) for i, leaf in leaves),
        known={leaf.path: v for (_, leaf), v in zip(leaves, values, strict=True)},
        read=lambda: (params, hidden, None),
        encode=_inputs,
        decode_output=lambda out: out,
        encode_state=lambda path, value: jax.tree.leaves(value),
        decode_state=lambda path, found: next(iter(found)),
    )


def _inputs(args: tuple[object, ...], kwargs: Mapping[str, object], lead: int = 0) -> tuple[object, ...]:
    for name in kwargs:
        raise ArgumentTypeError(f"a step function takes its inputs by position here, not `{name}=`.")
    return tuple(args)
