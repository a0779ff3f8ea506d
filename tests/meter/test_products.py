"""g·v of the meter against BPTT: masks, resets and pieces over the zoo, models with units, more than one lane."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn.oracle import moving, put
from tests.meter.test_meter import WITHOUT_FORWARD_MODE
from tests.zoo import ZOO

import etrax
from etrax.compiler.ir import leaves_with_paths

T, PROBES = 8, 4
WEIGHTS = np.array([1.0, 0.0, 2.0, 1.0, 0.5, 0.0, 1.0, 1.0])
FLAGS = np.array([0, 0, 0, 1, 0, 0, 1, 0], bool)


def by_scan(model, inputs, targets):
    """BPTT's gradient of the weighed sum of losses, with states that start again, by `jax.grad` over a scan."""

    def total(leaves):
        params = put(model.params, leaves)

        def body(h, step):
            x, target, weight, again = step
            h = jax.tree.map(lambda start, now: jnp.where(again, start, now), model.hidden, h)
            h, output = model.step(params, h, *x)
            return h, jnp.where(weight == 0, 0, weight * model.loss(output, target))

        return jax.lax.scan(body, model.hidden, (inputs, targets, WEIGHTS, FLAGS))[1].sum()

    return put(jax.tree.map(jnp.zeros_like, model.params), jax.jit(jax.grad(total))(moving(model.params)))


def close_to(meter, measured, grads, tolerance):
    """The products of all random directions are those with the gradient."""
    grads = dict(leaves_with_paths(grads))
    for path, values, products in zip(meter.paths, measured.directions, measured.products, strict=False):
        rows = np.asarray(values[0]).reshape(PROBES, -1)
        wanted = np.real(rows @ np.asarray(grads[path]).reshape(-1))
        scale = np.linalg.norm(rows) * np.linalg.norm(grads[path]) + 1e-12
        np.testing.assert_allclose(np.asarray(products), wanted, atol=tolerance * scale)


@pytest.mark.fast_seconds(20)
# Names without a slash are one family, of which as many rows are fast as the seconds allow.
@pytest.mark.parametrize("name", [n for n in ZOO if "rounded" not in n], ids=lambda n: n.replace("/", " "))
def test_masks_resets_and_pieces(name):
    """A sequence in three pieces, some steps masked, some weighed, starting again twice."""
    entry = ZOO[name]
    for module in entry.needs:
        pytest.importorskip(module)
    model = entry()
    inputs, targets = model.make_inputs(T, 0), model.make_target(T, 0)
    first = jax.tree.map(lambda a: a[0], inputs)
    learner = etrax.compile(model.step, "tbptt", *first, params=model.params, hidden=model.hidden)
    meter = learner.meter(model.loss, window=2, probes=PROBES)
    measured = meter.init(model.params, learner.init(), jax.random.key(3))
    try:
        for piece in (slice(0, 3), slice(3, 4), slice(4, T)):
            part = jax.tree.map(lambda a, piece=piece: a[piece], (inputs, targets))
            measured = meter.update(measured, *part, WEIGHTS[piece], FLAGS[piece])
    except etrax.NotSupportedError as error:
        assert "forward mode" in str(error) and any(word in name for word in WITHOUT_FORWARD_MODE)
        return
    assert float(measured.weight) == WEIGHTS.sum()
    close_to(meter, measured, by_scan(model, inputs, targets), 0.1 * model.tol)


def test_models_with_units():
    """A current in mA drives a voltage in mV; the gradient by hand, of a leak that is known."""
    brainstate, u = pytest.importorskip("brainstate"), pytest.importorskip("brainunit")
    start = np.linspace(0.1, 1.0, 6).reshape(2, 3)

    class WithUnits(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = brainstate.ParamState(jnp.asarray(start) * u.mA)
            self.v = brainstate.HiddenState(jnp.full(3, 2.0) * u.mV)

        def update(self, x):
            v = self.v.value
            self.v.value = v + (-v + x @ self.w.value * (3.0 * u.ohm)) * (0.5 * u.ms / (10.0 * u.ms))
            return self.v.value

    xs = np.random.default_rng(0).standard_normal((T, 2))
    learner = etrax.compile(WithUnits(), "d_rtrl", xs[0])
    meter = learner.meter(lambda output, _: ((output / u.mV) ** 2).sum(), window=2, probes=PROBES)
    measured = meter.update(meter.init(learner.params, learner.init(), jax.random.key(0)), xs)
    v, trace, want = np.full(3, 2.0), np.zeros(2), np.zeros((2, 3))
    for x in xs:
        v, trace = 0.95 * v + 0.15 * (x @ start), 0.95 * trace + 0.15 * x
        want += np.outer(trace, 2 * v)
    (path,) = meter.paths
    close_to(meter, measured, {"w": want} if path == ("w",) else want, 1e-10)
    reading = meter.measure(learner.params, learner.init(), xs, key=jax.random.key(1))
    assert reading.whole.interval[0] > 1 - 1e-9


@pytest.mark.parametrize("rule", ["tbptt", "d_rtrl"])
def test_masks_by_sample(rule):
    """A mask (T, B) weighs each lane's loss; reading and measuring agree on what counts."""

    def step(params, h, x):
        h = jnp.tanh(x @ params["w"] + h @ params["u"])
        return h, h

    rng = np.random.default_rng(0)
    params = {"w": jnp.asarray(rng.standard_normal((3, 4))), "u": jnp.asarray(rng.standard_normal((4, 4)))}
    xs, mask = rng.standard_normal((T, 2, 3)), (rng.random((T, 2)) < 0.6).astype(float)
    learner = etrax.compile(step, rule, xs[0], params=params, hidden=jnp.zeros((2, 4)))
    meter = learner.meter(lambda o, _: (o**2).sum(), window=2, probes=PROBES)
    measured = meter.update(meter.init(params, learner.init(), jax.random.key(0)), xs, None, mask)

    def total(params):
        h, out = jnp.zeros((2, 4)), 0.0
        for x, weight in zip(xs, mask, strict=True):
            h, o = step(params, h, x)
            out += ((o**2).sum(-1) * weight).sum()
        return out

    close_to(meter, measured, jax.grad(total)(params), 1e-10)
