"""Products of a weight with samples, written with the samples first: W @ x of each sample as (x @ Wᵀ)ᵀ.

    jax.vmap(lambda x: W @ x)(xs)    W (out, in), xs (samples, in)    is    transpose(W xsᵀ)

`vmap` leaves the samples as the last axis of such a product and turns them back at once. XLA does both where they meet;
in a window what stands between is recorded and perturbed, and every record of a gate would be turned around.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
from jax import lax

from ..._compat import JaxprEqn, Literal, new_variable, open_jaxpr
from ..ir import Step, check_step
from ._chain import data_variables


def with_data_first(step: Step) -> Step:
    """The step with the data of such products as their left operand; itself if there are none."""
    data = data_variables(step)
    new: list[JaxprEqn] = []
    for eqn in step.jaxpr.eqns:
        left, *right = (not isinstance(v, Literal) and v in data for v in eqn.invars) if eqn.invars else (False,)
        turned = eqn.primitive.name == "dot_general" and not left and right == [True] and _turns(eqn)
        new.extend(_data_first(eqn) if turned else [eqn])
    return step if len(new) == len(step.jaxpr.eqns) else check_step(replace(step, jaxpr=step.jaxpr.replace(eqns=new)))


def _turns(eqn: JaxprEqn) -> bool:
    """Whether the samples of the right operand stand before what is contracted, and last in the product.

    Where a model itself has its samples last, nothing is turned.
    """
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    weight, data = (len(v.aval.shape) for v in eqn.invars)
    samples = _free(data, right, right_batch)
    outputs = _free(weight, left, left_batch)
    return bool(samples and outputs) and max(samples) < min(right) and eqn.params.get("out_sharding") is None


def _free(rank: int, contracted: Sequence[int], batch: Sequence[int]) -> list[int]:
    return [a for a in range(rank) if a not in contracted and a not in batch]


def _data_first(eqn: JaxprEqn) -> list[JaxprEqn]:
    """The product with its operands exchanged, and its transpose in the order of the product as it was."""
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    weight, data = eqn.invars
    (out,) = eqn.outvars
    batch, rank = len(left_batch), len(out.aval.shape)
    samples = len(_free(len(data.aval.shape), right, right_batch))
    order = (*range(batch), *range(batch + samples, rank), *range(batch, batch + samples))
    params = {**eqn.params, "dimension_numbers": ((right, left), (right_batch, left_batch))}
    precision = params.get("precision")
    if isinstance(precision, tuple):
        params["precision"] = precision[::-1]
    shape = [0] * rank
    for axis, n in zip(order, out.aval.shape, strict=True):
        shape[axis] = n
    turned = jax.ShapeDtypeStruct(tuple(shape), out.aval.dtype)
    (back,) = open_jaxpr(jax.make_jaxpr(lambda y: lax.transpose(y, order))(turned))[0].eqns
    product = new_variable(back.invars[0].aval)
    return [
        eqn.replace(invars=[data, weight], outvars=[product], params=params),
        eqn.replace(primitive=back.primitive, invars=[product], outvars=[out], params=back.params),
    ]
