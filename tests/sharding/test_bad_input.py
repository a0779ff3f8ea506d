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


def mean_field(params, h, x):
    h = 0.9 * h + 0.1 * h.mean(-1, keepdims=True) + x @ params["w"]
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
    "states that meet": (dict(shard="neuron", step=mean_field), "without a weight in between"),
    "no mesh": (dict(shard="batch", mesh=None), "`mesh` was not given"),
    "check_finite": (dict(shard="batch", check_finite=True), "runs on one device"),
}


def recurrent(params, h, x):
    h = 0.9 * h + jnp.tanh(x @ params["w"] + h @ params["u"])
    return h, h


def normed(params, h, x):
    """A weight acts on all units of a sample, through their mean."""
    y = x @ params["w"] + h @ params["u"]
    h = 0.9 * h + y - y.mean(-1, keepdims=True)
    return h, h


def normed_batch(params, h, x):
    y = x @ params["w"] + h @ params["u"]
    h = 0.9 * h + y - y.mean(0)
    return h, h


def sparse(params, h, x):
    rows = np.array([5, 0, 2, 0, 4, 5])
    h = 0.9 * h + jax.ops.segment_sum(h[:, np.arange(6)].T * params["u"][:, None], rows, 6).T + x @ params["w"]
    return h, h


def one_drive(params, h, x):
    """One number drives all units: each device has all of its weight, and traces to its own units."""
    h = 0.9 * h + jnp.tanh(x @ params["u"]) + x @ params["w"]
    return h, h


def permuted(params, h, x):
    h = 0.9 * h + (x @ params["u"])[:, np.array([0, 2, 1, 3, 5, 4])] + x @ params["w"]
    return h, h


NEURONS = {"hidden": P(None, "neuron"), "params/w": P(None, "neuron")}
STRAYS = {
    "cut along inputs": (recurrent, (H, H), NEURONS | {"params/u": P("neuron")}, r"'u' \(cut as .*on several devices"),
    "not cut": (recurrent, (H, H), {"hidden": P(None, "neuron")}, "Cut the parameter where its outputs are cut"),
    "entries without their row": (sparse, (H,), NEURONS | {"params/u": P("neuron")}, "`etrax.align_entries`"),
    "entries in any order": (sparse, (H,), "neuron", "in the order of `etrax.align_entries`"),
    "one number for all units": (one_drive, (I, 1), "neuron", r"'u' act, within a step, on .* on several devices"),
    "outputs in another order": (permuted, (I, H), "neuron", r"'u' act, within a step, on .* on several devices"),
    "a mean of units": (normed, (H, H), "neuron", "act, within a step, on elements of the state 'hidden'"),
    "a mean of samples": (normed_batch, (H, H), "batch", "on several devices along 'neuron'"),
}


@pytest.mark.parametrize("name", STRAYS)
def test_a_trace_that_would_have_to_be_sent_is_refused(name):
    step, shape, shard, text = STRAYS[name]
    params = {"w": jnp.ones((I, H)), "u": jnp.ones(shape)}
    with pytest.raises(etrax.ArgumentError, match=text):
        etrax.compile(
            step, "d_rtrl", jnp.ones((B, I)), params=params, hidden=jnp.zeros((B, H)), mesh=mesh(), shard=shard
        )


def test_states_of_layers_that_are_cut_along_different_axes():
    """The second layer is whole along the axis that cuts samples of the first: its trace would be in pieces."""

    def step(params, hidden, x):
        a, b = hidden
        a = 0.9 * a + x @ params["w"]
        b = 0.9 * b + jnp.tanh(a @ params["v"] + b @ params["u"])
        return (a, b), b

    both = Mesh(np.array(jax.devices()[:2]).reshape(2, 1), ("batch", "neuron"), axis_types=(AxisType.Auto,) * 2)
    shard = {"hidden/0": P("batch"), "hidden/1": P(None, "neuron"), "params/[vu]": P(None, "neuron")}
    params = {"w": jnp.ones((I, H)), "v": jnp.ones((H, H)), "u": jnp.ones((H, H))}
    hidden = (jnp.zeros((B, H)), jnp.zeros((B, H)))
    with pytest.raises(etrax.ArgumentError, match=r"'u' .*on several devices along 'batch'"):
        etrax.compile(step, etrax.ottt(0.9), jnp.ones((B, I)), params=params, hidden=hidden, mesh=both, shard=shard)


