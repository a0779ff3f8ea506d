"""A sparse product whose back end is missing is named when a model is compiled, not at its first gradient."""

import sys
import types

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

import etrax

product = Primitive("product_without_kernel")
product.def_abstract_eval(lambda x: x)
ad.deflinear2(product, lambda ct, x: [ct])


def _no_kernel(ctx, x):
    raise ImportError("No module named 'numba'")


mlir.register_lowering(product, _no_kernel)


def step(p, h, x):
    return 0.9 * h + product.bind(x * p), h


def compiled():
    return etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones(3), hidden=jnp.zeros(3))


def test_missing_back_end_is_named(monkeypatch):
    named = types.SimpleNamespace(get_all_primitive_names=lambda: ["product_without_kernel"])
    monkeypatch.setitem(sys.modules, "brainevent", named)
    with pytest.raises(etrax.CompilationError, match=r"(?s)`product_without_kernel`.*'numba'.*\[brainpy\].*jax_raw"):
        compiled()


def test_operations_of_others_are_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "brainevent", types.SimpleNamespace(get_all_primitive_names=lambda: ["other"]))
    assert isinstance(compiled(), etrax.Learner)
    with pytest.raises(ImportError):
        jax.jit(product.bind)(jnp.ones(3))
