"""Cuts and models for which a device's part is easily taken for the whole: numbers are those of one device."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from etrax.sharding import Local, Place, Walk
from etrax.sharding._rules import elementwise
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from tests.sharding.models import draw

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


@pytest.mark.parametrize("rule", ["d_rtrl", pytest.param("e_prop", marks=pytest.mark.slow)])
def test_what_no_recurrence_needs_is_gathered_once_a_window(rule):
    """Activity of the first layer for all steps at once, that of the second at every step; nothing a second time."""
    rule = etrax.e_prop(kappa=0.5) if rule == "e_prop" else rule
    learner = compiled(layers, LAYERS, TWO, rule, "neuron", "neuron")
    gradient = jax.jit(learner.value_and_grad(loss, window=2))
    text = gradient.lower(learner.params, learner.init(), *data()).compile().as_text()
    shapes = re.findall(r"= f64\[([\d,]+)\]\S* all-gather(?:-start)?\(", text)
    assert sorted(shapes) == [f"2,{B},{H}", f"{B},{H}"]
    assert not re.search(r"collective-permute|all-to-all", text)


def test_sums_over_one_axis_and_over_two():
    """The difference of both is a sum over the one that they share, once the other is added up."""
    walk = Walk({"a": 2, "b": 2}, None, {})
    places = []

    def run(x, y):
        eqn = jax.make_jaxpr(jnp.subtract)(x, y).eqns[0]
        given = [Local(x, Place((None,), frozenset("a")), (3,)), Local(y, Place((None,), frozenset("ab")), (3,))]
        (found,) = elementwise(walk, eqn, given)
        places.append(found.place)
        return found.value

    jaxpr = jax.make_jaxpr(run)(jnp.ones(3), jnp.ones(3))
    sums = [eqn.params["axis"] for eqn in jaxpr.eqns if eqn.primitive.name == "device_reduce"]
    assert sums == ["b"]
    assert places[0].partial == {"a"}


@pytest.mark.parametrize("name", ["convert_element_type", "div"])
def test_what_rounds_is_not_a_sum_of_its_terms(name):
    walk = Walk({"a": 2}, None, {})
    functions = {"convert_element_type": lambda x: x.astype(int), "div": lambda x: lax.div(x.astype(int), 2)}
    eqn = next(e for e in jax.make_jaxpr(functions[name])(jnp.ones(3)).eqns[::-1] if e.primitive.name == name)
    value = jnp.ones(3, eqn.invars[0].aval.dtype)
    operands = [Local(value, Place((None,), frozenset("a")), (3,))]
    if name == "div":
        operands.append(Local(np.full(3, 2), Place((None,)), (3,)))
    found = []
    jaxpr = jax.make_jaxpr(lambda: found.extend(elementwise(walk, eqn, operands)) or found[0].value)()
    assert jaxpr.eqns[0].primitive.name == "device_reduce"
    assert not found[0].place.partial
