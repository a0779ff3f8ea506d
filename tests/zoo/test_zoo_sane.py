"""The zoo's own numbers make sense: every model runs, and every gradient is there that should be."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz.evaluate import Evaluator

from . import EXACT, REPORTED, UNUSED, ZOO

T = 7


def path_of(keys):
    return tuple(getattr(k, "key", getattr(k, "idx", getattr(k, "name", None))) for k in keys)


def leaves_by_path(tree):
    return {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def build(name):
    for module in ZOO[name].needs:
        pytest.importorskip(module)
    return ZOO[name]()


def bptt(model):
    """A function of parameters, hidden state, inputs and targets: (loss, (last hidden, outputs)), gradient."""

    def loss(params, hidden, inputs, targets):
        def body(hidden, xt):
            inputs, target = xt
            hidden, output = model.step(params, hidden, *inputs)
            return hidden, (model.loss(output, target), output)

        hidden, (losses, outputs) = jax.lax.scan(body, hidden, (inputs, targets))
        return losses.mean(), (hidden, outputs)

    return jax.value_and_grad(loss, has_aux=True)


def run(model, T=T, seed=0):
    arguments = model.params, model.hidden, model.make_inputs(T, seed), model.make_target(T, seed)
    (loss, (_, outputs)), grads = Evaluator()(bptt(model), *arguments)
    return loss, outputs, grads


@pytest.mark.fast_seconds(2)
@pytest.mark.parametrize("name", ZOO)
def test_every_model_is_sane(name):
    model = build(name)
    assert (model.name, model.family) == (name, name.split("/")[0])
    assert set(model.expect) == set(leaves_by_path(model.params))
    assert set(model.expect.values()) <= {EXACT, REPORTED, UNUSED}
    assert model.either <= set(model.expect)
    floats = [a for a in jax.tree.leaves((model.params, model.hidden)) if jnp.issubdtype(a.dtype, jnp.inexact)]
    assert all(a.dtype in (jnp.float64, jnp.complex128) for a in floats) or model.tol > 1e-9

    inputs = model.make_inputs(T, 0)
    assert isinstance(inputs, tuple)
    assert all(leaf.shape[0] == T for leaf in jax.tree.leaves(inputs))

    hidden, output = jax.eval_shape(model.step, model.params, model.hidden, *jax.tree.map(lambda a: a[0], inputs))
    described = lambda tree: jax.tree.map(lambda a: (jnp.shape(a), a.dtype), tree)
    assert described(hidden) == described(model.hidden)
    target = model.make_target(T, 0)
    assert described(jax.tree.map(lambda a: a[0], target)) == described(output)

    loss, outputs, grads = run(model)
    assert jnp.isfinite(loss)
    for path, grad in leaves_by_path(grads).items():
        grad = np.asarray(grad, complex)
        assert np.isfinite(grad).all(), path
        assert grad.any() == (model.expect[path] != UNUSED), path
    if model.spikes is not None:
        spikes = np.asarray(model.spikes(outputs))
        assert set(np.unique(spikes)) == {0.0, 1.0}


def test_batches_agree():
    models = {name: ZOO[f"batch/{name}"]() for name in ("leading", "vmapped", "batch_last", "single", "unbatched")}
    masked = ZOO["batch/input_mask"]()
    all_on = lambda T, seed: (models["leading"].make_inputs(T, seed)[0], jnp.ones((T, 3)))
    models["input_mask"] = dataclasses.replace(masked, make_inputs=all_on)
    grads = {name: run(model)[2] for name, model in models.items()}

    def same(a, b):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14), grads[a], grads[b])

    same("leading", "vmapped")
    same("leading", "batch_last")
    same("leading", "input_mask")
    same("single", "unbatched")
