"""Cells with a pure definition: gradients against BPTT, verdicts as their docstrings promise.

The oracle is `jax.grad` over `lax.scan`; windows are shorter than the sequence.
"""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import etrax
from etrax import nn
from etrax.nn import pure

T, B, N, M = 5, 2, 3, 4


class Row(NamedTuple):
    cell: pure.PureCell
    scale: float = 2.0  # of the input: neurons must fire


CELLS = {
    "LIF": Row(pure.LIF(N, M)),
    "ALIF": Row(pure.ALIF(N, M, beta=0.5, spike=nn.surrogate.arctan())),
    "RecurrentLIF": Row(pure.RecurrentLIF(N, M, constraint=nn.Dale(0.5), spike=nn.surrogate.fast_sigmoid(2.0))),
    "RecurrentALIF": Row(pure.RecurrentALIF(N, M, constraint=nn.Sparse(0.5))),
    "GIF": Row(pure.GIF(N, M, spike=nn.surrogate.gaussian())),
    "ResonateAndFire": Row(pure.ResonateAndFire(N, M, threshold=0.3, spike=nn.surrogate.sigmoid())),
    "Izhikevich": Row(pure.Izhikevich(N, M), scale=20.0),
    "ExponentialSynapse": Row(pure.ExponentialSynapse(N, M)),
    "AlphaSynapse": Row(pure.AlphaSynapse(N, M)),
    "NMDASynapse": Row(pure.NMDASynapse(N, M)),
    "LeakyReadout": Row(pure.LeakyReadout(N, M)),
    "LRUCell": Row(pure.LRUCell(N, M)),
    "S5Cell": Row(pure.S5Cell(N, M)),
    "SelectiveCell": Row(pure.SelectiveCell(N, 2)),
    "MinGRUCell": Row(pure.MinGRUCell(N, M)),
    "RTUCell": Row(pure.RTUCell(N, M)),
}
every_cell = pytest.mark.parametrize("name", CELLS)


@pytest.fixture(autouse=True)
def strict_promotion():
    with jax.numpy_dtype_promotion("strict"):
        yield


def made(name):
    """Cell, parameters, states and a sequence of inputs."""
    cell, scale = CELLS[name]
    keys = jax.random.split(jax.random.key(3), 2)
    inputs = (scale * jax.random.normal(keys[0], (T, B, N)),)
    if name == "NMDASynapse":  # spikes, and the potential of the neurons that it drives
        inputs = (jnp.abs(inputs[0]), 20 * jax.random.normal(keys[1], (T, B, M)) - 40)
    return cell, cell.init(jax.random.key(1)), cell.hidden(B), inputs


def run(cell, params, hidden, inputs):
    return lax.scan(lambda h, x: cell.step(params, h, *x), hidden, inputs)


def loss(output, target):
    return jnp.sum(jnp.sin(output) + output**2)


def promised(cell):
    """The rule that the docstring calls exact, and whether it calls `d_rtrl` approximate."""
    text = " ".join(type(cell).__doc__.split())
    exact = re.search(r"`(\w+)`(?: is)? exact", text)
    return exact[1], "`d_rtrl` is approximate" in text


def test_every_definition_has_a_row():
    assert CELLS.keys() == pure.CELLS.keys()


@every_cell
def test_gradients_are_those_of_bptt(name):
    cell, params, hidden, inputs = made(name)
    rule, approximate = promised(cell)
    first = jax.tree.map(lambda x: x[0], inputs)
    learner = etrax.compile(cell.step, rule, *first, params=params, hidden=hidden)
    assert {v.kind for v in learner.report.verdicts.values()} == {"exact"}
    (_, found), _ = learner.value_and_grad(loss, window=2, reduction="sum")(params, learner.init(), inputs)
    expected = jax.grad(lambda p: jnp.sum(jax.vmap(loss, (0, None))(run(cell, p, hidden, inputs)[1], None)))(params)
    for key in params:
        assert np.any(np.asarray(expected[key]) != 0), key
        scale = np.abs(expected[key]).max()
        np.testing.assert_allclose(found[key] / scale, expected[key] / scale, rtol=1e-9, atol=1e-10, err_msg=key)
    if approximate:
        cut = etrax.compile(cell.step, "d_rtrl", *first, params=params, hidden=hidden)
        assert cut.report.verdicts["Wrec",].kind == "approximate"


