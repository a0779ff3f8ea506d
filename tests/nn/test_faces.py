"""Cells as modules of each library, of which each test needs one alone: the same numbers as the pure definition."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.nn.test_pure import B, M, N, every_cell, made, run

import etrax
from etrax import nn

X = jnp.ones((B, N))


def sizes_and_options(cell):
    sizes = [getattr(cell, f) for f in ("in_size", "out_size", "d_model", "d_hidden", "d_state") if hasattr(cell, f)]
    return sizes, {k: getattr(cell, k) for k in ("beta", "constraint", "spike", "threshold") if hasattr(cell, k)}


def assert_same(name, outputs):
    cell, params, hidden, inputs = made(name)
    np.testing.assert_allclose(np.stack(outputs), run(cell, params, hidden, inputs)[1], rtol=1e-12, atol=1e-12)


@every_cell
def test_brainstate(name):
    brainstate = pytest.importorskip("brainstate")
    cell, params, _, inputs = made(name)
    sizes, options = sizes_and_options(cell)
    with jax.numpy_dtype_promotion("strict"):
        module = getattr(nn, name)(*sizes, **options)
        module.init_state(B)
        for key, state in module.states(brainstate.ParamState).items():
            state.value = params[key[-1]]
        assert_same(name, [module(*x) for x in zip(*inputs, strict=True)])


@every_cell
def test_nnx(name):
    nnx = pytest.importorskip("flax.nnx")
    cell, params, _, inputs = made(name)
    sizes, options = sizes_and_options(cell)
    with jax.numpy_dtype_promotion("strict"):
        module = getattr(nn.nnx, name)(*sizes, rngs=nnx.Rngs(0), **options)
        nnx.update(module, nnx.State({key: nnx.Param(value) for key, value in params.items()}))
        state, outputs = module.initialize_carry(inputs[0].shape[1:]), []
        for x in zip(*inputs, strict=True):
            state, y = module(state, *x)
            outputs.append(y)
        assert_same(name, outputs)


@every_cell
def test_equinox(name):
    pytest.importorskip("equinox")
    cell, _, _, inputs = made(name)
    sizes, options = sizes_and_options(cell)
    with jax.numpy_dtype_promotion("strict"):
        module = getattr(nn.equinox, name)(*sizes, key=jax.random.key(1), **options)  # the key of `made`
        state, outputs = module.hidden(B), []
        for x in zip(*inputs, strict=True):
            y, state = module(*x, state)
            outputs.append(y)
        assert_same(name, outputs)


def keeps_its_name(face):
    assert face.LIF is face.LIF and face.LIF.__name__ == "LIF"
    assert pickle.loads(pickle.dumps(face.LIF)) is face.LIF
    with pytest.raises(AttributeError, match="no attribute 'LIFF'"):
        _ = face.LIFF


def test_brainstate_keeps_its_names():
    pytest.importorskip("brainstate")
    keeps_its_name(nn)


def test_nnx_learns_and_keeps_its_names():
    nnx = pytest.importorskip("flax.nnx")
    cell = nn.nnx.MinGRUCell(N, M, rngs=nnx.Rngs(0))
    assert etrax.compile(cell, "d_rtrl", X, hidden=cell.hidden(B)).report.verdicts["W",].kind == "exact"
    keeps_its_name(nn.nnx)


def test_equinox_learns_and_keeps_its_names():
    pytest.importorskip("equinox")
    cell = nn.equinox.MinGRUCell(N, M, key=jax.random.key(0))
    learner = etrax.compile(cell, "d_rtrl", X, hidden=cell.hidden(B), call=nn.equinox.call)
    assert learner.report.verdicts["params", "W"].kind == "exact"
    keeps_its_name(nn.equinox)
