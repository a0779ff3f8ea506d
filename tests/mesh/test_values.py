"""Cuts and models for which a device's part is easily taken for the whole: numbers are those of one device."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from tests.mesh.models import draw

import etrax

B, I, H, O, T = 4, 3, 4, 2, 4
BY_UNIT = {"hidden/.*": P(None, "neuron"), "params/[wuv]": P(None, "neuron")}


def mesh(name="neuron"):
    return Mesh(np.array(jax.devices()[:2]), (name,), axis_types=(AxisType.Auto,))


def loss(output, target):
    return ((output - target) ** 2).mean()


def layers(p, hidden, x):
    """The activity of the first layer is read by weights of the second alone."""
    a, b = hidden
    a = 0.9 * a + jnp.tanh(x @ p["w"])
    b = 0.8 * b + jnp.tanh(a @ p["v"] + b @ p["u"])
    return (a, b), b @ p["o"]


def deep_readout(p, h, x):
    h = 0.9 * h + jnp.tanh(x @ p["w"])
    return h, jnp.tanh(h @ p["v"]) @ p["o"]


def lstm(p, hidden, x):
    h, c = hidden
    i, f, g, o = jnp.split(jnp.concatenate([x, h], -1) @ p["w"] + p["b"], 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h @ p["o"]


def conv(p, h, x):
    x = x[:, :, None] * jnp.ones(2)
    over = {"window_strides": (1,), "padding": "SAME", "dimension_numbers": ("NWC", "WIO", "NWC")}
    drive = lax.conv_general_dilated(x, p["w"], **over) + lax.conv_general_dilated(h, p["u"], **over)
    h = 0.5 * h + jnp.tanh(drive)
    return h, h.reshape(B, -1) @ p["o"]


def leaky(p, h, x):
    h = 0.9 * h + jnp.tanh(x @ p["w"])
    return h, h @ p["o"]


def recurrent(p, h, x):
    h = 0.9 * h + jnp.tanh(x @ p["w"] + h @ p["u"])
    return h, h @ p["o"]


def mean_field(p, h, x):
    """States that act on each other across devices without a weight."""
    h = 0.9 * h + 0.1 * h.mean(-1, keepdims=True) + x @ p["w"]
    return h, h @ p["o"]


def normed(p, h, x):
    """A weight acts on all units of a sample, through their mean."""
    y = x @ p["w"] + h @ p["u"]
    h = 0.9 * h + y - y.mean(-1, keepdims=True)
    return h, h @ p["o"]


def normed_batch(p, h, x):
    """Samples act on each other."""
    y = x @ p["w"] + h @ p["u"]
    h = 0.9 * h + y - y.mean(0)
    return h, h @ p["o"]


def sparse(p, h, x):
    """Entries that do not lie with their rows."""
    rows = np.array([3, 0, 2, 0, 1, 3, 1, 2])
    pre = np.array([0, 1, 2, 3, 3, 2, 1, 0])
    h = 0.9 * h + jax.ops.segment_sum(h[:, pre].T * p["e"][:, None], rows, H).T + x @ p["w"]
    return h, h @ p["o"]


def one_drive(p, h, x):
    """One number drives all units."""
    h = 0.9 * h + jnp.tanh(x @ p["d"]) + x @ p["w"]
    return h, h @ p["o"]


def permuted(p, h, x):
    h = 0.9 * h + (x @ p["w"])[:, np.array([3, 1, 0, 2])]
    return h, h @ p["o"]


def rolled(p, hidden, x):
    a, b = hidden
    a = 0.9 * a + x @ p["w"]
    b = 0.9 * b + jnp.roll(a, 1, -1) @ p["v"]
    return (a, b), b @ p["o"]


TWO = (jnp.zeros((B, H)), jnp.zeros((B, H)))
LAYERS = {"w": (I, H), "v": (H, H), "u": (H, H), "o": (H, O)}
# step, shapes of parameters, hidden state, rule, axis of the mesh, how it is cut
CASES = {
    "a readout in slices": (
        layers, LAYERS, TWO, "d_rtrl", "neuron", {**BY_UNIT, "params/o": P(None, "neuron")},
    ),
    "activity that only weights of other devices read": (layers, LAYERS, TWO, "three_factor", "neuron", "neuron"),
    "a whole state that slices of a readout read": (
        deep_readout, {"w": (I, H), "v": (H, H), "o": (H, O)}, jnp.zeros((B, H)), "three_factor", "neuron",
        {"params/v": P(None, "neuron"), "params/o": P("neuron")},
    ),
    "gates in one product": (lstm, {"w": (I + H, 4 * H), "b": (4 * H,), "o": (H, O)}, TWO, "d_rtrl", "batch", "batch"),
    "channels": (
        conv, {"w": (3, 2, 4), "u": (3, 4, 4), "o": (3 * 4, O)}, jnp.zeros((B, 3, 4)), "d_rtrl", "neuron",
        {"hidden": P(None, None, "neuron"), "params/[wu]": P(None, None, "neuron")},
    ),
    "weights cut along their inputs": (
        recurrent, {"w": (I, H), "u": (H, H), "o": (H, O)}, jnp.zeros((B, H)), "d_rtrl", "neuron",
        {"hidden": P(None, "neuron"), "params/w": P(None, "neuron"), "params/u": P("neuron")},
    ),
    "states that meet": (mean_field, {"w": (I, H), "o": (H, O)}, jnp.zeros((B, H)), "rtrl", "neuron", "neuron"),
    "a mean of units": (
        normed, {"w": (I, H), "u": (H, H), "o": (H, O)}, jnp.zeros((B, H)), "d_rtrl", "neuron", "neuron",
    ),
    "a mean of samples": (
        normed_batch, {"w": (I, H), "u": (H, H), "o": (H, O)}, jnp.zeros((B, H)), "d_rtrl", "batch", "batch",
    ),
    "a mean of samples, units cut": (
        normed_batch, {"w": (I, H), "u": (H, H), "o": (H, O)}, jnp.zeros((B, H)), "d_rtrl", "neuron", "neuron",
    ),
    "entries in any order": (
        sparse, {"w": (I, H), "e": (8,), "o": (H, O)}, jnp.zeros((B, H)), "d_rtrl", "neuron",
        {"hidden": P(None, "neuron"), "params/e": P("neuron")},
    ),
    "one number for all units": (
        one_drive, {"w": (I, H), "d": (I, 1), "o": (H, O)}, jnp.zeros((B, H)), "d_rtrl", "neuron", "neuron",
    ),
    "outputs in another order": (permuted, {"w": (I, H), "o": (H, O)}, jnp.zeros((B, H)), "d_rtrl", "neuron", "neuron"),
    "activity read in another order": (
        rolled, {"w": (I, H), "v": (H, H), "o": (H, O)}, TWO, "three_factor", "neuron", "neuron",
    ),
}  # fmt: skip


def data():
    rng = np.random.default_rng(4)
    return rng.standard_normal((T, B, I)), rng.standard_normal((T, B, O))


def compiled(step, shapes, hidden, rule, axis=None, shard=None):
    options = {} if axis is None else {"mesh": mesh(axis), "shard": shard}
    return etrax.compile(step, rule, data()[0][0], params=draw(**shapes), hidden=hidden, **options)


def assert_equal(many, one):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12), many, one)


def gradients(learner, loss=loss):
    """The second time: what the trace brings counts."""
    gradient = jax.jit(learner.value_and_grad(loss, window=2))
    params, state = learner.params, learner.init()
    _, state = gradient(params, state, *data())
    (value, grads), state = gradient(params, state, *data())
    return value, grads, state.hidden, state.trace


@pytest.mark.parametrize("name", CASES)
def test_gradients_states_and_traces(name):
    *model, axis, shard = CASES[name]
    assert_equal(gradients(compiled(*model, axis, shard)), gradients(compiled(*model)))


def test_a_loss_that_goes_through_the_samples():
    def one_by_one(output, target):
        return lax.scan(lambda c, s: (0.5 * c + ((s[0] - s[1]) ** 2).sum(), None), 0.0, (output, target))[0]

    model = leaky, {"w": (I, H), "o": (H, O)}, jnp.zeros((B, H)), "d_rtrl"
    assert_equal(*(gradients(compiled(*model, *cut), one_by_one) for cut in (("batch", "batch"), ())))


def test_an_optimizer_that_draws_numbers_for_whole_parameters():
    optimizer = optax.chain(optax.add_noise(0.1, 0.5, 3), optax.sgd(0.1))
    model, found = (leaky, {"w": (I, H), "o": (H, O)}, jnp.zeros((B, H)), "d_rtrl"), []
    for cut in (("neuron", "neuron"), ()):
        learner = compiled(*model, *cut)
        params = learner.params
        found.append(learner.train(optimizer, loss, window=2)(params, optimizer.init(params), learner.init(), *data()))
    assert_equal(found[0][0], found[1][0])
    assert_equal(found[0][3], found[1][3])


@pytest.mark.parametrize(("rule", "cut"), [("d_rtrl", "batch"), ("pp_prop", "batch"), ("d_rtrl", "neuron")])
def test_resets(rule, cut):
    """Lanes that start again on their own: as on one device, and each device has the lanes of its own samples."""
    rng = np.random.RandomState(0)
    params = {k: jnp.asarray(rng.standard_normal(n)) for k, n in (("w", (I, H)), ("b", (H,)), ("o", (H, O)))}
    step = lambda p, h, x: (0.9 * h + jnp.abs(x) @ p["w"] + p["b"], h @ p["o"])
    xs, ys, flags = rng.standard_normal((T, B, I)), rng.standard_normal((T, B, O)), rng.rand(T, B) < 0.3
    shard = {"hidden/.*": P("batch", None)} if cut == "batch" else BY_UNIT
    found = []
    for options in ({}, {"mesh": mesh(cut), "shard": shard}):
        learner = etrax.compile(step, rule, xs[0], params=params, hidden=jnp.ones((B, H)), **options)
        (_, grads), state = learner.value_and_grad(loss, window=3)(params, learner.init(), xs, ys, None, flags)
        (_, more), state = learner.value_and_grad(loss, window=3)(params, state, xs, ys, None, flags[:, 0])
        found.append((grads, more, state.hidden, state.trace))
        if options and cut == "batch":
            assert not any(a.sharding.is_fully_replicated for a in jax.tree.leaves(state.trace) if a.ndim > 1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13), *found)