@pytest.mark.parametrize(
    "above",
    [
        pure.LIF(M, 2, tau=9.0, detach_reset=True, learn_leak=True, spike=nn.surrogate.fast_sigmoid(2.0)),
        pure.LeakyReadout(M, 2, tau=9.0, learn_leak=True),
    ],
)
def test_two_layers_are_exact_where_the_upper_one_is_a_leaky_sum(above):
    below = pure.LIF(N, M, learn_leak="unit", spike=nn.surrogate.fast_sigmoid(2.0))

    def step(params, hidden, x):
        lower, spikes = below.step(params["below"], hidden["below"], x)
        upper, output = above.step(params["above"], hidden["above"], spikes)
        return {"below": lower, "above": upper}, output

    keys = jax.random.split(jax.random.key(0), 3)
    params = {"below": below.init(keys[0]), "above": above.init(keys[1])}
    hidden, xs = {"below": below.hidden(B), "above": above.hidden(B)}, 2 * jax.random.normal(keys[2], (T, B, N))
    np.testing.assert_allclose(jax.nn.sigmoid(params["above"]["leak"]), np.exp(-1 / 9), rtol=1e-12)
    learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=hidden)
    assert {v.kind for v in learner.report.verdicts.values()} == {"exact"}
    (_, found), _ = learner.value_and_grad(loss, window=2, reduction="sum")(params, learner.init(), xs)

    def whole(params):
        outputs = lax.scan(lambda h, x: step(params, h, x), hidden, xs)[1]
        return jnp.sum(jax.vmap(loss, (0, None))(outputs, None))

    expected = jax.grad(whole)(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10), found, expected)
    assert all(np.any(np.asarray(g) != 0) for g in jax.tree.leaves(expected))


def test_a_leak_is_learned_by_the_layer_or_by_the_unit():
    assert pure.LIF(N, M, learn_leak=True).init(jax.random.key(0))["leak"].shape == ()
    assert pure.ALIF(N, M, learn_leak="unit").init(jax.random.key(0))["leak"].shape == (M,)
    with pytest.raises(etrax.ArgumentError, match="`learn_leak` is 'neuron'; expected True"):
        pure.LeakyReadout(N, M, learn_leak="neuron").init(jax.random.key(0))


def test_neurons_fire_and_are_silent():
    for name in ("LIF", "ALIF", "RecurrentLIF", "RecurrentALIF", "GIF", "ResonateAndFire", "Izhikevich"):
        cell, params, hidden, inputs = made(name)
        longer = jax.tree.map(lambda x: jnp.tile(x, (10, 1, 1)), inputs)
        spikes = np.asarray(run(cell, params, hidden, longer)[1])
        assert set(np.unique(spikes)) == {0.0, 1.0}, name


@pytest.mark.parametrize("name", ["triangle", "fast_sigmoid", "arctan", "sigmoid", "gaussian"])
def test_surrogates_are_symmetric_peaks(name):
    spike = getattr(nn.surrogate, name)()
    assert spike is getattr(nn.surrogate, name)()
    x = jnp.linspace(-2.0, 2.0, 9)
    slope = np.asarray(jax.vmap(jax.grad(spike))(x))
    np.testing.assert_array_equal(spike(x), np.asarray(x) > 0)
    np.testing.assert_allclose(slope, slope[::-1], rtol=1e-12)
    assert slope.argmax() == 4 and (slope >= 0).all() and slope[4] > slope[2] > slope[0] - 1e-12


def test_constraints_hold_whatever_is_learned():
    w = jax.random.normal(jax.random.key(0), (10, 6))
    used = np.asarray(nn.Dale(0.8)(nn.Sparse(0.5, seed=1)(w)))
    assert (used[:8] >= 0).all() and (used[8:] <= 0).all() and 0.3 < (used == 0).mean() < 0.7
    assert nn.Sparse(0.5, seed=1) == nn.Sparse(0.5, seed=1) and hash(nn.Dale()) == hash(nn.Dale())
    with pytest.raises(etrax.EtraxError, match="`density` is 3"):
        nn.Sparse(3)


def test_s5_starts_from_hippo():
    """Its eigenvalues are those of the normal part of HiPPO-LegS, by the textbook's matrix."""
    n = np.arange(8)
    root = np.sqrt(2 * n + 1)
    hippo = np.where(n[:, None] > n, -np.outer(root, root), 0) - np.diag(n + 1)
    normal = hippo + 0.5 * np.outer(root, root)
    expected = np.linalg.eigvals(normal)
    params = pure.S5Cell(3, 4).init(jax.random.key(0))
    np.testing.assert_allclose(-np.exp(params["a_log"]), -0.5)
    np.testing.assert_allclose(expected.real, -0.5, atol=1e-9)
    np.testing.assert_allclose(np.sort(params["omega"]), np.sort(expected.imag[expected.imag > 0]), rtol=1e-9)
