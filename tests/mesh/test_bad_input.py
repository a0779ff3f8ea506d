"""What a mesh cannot serve is refused by name, with sizes and a remedy, before anything runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import etrax

B, I, H = 4, 3, 6


def mesh(n=2, name="neuron"):
    return Mesh(np.array(jax.devices()[:n]), (name,), axis_types=(AxisType.Auto,))


def leaky(params, h, x):
    h = 0.9 * h + x @ params["w"]
    return h, h


def compiled(shard, step=leaky, batch=B, neurons=H, rule="d_rtrl", **options):
    params, hidden = {"w": jnp.ones((I, neurons))}, jnp.zeros((batch, neurons))
    return etrax.compile(step, rule, jnp.ones((batch, I)), params=params, hidden=hidden, shard=shard, **options)


CASES = {
    "batch not divided": (
        dict(shard="batch", batch=5),
        r"axis 0 of 'hidden' \(shape \[5, 6\]\).*do not divide 5.*6 is the next",
    ),
    "neurons not divided": (dict(shard="neuron", neurons=7), r"2 devices along 'neuron'.*sizes \[7\]"),
    "pattern of nothing": (
        dict(shard={"params/v": P()}),
        r"'params/v' matches no path. There are: params/w, hidden, inputs/0",
    ),
    "no such axis": (dict(shard={"hidden": P("x")}), r"names the axis 'x'; the mesh has \['neuron'\]"),
    "too many axes": (dict(shard={"hidden": P(None, None, "neuron")}), r"which has 2 axes \(shape \[4, 6\]\)"),
    "no pattern": (dict(shard={"(": P()}), "is no regular expression"),
    "no word": (dict(shard="rows"), "expected 'batch', 'neuron', 'batch\\+neuron'"),
    "no mesh": (dict(shard="batch", mesh=None), "`mesh` was not given"),
    "check_finite": (dict(shard="batch", check_finite=True), "runs on one device"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(name):
    options, text = CASES[name]
    with pytest.raises(etrax.EtraxError, match=text):
        compiled(**{"mesh": mesh(), **options})


def test_arrays_on_other_devices():
    learner = compiled("batch", mesh=mesh())
    params = jax.device_put(learner.params, jax.devices()[1])
    gradient = learner.value_and_grad(lambda o, y: o.sum(), window=1)
    with pytest.raises(etrax.ArgumentError, match=r"`params` at 'w' is on .*, not on the 2 devices of the mesh"):
        gradient(params, learner.init(), jnp.ones((2, B, I)))


def test_a_mesh_with_explicit_axes_is_in_force():
    """What `jax.make_mesh` makes by default: results mix with one's own arrays, and inside `jit` it is refused."""
    explicit = Mesh(np.array(jax.devices()[:2]), ("neuron",), axis_types=(AxisType.Explicit,))
    learner = compiled("neuron", mesh=explicit)
    gradient = learner.value_and_grad(lambda o, y: o.sum(), window=1)
    place = jax.NamedSharding(explicit, P(None, "neuron"))
    params, xs = {"w": jax.device_put(np.ones((I, H)), place)}, np.ones((2, B, I))
    with jax.set_mesh(explicit):
        (_, grads), state = gradient(params, learner.init(), xs)
        new = params["w"] - 0.1 * grads["w"]
        assert new.sharding.spec == P(None, "neuron")
        gradient({"w": new}, state, xs)
        with pytest.raises(etrax.ArgumentError, match=r"axis_types=.*Auto"):
            jax.jit(gradient)(params, state, xs)
    (_, plain), rest = compiled(None).value_and_grad(lambda o, y: o.sum(), window=1)(
        {"w": np.ones((I, H))}, compiled(None).init(), xs
    )
    np.testing.assert_allclose(grads["w"], plain["w"], rtol=1e-6)
    np.testing.assert_allclose(state.hidden, rest.hidden, rtol=1e-6)


def test_one_device_has_no_shardings():
    with pytest.raises(etrax.ArgumentError, match="mesh="):
        compiled(None).shardings  # noqa: B018


def test_shardings_and_memory():
    learner = compiled("neuron", mesh=mesh())
    places = learner.shardings
    assert places.params["w"].spec == P(None, "neuron")
    assert places.hidden.spec == P(None, "neuron")
    assert places.inputs[0].spec == P(None, None, None)
    state = learner.init()
    for array, place in zip(jax.tree.leaves(state.trace), jax.tree.leaves(places.trace), strict=True):
        assert array.sharding == place
    found = learner.memory(window=2)
    assert found.devices == 2 and found.per_device.trace * 2 == found.trace
    assert found.per_device.peak * 2 == found.peak


def test_the_report_says_what_travels():
    notes = compiled("neuron", mesh=mesh()).report.notes
    assert any("a device holds" in note for note in notes)
    assert not any("receives" in note for note in notes)  # a leaky layer without recurrence sends nothing
    recurrent = compiled(
        "neuron", mesh=mesh(), step=lambda p, h, x: (0.9 * h + x @ p["w"] + h.sum(-1, keepdims=True),) * 2
    )
    assert any("each step a device receives" in note for note in recurrent.report.notes)


def test_align_entries():
    rows = np.array([5, 0, 2, 0, 4, 5, 5])
    order = etrax.align_entries(rows, 6, 3)
    assert order.size % 3 == 0 and sorted(order[order >= 0]) == list(range(7))
    for part, own in enumerate(order.reshape(3, -1)):
        assert set(rows[own[own >= 0]] // 2) <= {part}
    with pytest.raises(etrax.ArgumentError, match="7 rows into 3 equal parts"):
        etrax.align_entries(rows, 7, 3)