def test_a_trace_of_which_no_device_has_a_slice():
    """Samples that act on each other: the trace is over samples and units merged, of which only samples are whole."""
    params = {"w": jnp.ones((I, H)), "u": jnp.ones((H, H))}
    learner = etrax.compile(
        normed_batch, "d_rtrl", jnp.ones((B, I)), params=params, hidden=jnp.zeros((B, H)), mesh=mesh(), shard="neuron"
    )
    with pytest.raises(etrax.CompilationError, match=r"d_rtrl\(\) .*cannot be cut over the devices.*`shard='batch'`"):
        learner.init()


def test_signals_on_activity_that_is_read_in_copies():
    """What weights of all devices read of a layer, after more has been done to it: whose it is, is not known."""

    def step(params, hidden, x):
        a, b = hidden
        a = 0.9 * a + x @ params["w"]
        b = 0.9 * b + jnp.roll(a, 1, -1) @ params["v"]
        return (a, b), b

    params = {"w": jnp.ones((I, H)), "v": jnp.ones((H, H))}
    hidden = (jnp.zeros((B, H)), jnp.zeros((B, H)))
    learner = etrax.compile(
        step, "three_factor", jnp.ones((B, I)), params=params, hidden=hidden, mesh=mesh(), shard="neuron"
    )
    with pytest.raises(etrax.CompilationError, match=r"a learning signal acts on the activity of .*`shard='batch'`"):
        learner.init()


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
    assert any("a device holds" in note for note in compiled("neuron", mesh=mesh()).report.notes)
    whole = compiled("neuron", mesh=mesh(), rule="rtrl")
    assert any("rtrl() is not cut: every device computes and holds everything" in note for note in whole.report.notes)


@pytest.mark.parametrize(
    ("spikes", "packed"),
    [
        (lambda v: (v > 0).astype(v.dtype), True),
        (lambda v: jnp.where(v > 0, 1.0, 0.0) * (v < 3), True),
        (lambda v: jax.lax.stop_gradient((v > 0) * 1.0), True),
        (lambda v: jnp.where(v > 0, 2.0, 0.0), False),
        (lambda v: (v > 0) + v, False),
        (jax.nn.sigmoid, False),
    ],
)
def test_what_is_sure_to_be_zero_or_one_is_sent_as_bits(spikes, packed):
    def step(params, v, x):
        v = 0.9 * v + x @ params["w"] + spikes(v) @ params["u"]
        return v, v

    params = {"w": jnp.ones((I, 32)), "u": jnp.ones((32, 32))}
    learner = etrax.compile(
        step, "d_rtrl", jnp.ones((B, I)), params=params, hidden=jnp.zeros((B, 32)), mesh=mesh(), shard="neuron"
    )
    sent = f"{B * 32 // 8} B (zeros and ones as bits)" if packed else f"{B * 32 * params['w'].itemsize} B"
    notes = " ".join(learner.report.notes).replace("1.02 kB", "1024 B")
    assert f"each step sends {sent} along 'neuron'" in notes


def test_align_entries():
    rows = np.array([5, 0, 2, 0, 4, 5, 5])
    order = etrax.align_entries(rows, 6, 3)
    assert order.size % 3 == 0 and sorted(order[order >= 0]) == list(range(7))
    for part, own in enumerate(order.reshape(3, -1)):
        assert set(rows[own[own >= 0]] // 2) <= {part}
    with pytest.raises(etrax.ArgumentError, match="7 rows into 3 equal parts"):
        etrax.align_entries(rows, 7, 3)
