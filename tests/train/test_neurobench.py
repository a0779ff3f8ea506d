"""Counts of NeuroBench, held against loops over the numbers of a small spiking network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax
from etrax.train import neurobench

T, B, I, H, O = 7, 2, 5, 6, 3


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


@spike.defjvp
def _(primals, tangents):
    return spike(primals[0]), tangents[0] / (1 + jnp.abs(primals[0])) ** 2


def step(p, h, x):
    z = spike(h["v"] - 1)
    v = 0.8 * h["v"] + x @ p["w"] + z @ p["r"] - z
    return {"v": v}, spike(v - 1) @ p["out"]


def model(seed=0):
    rng = np.random.default_rng(seed)
    params = {k: rng.standard_normal(s) for k, s in (("w", (I, H)), ("r", (H, H)), ("out", (H, O)))}
    params["r"] *= rng.random((H, H)) < 0.5
    params = {k: jnp.asarray(v) for k, v in params.items()}
    xs = jnp.asarray(rng.standard_normal((T, B, I)) * (rng.random((T, B, I)) < 0.6) * 2)
    return params, xs


def by_hand(params, xs):
    """Every product of every step, one by one."""
    p, v = {k: np.asarray(a) for k, a in params.items()}, np.zeros((B, H))
    macs = acs = zeros = total = 0
    for x in np.asarray(xs):
        z = (v > 1) * 1.0
        v = 0.8 * v + x @ p["w"] + z @ p["r"] - z
        out = (v > 1) * 1.0
        macs += ((x[:, :, None] != 0) & (p["w"] != 0)).sum()
        acs += ((z[:, :, None] != 0) & (p["r"] != 0)).sum() + ((out[:, :, None] != 0) & (p["out"] != 0)).sum()
        zeros, total = zeros + (z == 0).sum() + (out == 0).sum(), total + 2 * z.size
    return macs / (T * B), acs / (T * B), zeros / total


def test_counts_are_those_of_loops():
    params, xs = model()
    learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden={"v": jnp.zeros((B, H))})
    found = neurobench(learner, params, xs, samples=B)
    macs, acs, sparsity = by_hand(params, xs)
    assert acs > 0
    operations = found["SynapticOperations"]
    np.testing.assert_allclose([operations["Effective_MACs"], operations["Effective_ACs"]], [macs, acs], rtol=1e-12)
    assert operations["Dense"] == I * H + H * H + H * O
    np.testing.assert_allclose(found["ActivationSparsity"], sparsity, rtol=1e-6)
    zeros, weights = (np.asarray(params["r"]) == 0).sum(), I * H + H * H + H * O
    np.testing.assert_allclose(found["ConnectionSparsity"], zeros / weights)
    assert found["Footprint"] == 8 * (weights + B * H) and found["ParameterCount"] == weights


def test_a_convolution_and_a_model_without_inner_layers():
    def conv(w, h, x):
        y = jax.lax.conv_general_dilated(x[None, None], w, (1,), "VALID")[0, 0]
        return 0.9 * h + y, h

    w, xs = jnp.asarray([[[1.0, 0.0, 2.0]]]), jnp.eye(6)[:4] * 3.0
    learner = etrax.compile(conv, "d_rtrl", xs[0], params=w, hidden=jnp.zeros(4))
    found = neurobench(learner, w, xs)
    products = sum(int(xs[t, o + k] != 0 and w[0, 0, k] != 0) for t in range(4) for o in range(4) for k in range(3))
    assert found["SynapticOperations"] == {"Effective_MACs": products / 4, "Effective_ACs": 0.0, "Dense": 12.0}
    assert found["ActivationSparsity"] is None
    with pytest.raises(etrax.EtraxError, match="`samples`"):
        neurobench(learner, w, xs, samples=0)
