"""Products of a weight with samples, written with the samples first: W @ x of each sample as x @ Wᵀ.

    jax.vmap(lambda x: W @ x)(xs)    W (out, in), xs (samples, in)    is    (xs @ Wᵀ)ᵀ

`vmap` leaves the samples as the last axis of such a product, and turns them back where it meets other values. In a
window, what stands between is recorded and perturbed, and each record of a gate would be turned around. Wᵀ is made of
parameters only: it is the weight of the op, turned once for all steps, and so is its gradient. The transpose of the
product is moved behind slices and functions of elements, to where `vmap` undoes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax import lax

from ..._compat import JaxprEqn, Literal, Var, new_variable, open_jaxpr
from ..ir import Step, check_step
from ..primitives import record_of
from ._chain import data_variables

Order: TypeAlias = tuple[int, ...]


class _Turned(NamedTuple):
    """A value that is the transpose, by `order`, of a variable."""

    of: Var
    order: Order


def with_data_first(step: Step) -> Step:
    """The step with the data of such products as their left operand; itself if there are none."""
    data = data_variables(step)
    if not any(_puts_samples_last(eqn, data) for eqn in step.jaxpr.eqns):
        return step
    rewritten = _Rewritten()
    for eqn in step.jaxpr.eqns:
        rewritten.data_first(eqn) if _puts_samples_last(eqn, data) else rewritten.add(eqn)
    outs = [rewritten.plain(v) for v in step.jaxpr.outvars]
    return check_step(replace(step, jaxpr=step.jaxpr.replace(eqns=rewritten.eqns, outvars=outs)))


def _puts_samples_last(eqn: JaxprEqn, data: set[Var]) -> bool:
    """Whether the samples of a right operand stand before what is contracted, and last in its product with a weight.

    Where a model itself has its samples last, nothing is turned.
    """
    if eqn.primitive.name != "dot_general" or eqn.params.get("out_sharding") is not None:
        return False
    weight, values = eqn.invars
    if isinstance(values, Literal) or values not in data or (not isinstance(weight, Literal) and weight in data):
        return False
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    samples, outputs = _free(values, right, right_batch), _free(weight, left, left_batch)
    return bool(samples and outputs and right) and max(samples) < min(right)


def _free(v: Any, contracted: Sequence[int], batch: Sequence[int]) -> list[int]:
    return [a for a in range(len(v.aval.shape)) if a not in contracted and a not in batch]


class _Rewritten:
    """Equations so far, and the values that are transposes of their results: these are made where they are read."""

    def __init__(self) -> None:
        self.eqns: list[JaxprEqn] = []
        self.turned: dict[Var, _Turned] = {}
        self.same: dict[Var, Var] = {}  # values that are another one, turned twice

    def data_first(self, eqn: JaxprEqn) -> None:
        """A product with its operands exchanged, whose weight is turned."""
        weight, data = (self.plain(v) for v in eqn.invars)
        (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
        outputs, batch = _free(weight, left, left_batch), len(left_batch)
        turned = self._transposed(eqn, weight, (*left_batch, *left, *outputs))
        precision = eqn.params["precision"]
        params = {
            **eqn.params,
            "dimension_numbers": ((right, tuple(range(batch, batch + len(left)))), (right_batch, tuple(range(batch)))),
            "precision": precision[::-1] if isinstance(precision, tuple) else precision,
        }
        rank = len(eqn.outvars[0].aval.shape)
        last = rank - len(outputs)
        order = (*range(batch), *range(last, rank), *range(batch, last))
        self._run(eqn, [data, turned], params, order)

    def add(self, eqn: JaxprEqn) -> None:
        """An equation, on values that are turned if what it does can be done before they are."""
        orders = {self.turned[v].order for v in eqn.invars if not isinstance(v, Literal) and v in self.turned}
        order = orders.pop() if len(orders) == 1 else None
        if order is not None and eqn.primitive.name == "transpose":
            self._turn_again(eqn, order)
            return
        params = None if order is None else self._params_before(eqn, order)
        if order is None or params is None:
            self.eqns.append(eqn.replace(invars=[self.plain(v) for v in eqn.invars]))
        else:
            self._run(
                eqn, [self.turned[v].of if self._is_turned(v) else self.plain(v) for v in eqn.invars], params, order
            )

    def plain(self, v: Any) -> Any:
        """A value as it was written: of one that is turned, the transpose."""
        if isinstance(v, Literal):
            return v
        if v in self.turned:
            of, order = self.turned.pop(v)
            self.eqns.append(_transpose(self.eqns[-1], of, order).replace(outvars=[v]))
        return self.same.get(v, v)

    def _is_turned(self, v: Any) -> bool:
        return not isinstance(v, Literal) and v in self.turned

    def _run(self, eqn: JaxprEqn, operands: list[Any], params: dict[str, Any], order: Order) -> None:
        """An equation whose results are those of `eqn` before they are turned."""
        back = [int(i) for i in np.argsort(order)]
        results = []
        for v in eqn.outvars:
            results.append(new_variable(v.aval.update(shape=tuple(v.aval.shape[i] for i in back))))
            self.turned[v] = _Turned(results[-1], order)
        self.eqns.append(eqn.replace(invars=operands, outvars=results, params=params))

    def _turn_again(self, eqn: JaxprEqn, order: Order) -> None:
        (operand,), (out,) = eqn.invars, eqn.outvars
        of, again = self.turned[operand].of, tuple(order[i] for i in eqn.params["permutation"])
        if again == tuple(range(len(again))):
            self.same[out] = of
        else:
            self.turned[out] = _Turned(of, again)

    def _params_before(self, eqn: JaxprEqn, order: Order) -> dict[str, Any] | None:
        """Parameters by which an equation does the same to values before they are turned; None if there are none."""
        name, params = eqn.primitive.name, dict(eqn.params)
        if name == "split":
            return {**params, "axis": order[params["axis"]]}
        back = [int(i) for i in np.argsort(order)]
        if name == "slice":
            some = ("start_indices", "limit_indices", "strides")
            return {**params, **{k: params[k] and tuple(params[k][i] for i in back) for k in some}}
        alike = all(self._is_turned(v) or not v.aval.shape for v in eqn.invars)
        moves = record_of(name).elementwise and not any(
            params.get(k) for k in ("shape", "sharding", "jaxpr", "call_jaxpr")
        )
        return params if alike and moves and not eqn.effects else None

    def _transposed(self, eqn: JaxprEqn, v: Any, order: Order) -> Var:
        self.eqns.append(_transpose(eqn, v, order))
        return self.eqns[-1].outvars[0]


def _transpose(eqn: JaxprEqn, v: Any, order: Order) -> JaxprEqn:
    """The transpose of a value, at the place in the sources of another equation."""
    struct = jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype)
    (traced,) = open_jaxpr(jax.make_jaxpr(lambda a: lax.transpose_p.bind(a, permutation=order))(struct))[0].eqns
    out = new_variable(traced.outvars[0].aval)
    return eqn.replace(primitive=traced.primitive, invars=[v], outvars=[out], params=traced.params)
