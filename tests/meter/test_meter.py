"""The meter's products against BPTT's gradient, and how often its intervals hold the true cosine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from tests.learn.oracle import bptt
from tests.zoo import ZOO

import etrax
from etrax.compiler.ir import leaves_with_paths

T = 7
# Derivative rules that are not linear in what they are given, loop, or call out of JAX.
WITHOUT_FORWARD_MODE = ("clipped", "rounded", "loop_in_the_rule", "callback", "linear_function_with_its_transpose")


@pytest.mark.fast_seconds(8)
@pytest.mark.parametrize("name", ZOO)
def test_products_are_those_of_bptt(name):
    """g·v of every parameter and direction, the sequence fed in two pieces."""
    entry = ZOO[name]
    for module in entry.needs:
        pytest.importorskip(module)
    model = entry()
    inputs, targets = model.make_inputs(T, 0), model.make_target(T, 0)
    learner = etrax.compile(
        model.step, "tbptt", *jax.tree.map(lambda a: a[0], inputs), params=model.params, hidden=model.hidden
    )
    meter = learner.meter(model.loss, window=2, probes=4)
    measured = meter.init(model.params, learner.init(), jax.random.key(3))
    try:
        for piece in (slice(0, 3), slice(3, T)):
            measured = meter.update(measured, *jax.tree.map(lambda a, piece=piece: a[piece], (inputs, targets)))
    except etrax.NotSupportedError as error:
        assert "forward mode" in str(error) and any(word in name for word in WITHOUT_FORWARD_MODE)
        return
    grads = dict(leaves_with_paths(bptt(model, inputs, targets)))
    for path, values, products in zip(meter.paths, measured.directions, measured.products, strict=True):
        rows = np.asarray(values[0]).reshape(4, -1)
        wanted = np.real(rows @ np.asarray(grads[path]).reshape(-1))
        scale = np.linalg.norm(rows) * np.linalg.norm(grads[path]) + 1e-12
        # A model that rounds its gradient on the way back has none that is linear: the two agree to that rounding.
        tolerance = 0.05 if "rounded" in name else 0.1 * model.tol
        np.testing.assert_allclose(np.asarray(products) / T, wanted, atol=tolerance * scale)


def recurrent(params, h, x):
    h = jnp.tanh(x @ params["w"] + h @ params["u"])
    return h, h @ params["out"]


def squared(output, target):
    return ((output - target) ** 2).sum()


def drawn(seed, steps=12):
    rng = np.random.default_rng(seed)
    params = {
        "w": rng.standard_normal((3, 6)), "u": rng.standard_normal((6, 6)) / 2, "out": rng.standard_normal((6, 2)),
    }  # fmt: skip
    return params, rng.standard_normal((steps, 2, 3)), rng.standard_normal((steps, 2, 2))


def compiled(rule="d_rtrl"):
    params, xs, _ = drawn(0)
    return etrax.compile(recurrent, rule, xs[0], params=params, hidden=np.zeros((2, 6)))


def cosines(learner, params, xs, ys, window=1):
    """Of the rule's gradient with BPTT's, by `jax.grad` over a loop."""

    def total(params):
        h, out = jnp.zeros((2, 6)), 0.0
        for x, y in zip(xs, ys, strict=True):
            h, o = recurrent(params, h, x)
            out += squared(o, y)
        return out / len(xs)

    true = jax.grad(total)(params)
    (_, rule), _ = learner.value_and_grad(squared, window)(params, learner.init(), xs, ys)
    angle = lambda a, b: float((a * b).sum() / (jnp.linalg.norm(a) * jnp.linalg.norm(b)))
    found = {(name,): angle(true[name], rule[name]) for name in params}
    joined = [jnp.concatenate([tree[name].ravel() for name in params]) for tree in (true, rule)]
    return {**found, "all": angle(*joined)}, true, rule


@pytest.mark.parametrize("way", ["read", "measure"])
def test_intervals_hold_the_true_cosine(way):
    """In at least 90 of 100 trials, for each parameter whose gradient is approximate."""
    learner, held, widths = compiled(), {("w",): 0, ("u",): 0, "all": 0}, []
    meter = learner.meter(squared, window=1, probes=8)
    for seed in range(100):
        params, xs, ys = drawn(seed)
        truth, _, _ = cosines(learner, params, xs, ys)
        state, key = learner.init(), jax.random.key(seed)
        if way == "measure":
            reading = meter.measure(params, state, xs, ys, key=key)
        else:
            reading = meter.read(meter.update(meter.init(params, state, key), xs, ys))
        for path in held:
            low, high = (reading.whole if path == "all" else reading.parameters[path]).interval
            held[path] += low <= truth[path] <= high
            widths.append(high - low)
    assert min(held.values()) >= 90
    assert np.mean(widths) < (1.3 if way == "read" else 0.5)


@pytest.mark.parametrize("lanes", [False, True])
def test_products_stop_at_resets(lanes):
    """g·v is that of BPTT by a loop in which the state is zero again, for all lanes or for one."""
    learner, (params, xs, ys) = compiled("tbptt"), drawn(4)
    flags = np.zeros((len(xs), 2), bool)
    flags[[3, 7], 0] = flags[4, 1] = True
    flags = flags if lanes else flags[:, 0]
    meter = learner.meter(squared, window=2, probes=4)
    measured = meter.update(meter.init(params, learner.init(), jax.random.key(0)), xs, ys, None, flags)

    def total(params):
        h, out = jnp.zeros((2, 6)), 0.0
        for x, y, again in zip(xs, ys, flags.reshape(len(xs), -1), strict=True):
            h, o = recurrent(params, jnp.where(again[:, None], 0.0, h), x)
            out += squared(o, y)
        return out

    grads = jax.grad(total)(params)
    for path, values, products in zip(meter.paths, measured.directions, measured.products, strict=True):
        rows = np.asarray(values[0]).reshape(4, -1)
        np.testing.assert_allclose(products, rows @ np.asarray(grads[path[0]]).reshape(-1), rtol=1e-9)
    reading = meter.measure(params, measured.state, xs, ys, None, flags, key=jax.random.key(1))
    assert reading.slope is not None and np.isfinite(reading.slope)


def test_what_is_exact_has_the_cosine_one():
    learner = compiled("rtrl")
    params, xs, ys = drawn(1)
    reading = learner.meter(squared, window=3).measure(params, learner.init(), xs, ys, key=jax.random.key(0))
    for measured in reading.parameters.values():
        assert measured.interval[0] > 1 - 1e-9


def test_complex_parameters_that_are_exact():
    """The product of two complex gradients is Re Σ g conj(ĝ): the cosine of what is exact is one."""

    def step(params, h, x):
        h = params["a"] * h + x @ params["b"]
        return h, jnp.real(h @ params["c"])

    rng = np.random.default_rng(0)
    pair = lambda *shape: jnp.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) / 2
    params = {"a": pair(5) / 2, "b": pair(3, 5), "c": pair(5, 2)}
    xs, ys = rng.standard_normal((9, 3)), rng.standard_normal((9, 2))
    learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=jnp.zeros(5, complex))
    reading = learner.meter(squared, 1).measure(params, learner.init(), xs, ys, key=jax.random.key(0))
    assert all(m.interval[0] > 1 - 1e-9 for m in reading.parameters.values())
    (_, grads), _ = learner.value_and_grad(squared, 1)(params, learner.init(), xs, ys)
    length = np.sqrt(sum(float((jnp.abs(g) ** 2).sum()) for g in grads.values()))
    np.testing.assert_allclose(reading.slope, length, rtol=1e-9)


def test_slope_along_an_update():
    """g·v/‖v‖ of the mean loss, against finite differences of it."""
    learner = compiled()
    params, xs, ys = drawn(2)
    _, true, rule = cosines(learner, params, xs, ys)
    meter = learner.meter(squared, window=1)
    measured = meter.update(meter.init(params, learner.init(), jax.random.key(0), direction=rule), xs, ys)
    length = np.sqrt(sum(float((g**2).sum()) for g in rule.values()))
    wanted = sum(float((true[name] * rule[name]).sum()) for name in true) / length
    np.testing.assert_allclose(meter.read(measured).slope, wanted, rtol=1e-10)
    again = meter.measure(params, learner.init(), xs, ys, key=jax.random.key(0))
    np.testing.assert_allclose(again.slope, wanted, rtol=1e-10)


def test_masked_steps_do_not_count():
    learner = compiled()
    params, xs, ys = drawn(3)
    meter, key = learner.meter(squared, window=2), jax.random.key(5)
    mask = np.ones(len(xs))
    mask[4] = 0.0
    hurt = ys.copy()
    hurt[4] = np.nan
    one = meter.update(meter.init(params, learner.init(), key), xs, hurt, mask)
    other = meter.update(meter.init(params, learner.init(), key), xs, ys, mask)
    jax.tree.map(np.testing.assert_array_equal, one.products, other.products)
    assert float(one.weight) == len(xs) - 1 and np.isfinite(one.products[0]).all()


def test_a_gradient_of_zero_has_no_angle():
    learner = compiled()
    params, xs, ys = drawn(3)
    meter = learner.meter(lambda o, y: 0.0 * o.sum())
    for reading in (
        meter.measure(params, learner.init(), xs, ys, key=jax.random.key(0)),
        meter.read(meter.update(meter.init(params, learner.init(), jax.random.key(0)), xs, ys)),
    ):
        assert all(np.isnan(m.cosine) and m.interval == (-1.0, 1.0) for m in reading.parameters.values())


def test_under_jit_and_vmap():
    """A stretch whose state is carried by `jit`, and several at once."""
    learner = compiled()
    params, xs, ys = drawn(3)
    meter = learner.meter(squared, window=2, probes=4)
    begin = lambda seed: meter.init(params, learner.init(), jax.random.key(seed))
    plain = [meter.update(begin(seed), xs, ys) for seed in (0, 1)]
    by_jit = jax.jit(meter.update)(begin(0), xs, ys)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), by_jit.products, plain[0].products)
    starts = jax.tree.map(lambda *a: jnp.stack(a), begin(0), begin(1))
    both = jax.vmap(lambda measured: meter.update(measured, xs, ys))(starts)
    for n in (0, 1):
        of_one = jax.tree.map(lambda a, n=n: a[n], both.products)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), of_one, plain[n].products)


def test_what_is_not_finite_has_no_angle():
    """Losses that overflow give an interval of everything, not a number that means nothing."""
    learner = compiled()
    params, xs, ys = drawn(3)
    meter = learner.meter(lambda o, y: (1e200 * o**2).sum() ** 2)
    for reading in (
        meter.measure(params, learner.init(), xs, ys, key=jax.random.key(0)),
        meter.read(meter.update(meter.init(params, learner.init(), jax.random.key(0)), xs, ys)),
    ):
        assert all(np.isnan(m.cosine) and m.interval == (-1.0, 1.0) for m in reading.parameters.values())


def test_frozen_parameters_are_left_out():
    learner = compiled(etrax.partition({"u": etrax.frozen()}, default="d_rtrl"))
    params, xs, ys = drawn(3)
    meter = learner.meter(squared)
    assert meter.paths == [("out",), ("w",)]
    assert set(meter.measure(params, learner.init(), xs, ys, key=jax.random.key(0)).parameters) == set(meter.paths)
    with pytest.raises(etrax.ArgumentError, match="every parameter is frozen"):
        compiled(etrax.partition({}, default=etrax.frozen())).meter(squared)


def test_parameters_are_those_of_the_beginning():
    params, xs, ys = drawn(0)
    learner, ends = compiled(), []
    meter = learner.meter(squared)
    for change in (0, 5):
        given = {name: np.array(a) for name, a in params.items()}
        measured = meter.init(given, learner.init(), jax.random.key(0))
        for a in given.values():
            a += change
        ends.append(meter.update(measured, xs, ys).products)
    jax.tree.map(np.testing.assert_array_equal, *ends)


def test_bad_arguments():
    learner = compiled()
    params, xs, ys = drawn(3)
    with pytest.raises(etrax.ArgumentError, match="`probes`"):
        learner.meter(squared, probes=2)
    meter = learner.meter(squared)
    with pytest.raises(etrax.ArgumentError, match="`state`"):
        meter.init(params, np.zeros(3), jax.random.key(0))
    with pytest.raises(etrax.ArgumentError, match="`direction` does not have the structure"):
        meter.init(params, learner.init(), jax.random.key(0), direction={"w": params["w"]})
    with pytest.raises(etrax.ArgumentError, match=r"meter\.init"):
        meter.update(None, xs, ys)


def test_a_learner_on_a_mesh_is_measured_as_on_one_device():
    devices = np.array(jax.devices()[:2])
    if len(devices) < 2:
        pytest.skip("needs two devices")
    rng = np.random.default_rng(0)
    params = {"w": jnp.asarray(rng.standard_normal((3, 4))), "u": jnp.asarray(rng.standard_normal((4, 4)))}
    xs, ys = rng.standard_normal((12, 4, 3)), rng.standard_normal((12, 4, 4))
    step = lambda p, h, x: (jnp.tanh(x @ p["w"] + h @ p["u"]),) * 2
    readings = []
    for options in ({}, {"mesh": Mesh(devices, ("data",), axis_types=(AxisType.Auto,)), "shard": "batch"}):
        learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=jnp.zeros((4, 4)), **options)
        meter = learner.meter(squared, 2)
        measured = meter.init(params, learner.init(), jax.random.key(0))
        measured = meter.update(meter.update(measured, xs[:6], ys[:6]), xs[6:], ys[6:])
        readings.append((meter.read(measured), meter.measure(params, learner.init(), xs, ys, key=jax.random.key(0))))
    for one, many in zip(*readings, strict=True):
        for path in one.parameters:
            np.testing.assert_allclose(many.parameters[path].cosine, one.parameters[path].cosine, rtol=1e-9)
