r"""Directional derivatives of a stretch of a stream, forward in time.

For fixed parameters θ and a fixed direction v, the tangent of the hidden state obeys

.. math::
    \dot h_t = \frac{\partial h_t}{\partial h_{t-1}}\, \dot h_{t-1} + \frac{\partial h_t}{\partial\theta}\, v, \qquad
    g \cdot v = \sum_t \frac{\partial \ell_t}{\partial h_t}\, \dot h_t + \frac{\partial \ell_t}{\partial\theta}\, v

with g the true gradient of the stretch's loss. This is exact for any length, at the memory of one hidden state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax

from .._compat import is_inexact
from .._errors import NotSupportedError
from ..compiler.analysis import Facts, is_steep
from ..compiler.ir import PyTree, linear_transpose
from ..learn import Arguments, Losses, without_masked_nans
from ..runtime import restarted, with_masked_products

# (params, hidden, inputs, target, weight of each sample or of the step) -> (new hidden, weighted loss of the step)
StepLoss: TypeAlias = Callable[[PyTree, PyTree, PyTree, PyTree, Array], tuple[PyTree, Array]]


class Direction(NamedTuple):
    """Directions of some parameters, with a leading axis of directions; the other parameters stand still.

    `params` are the numbers of these parameters among the leaves, `values` their directions.
    """

    params: tuple[int, ...]
    values: list[Array]


def moving_part(tree: PyTree) -> list[Array]:
    """The leaves that have derivatives."""
    return [leaf for leaf in jax.tree.leaves(tree) if is_inexact(leaf)]


def with_moving(tree: PyTree, moving: list[Array]) -> PyTree:
    """The tree with other values for the leaves that have derivatives."""
    leaves, structure = jax.tree.flatten(tree)
    values = iter(moving)
    return structure.unflatten([next(values) if is_inexact(leaf) else leaf for leaf in leaves])


def push_step(
    step_loss: StepLoss, params: PyTree, hidden: PyTree, directions: list[Direction], tangents: list[list[Array]],
    inputs: PyTree, target: PyTree, weight: Array, steep: bool,
) -> tuple[PyTree, list[list[Array]], list[Array]]:  # fmt: skip
    """One step: the new hidden state, and for each set of directions the new tangents and dℓ/dv.

    J·v is the transpose of the pull-back c ↦ c·J, so that surrogate gradients given by `jax.custom_vjp`, which have no
    forward mode, count as they do in BPTT. In a `steep` step a tangent of zero stays zero at an infinite slope.
    """

    def run(params_moving: list[Array], hidden_moving: list[Array]) -> tuple[tuple[list[Array], Array], PyTree]:
        new, loss = step_loss(
            with_moving(params, params_moving), with_moving(hidden, hidden_moving), inputs, target, weight
        )
        return (moving_part(new), loss), new

    start = moving_part(params), moving_part(hidden)
    out, pull, new = jax.vjp(run, *start, has_aux=True)
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), out)
    transposed = linear_transpose(pull, like)
    push = partial(with_masked_products, transposed) if steep else transposed

    def along(direction: Direction, tangent: list[Array]) -> tuple[list[Array], Array]:
        zeros = [jnp.zeros_like(p) for p in start[0]]

        def one(values: list[Array], h_dot: list[Array]) -> tuple[list[Array], Array]:
            v = list(zeros)
            for i, value in zip(direction.params, values, strict=True):
                v[i] = value
            ((h_new, slope),) = push((v, h_dot))
            return h_new, slope

        return jax.vmap(one)(direction.values, tangent)

    try:
        pairs = [along(d, t) for d, t in zip(directions, tangents, strict=True)]
    except Exception as error:  # whatever JAX raises where it cannot transpose a derivative rule
        raise NotSupportedError(
            "the model has a derivative rule that JAX cannot turn into forward mode: it is not linear in the gradient "
            "that it is given (a clipped or rounded gradient), or calls out of JAX, or loops. Such a model has no "
            "derivative along a direction that could be measured."
        ) from error
    return new, [h for h, _ in pairs], [slope for _, slope in pairs]


def push_sequence(
    step_loss: StepLoss, params: PyTree, hidden: PyTree, directions: list[Direction], tangents: list[list[Array]],
    inputs: PyTree, targets: PyTree, weight: Array, steep: bool,
) -> tuple[PyTree, list[list[Array]], list[Array]]:  # fmt: skip
    """All steps of a sequence: the last hidden state and tangents, and for each set of directions g·v."""

    def body(carry: tuple[PyTree, list[list[Array]], list[Array]], xs: PyTree) -> tuple[PyTree, None]:
        hidden, tangents, sums = carry
        hidden, tangents, slopes = push_step(step_loss, params, hidden, directions, tangents, *xs, steep=steep)
        return (hidden, tangents, [a + b.astype(a.dtype) for a, b in zip(sums, slopes, strict=True)]), None

    sums = [jnp.zeros(d.values[0].shape[0]) for d in directions]
    (hidden, tangents, sums), _ = jax.lax.scan(body, (hidden, tangents, sums), (inputs, targets, weight))
    return hidden, tangents, sums


def zero_tangents(hidden: PyTree, directions: list[Direction]) -> list[list[Array]]:
    """Tangents of a hidden state that does not depend on the parameters."""
    counts = [d.values[0].shape[0] for d in directions]
    return [[jnp.zeros((n, *leaf.shape), leaf.dtype) for leaf in moving_part(hidden)] for n in counts]


def push_arguments(
    facts: Facts, losses: Losses, arguments: Arguments, targets: PyTree, directions: list[Direction],
    tangents: list[list[Array]],
) -> tuple[list[list[Array]], list[Array], Array]:  # fmt: skip
    """Tangents at the end of a sequence, g·v of the summed loss for each set of directions, and the sum of weights."""
    count = len(facts.states)
    steps = jax.tree.leaves((arguments.inputs, targets, arguments.weight, arguments.reset))[0].shape[0]
    weight = jnp.ones(steps) if arguments.weight is None else arguments.weight

    def step_loss(p: PyTree, h: PyTree, x: PyTree, target: PyTree, w: Array) -> tuple[PyTree, Array]:
        x, flags = x
        h = h if flags is None else restarted(flags, arguments.initial, h)  # its tangents are then zero
        # No parameter moves what it does not reach (a timer), whatever its slope.
        h = [lax.stop_gradient(a) if i in facts.unreached else a for i, a in enumerate(h)]
        outs = facts.step.run([*p, *h, *x])
        return outs[:count], losses(outs[count:], (target, w))[0]

    xs = without_masked_nans(arguments.inputs, arguments.weight)
    data = (xs, arguments.reset), targets, weight, is_steep(facts)
    _, tangents, products = push_sequence(step_loss, arguments.params, arguments.states, directions, tangents, *data)
    return tangents, products, weight.sum()
