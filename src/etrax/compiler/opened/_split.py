"""Products whose outputs are cut into heads, with the axis of heads in the weight.

    (x @ w).reshape(…, heads, width)   is   x @ w.reshape(features, heads, width)

An output then has an axis for what a reshape hid in one: where all along it is equal (the rows of a head's memory),
that can be seen, and kept once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from ..._compat import JaxprEqn, Var, new_variable, open_jaxpr, shape_struct
from ..ir import Step, check_step
from ._sites import WeightSite


def with_heads_apart(step: Step, sites: Sequence[WeightSite], some: Collection[int]) -> Step:
    """The step with the axes that reshapes give to outputs of some sites in their weights; itself if there are none."""
    eqns, readers = list(step.jaxpr.eqns), _readers(step)
    split_sites = [(sites[j], reader) for j in sorted(some) if (reader := _split(step, sites[j], readers)) is not None]
    if not split_sites:
        return step
    replaced: dict[int, list[JaxprEqn]] = {}
    for site, reader in split_sites:
        (at,) = site.at
        replaced[at], replaced[reader] = _product(eqns[at], site.operand, eqns[reader]), []
    new = [e for i, eqn in enumerate(eqns) for e in replaced.get(i, [eqn])]
    return check_step(replace(step, jaxpr=step.jaxpr.replace(eqns=new)))


def _readers(step: Step) -> dict[Var, list[int]]:
    """By variable, the equations that read it; an output of the step counts as one behind the last."""
    readers: dict[Var, list[int]] = {}
    for i, eqn in enumerate(step.jaxpr.eqns):
        for v in eqn.invars:
            if isinstance(v, Var):
                readers.setdefault(v, []).append(i)
    for v in step.jaxpr.outvars:
        if isinstance(v, Var):
            readers.setdefault(v, []).append(len(step.jaxpr.eqns))
    return readers


def _split(step: Step, site: WeightSite, readers: dict[Var, list[int]]) -> int | None:
    """The equation that cuts the outputs of a product with a weight of one free axis, its right operand."""
    call = site.call
    if site.rule.name != "matmul" or call.primitive != "dot_general" or len(site.at) != 1 or call.weight != 1:
        return None
    if call.params.get("out_sharding") is not None or len(_free(call.params, call.w.ndim)) != 1:
        return None
    eqns = step.jaxpr.eqns
    read = readers.get(eqns[site.at[0]].outvars[0], [])
    if len(read) != 1 or read[0] >= len(eqns) or eqns[read[0]].primitive.name != "reshape":
        return None
    reshape = eqns[read[0]]
    old, new = call.out.shape, reshape.outvars[0].aval.shape
    plain = reshape.params.get("dimensions") is None and reshape.params.get("sharding") is None
    return read[0] if plain and len(new) > len(old) and new[: len(old) - 1] == old[:-1] else None


def _free(params: Mapping[str, Any], rank: int) -> list[int]:
    """Axes of the right operand that are neither contracted nor batched."""
    (_, contracted), (_, batched) = params["dimension_numbers"]
    return [a for a in range(rank) if a not in contracted and a not in batched]


def _product(product: JaxprEqn, operand: int, reshape: JaxprEqn) -> list[JaxprEqn]:
    """The weight reshaped, and its product with the data, in place of a product and a reshape of it."""
    weight = product.invars[operand]
    (axis,) = _free(product.params, len(weight.aval.shape))
    rank = len(product.outvars[0].aval.shape)
    parts = reshape.outvars[0].aval.shape[rank - 1 :]
    shape = (*weight.aval.shape[:axis], *parts, *weight.aval.shape[axis + 1 :])
    (traced,) = open_jaxpr(jax.make_jaxpr(lambda w: jax.lax.reshape(w, shape))(shape_struct(weight.aval)))[0].eqns
    wide = new_variable(traced.outvars[0].aval)
    (left, right), (left_batch, right_batch) = product.params["dimension_numbers"]

    def moved(axes: Sequence[int]) -> tuple[int, ...]:  # axes behind the one that was cut stand further behind
        return tuple(a + len(parts) - 1 if a > axis else a for a in axes)

    numbers = ((left, moved(right)), (left_batch, moved(right_batch)))
    return [
        reshape.replace(primitive=traced.primitive, invars=[weight], outvars=[wide], params=traced.params),
        product.replace(
            invars=[product.invars[0], wide], outvars=reshape.outvars,
            params={**product.params, "dimension_numbers": numbers},
        ),
    ]  # fmt: skip
