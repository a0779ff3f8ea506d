"""Operations as objects and parameters that hold theirs, as the peer's versions 0.1 had them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import brainstate
import jax

from ...compiler.ir import PyTree
from . import _ops


class ETraceOp:
    """An operation on data and a weight: `op(x, w)`."""

    def __call__(self, *args: PyTree) -> PyTree:
        return self.xw_to_y(*args)

    def xw_to_y(self, x: PyTree, w: PyTree) -> PyTree:
        raise NotImplementedError

    raw_xw_to_y = property(lambda self: self.xw_to_y)


class MatMulOp(ETraceOp):
    """`x @ w["weight"] + w["bias"]`, of the weight or of functions of it."""

    def __init__(self, weight_fn: Callable | None = None, bias_fn: Callable | None = None, **_: object):
        self.options = {"weight_fn": weight_fn, "bias_fn": bias_fn}

    def xw_to_y(self, x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
        return _ops.matmul(x, w["weight"], w.get("bias"), **self.options)


class ElemWiseOp(ETraceOp):
    """`fn(w)`."""

    def __init__(self, fn: Callable = lambda w: w):
        self.fn = fn

    def __call__(self, *args: PyTree) -> PyTree:
        return self.fn(args[-1])

    def xw_to_y(self, x: PyTree, w: PyTree) -> PyTree:
        return self.fn(w)


class ConvOp(ETraceOp):
    """A convolution; `xinfo` was for the traces' shapes."""

    def __init__(self, xinfo: jax.ShapeDtypeStruct, window_strides, padding="SAME", *, weight_fn=None, **options):
        self.options = {"strides": window_strides, "padding": padding, "kernel_fn": weight_fn, **options}

    def xw_to_y(self, x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
        return _ops.conv(x, w["weight"], w.get("bias"), **self.options)


class SpMatMulOp(ETraceOp):
    """A product with a sparse matrix of brainevent."""

    def __init__(self, sparse_mat: object, weight_fn: Callable | None = None, bias_fn: Callable | None = None):
        self.options = {"sparse_mat": sparse_mat, "weight_fn": weight_fn, "bias_fn": bias_fn}

    def xw_to_y(self, x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
        return _ops.sparse_matmul(x, w["weight"], bias=w.get("bias"), **self.options)


class LoraOp(ETraceOp):
    """A product of low rank, `alpha x @ w["B"] @ w["A"]`."""

    def __init__(self, alpha: float = 1.0):
        self.alpha = alpha

    def xw_to_y(self, x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
        return _ops.lora_matmul(x, w["B"], w["A"], alpha=self.alpha, bias=w.get("bias"))


class _Valued(Protocol):
    """A value with its operation."""

    op: Callable

    @property
    def value(self) -> PyTree: ...


class _Executes:
    """What applies the operation."""

    def execute(self: _Valued, *x: PyTree) -> PyTree:
        return self.op(*x, self.value)


class ETraceParam(_Executes, brainstate.ParamState):
    """A parameter with its operation."""

    def __init__(self, weight: PyTree, op: Callable, grad: object = None, name: str | None = None):
        super().__init__(weight, name=name)  # pyright: ignore[reportCallIssue]
        self.op = op


class ElemWiseParam(ETraceParam):
    """A parameter with a function of it."""

    def __init__(self, weight: PyTree, op: Callable = lambda w: w, name: str | None = None):
        super().__init__(weight, op, name=name)


class NonTempParam(ETraceParam):
    """There a parameter without a trace. Here it has one where it acts on a state: its gradient is no longer cut."""


class FakeETraceParam(_Executes):
    """A constant with its operation."""

    def __init__(self, weight: PyTree, op: Callable):
        self.value, self.op = weight, op


class FakeElemWiseParam(FakeETraceParam):
    """A constant with a function of it."""

    def __init__(self, weight: PyTree, op: Callable = lambda w: w):
        super().__init__(weight, op)


# By name, what to use instead.
INSTEAD = {
    "ETraceOp": "any JAX operation",
    "MatMulOp": "matmul",
    "ElemWiseOp": "element_wise",
    "ConvOp": "conv",
    "SpMatMulOp": "sparse_matmul",
    "LoraOp": "lora_matmul",
    "ETraceParam": "brainstate.ParamState",
    "ElemWiseParam": "brainstate.ParamState",
    "NonTempParam": "brainstate.ParamState",
    "FakeETraceParam": "a plain array",
    "FakeElemWiseParam": "a plain array",
}
