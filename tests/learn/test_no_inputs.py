"""Steps that take nothing from outside; and loops that have no derivative, where none is asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import etrax

PARAMS = {"w": jnp.linspace(-1.0, 1.0, 12).reshape(3, 4), "b": jnp.linspace(0.1, 0.4, 4)}
H, T = jnp.linspace(0.0, 1.0, 4), 5
TARGETS = jnp.linspace(-1.0, 1.0, T * 4).reshape(T, 4)


def step(p, h):
    h = jnp.tanh(0.9 * h + p["w"].sum(0) * p["b"])
    return h, h


def loss(output, target):
    return ((output - (0.0 if target is None else target)) ** 2).sum()


def bptt(targets, weight):
    def total(p):
        outputs = lax.scan(lambda h, _: step(p, h), H, None, T)[1]
        return (((outputs - targets) ** 2).sum(1) * weight).sum() / weight.sum()

    return jax.value_and_grad(total)(PARAMS)


@pytest.mark.parametrize("rule", ["d_rtrl", "rtrl"])
@pytest.mark.parametrize("inputs", [(), None])
def test_the_length_comes_from_targets_or_mask(rule, inputs):
    learner = etrax.compile(step, rule, params=PARAMS, hidden=H)
    run, weight = learner.value_and_grad(loss, window=2), jnp.asarray([1.0, 0.0, 2.0, 1.0, 1.0])
    for targets, mask in ((TARGETS, None), (TARGETS, weight), (None, weight)):
        (value, grads), state = run(PARAMS, learner.init(), inputs, targets, mask)
        want = bptt(0.0 if targets is None else targets, jnp.ones(T) if mask is None else mask)
        np.testing.assert_allclose(value, want[0], rtol=1e-12)
        for key in PARAMS:
            np.testing.assert_allclose(grads[key], want[1][key], rtol=1e-10)
        assert int(state.step) == T
    with pytest.raises(etrax.ArgumentError, match="nothing says how many steps"):
        run(PARAMS, learner.init(), inputs)


def test_one_step_training_and_streams():
    learner = etrax.compile(step, "d_rtrl", params=PARAMS, hidden=H)
    state, output = learner.step(PARAMS, learner.init())
    np.testing.assert_allclose(output, step(PARAMS, H)[1], rtol=1e-12)
    assert learner.memory(window=2).peak > 0
    sgd = optax.sgd(0.1)
    params, _, state, losses = learner.train(sgd, loss, window=2)(PARAMS, sgd.init(PARAMS), learner.init(), (), TARGETS)
    assert losses.shape == (3,) and int(state.step) == T
    stream = learner.online(sgd, loss, window=2)
    found = [stream.feed((), target).loss for target in TARGETS]
    np.testing.assert_allclose([found[1], found[3], stream.flush()], losses, rtol=1e-12)
    np.testing.assert_allclose(stream.params["w"], params["w"], rtol=1e-12)


def count(n):
    return lax.while_loop(lambda c: c < n, lambda c: c + 1, 0)


LOOPS = {
    "counts": lambda p, h, x: 0.9 * h + x @ p["w"] * count(3),
    "counts to a whole-number parameter": lambda p, h, x: 0.9 * h + x @ p["w"] * count(p["n"]),
    "behind stop_gradient": lambda p, h, x: (
        0.9 * h + x @ (p["w"] + lax.while_loop(lambda c: c.sum() < 9, lambda c: 2 * c + 1, lax.stop_gradient(p["w"])))
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_that_nothing_is_learned_through(name):
    model = lambda p, h, x: (LOOPS[name](p, h, x),) * 2
    params, xs = {"w": PARAMS["w"], "n": jnp.asarray(2)}, jnp.linspace(-1.0, 1.0, T * 3).reshape(T, 3)
    learner = etrax.compile(model, "d_rtrl", xs[0], params=params, hidden=H)
    (_, grads), _ = learner.value_and_grad(loss, window=2)(params, learner.init(), xs, TARGETS)

    def total(w):
        outputs = lax.scan(lambda h, x: model(params | {"w": w}, h, x), H, xs)[1]
        return ((outputs - TARGETS) ** 2).sum() / T

    np.testing.assert_allclose(grads["w"], jax.grad(total)(params["w"]), rtol=1e-10)


@pytest.mark.parametrize("rule", ["tbptt", "d_rtrl", "rtrl"])
def test_a_loop_between_parameter_and_op_is_refused_when_compiling(rule):
    def model(p, h, x):
        h = h + x @ lax.while_loop(lambda c: c.sum() < 9, lambda c: 2 * c + 1, p["w"])
        return h, h

    with pytest.raises(etrax.NotSupportedError, match=r"computed from 'w' .*no reverse-mode derivative.*`lax.scan`"):
        etrax.compile(model, rule, jnp.ones(3), params={"w": PARAMS["w"]}, hidden=H)
