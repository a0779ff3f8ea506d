"""Any optax optimizer, in `learner.train` and in `Trainer`, against a loop by hand with gradients of `jax.grad`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import etrax

STEPS, WINDOW, WIDTH = 8, 2, 3
RNG = np.random.default_rng(0)
PARAMS = {"w": RNG.standard_normal((2, WIDTH)), "out": {"w": RNG.standard_normal((WIDTH, 2)), "b": np.zeros(2)}}
XS, YS = RNG.standard_normal((STEPS, 2)), RNG.standard_normal((STEPS, 2))
DECAYS = jax.tree.map(lambda a: a.ndim > 1, PARAMS)
GROUPS = {"w": "slow", "out": {"w": "fast", "b": "still"}}


def mean_of_gradients(optimizer):
    return optax.MultiSteps(optimizer, every_k_schedule=2)


OPTIMIZERS = {
    "sgd with momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adamw": optax.adamw(1e-2, weight_decay=0.1, mask=DECAYS),
    "a chain": optax.chain(optax.clip_by_global_norm(0.1), optax.scale_by_adam(), optax.scale(-0.01)),
    "a schedule": optax.adam(optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 6)),
    "masked": optax.chain(optax.masked(optax.trace(0.9), DECAYS), optax.sgd(0.1)),
    "groups": optax.multi_transform(
        {"slow": optax.sgd(0.01), "fast": optax.lion(0.01), "still": optax.set_to_zero()}, GROUPS
    ),
    "inject_hyperparams": optax.inject_hyperparams(optax.rmsprop)(learning_rate=optax.linear_schedule(0.1, 0.0, 5)),
    "MultiSteps": mean_of_gradients(optax.adam(0.05)),
    "MultiSteps as a transformation": mean_of_gradients(optax.adagrad(0.05)).gradient_transformation(),
    "noise": optax.chain(optax.add_noise(0.1, 0.5, 0), optax.sgd(0.05)),
    "one that reads the loss": optax.polyak_sgd(max_learning_rate=0.1),
    "plateau": optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(factor=0.5, patience=1)),
    "one for every matrix": optax.contrib.muon(0.05),
}  # fmt: skip
READS_LOSS = {"one that reads the loss", "plateau"}


def step(params, h, x):
    h = 0.8 * h + x @ params["w"]
    return h, jnp.tanh(h) @ params["out"]["w"] + params["out"]["b"]


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def piece(params, h, xs, ys):
    """The mean loss of a window, whose beginning is given."""

    def one(h, sample):
        h, output = step(params, h, sample[0])
        return h, loss(output, sample[1])

    h, losses = jax.lax.scan(one, h, (xs, ys))
    return losses.mean(), h


def by_hand(name, optimizer, passes=1, window=WINDOW):
    """Truncated backpropagation, window after window; the state is carried from one to the next, and begins anew."""
    params, opt_state, found = PARAMS, optimizer.init(PARAMS), []

    @jax.jit
    def update(params, opt_state, h, xs, ys):
        (value, h), grads = jax.value_and_grad(piece, has_aux=True)(params, h, xs, ys)
        more = {"value": value} if name in READS_LOSS else {}
        updates, opt_state = optimizer.update(grads, opt_state, params, **more)
        return optax.apply_updates(params, updates), opt_state, h, value

    for _ in range(passes):
        h = jnp.zeros(WIDTH)
        for start in range(0, STEPS, window):
            rows = slice(start, start + window)
            params, opt_state, h, value = update(params, opt_state, h, XS[rows], YS[rows])
            found.append(value)
    return params, opt_state, jnp.stack(found)


@pytest.fixture(scope="module")
def learner():
    return etrax.compile(step, "tbptt", jnp.zeros(2), params=PARAMS, hidden=jnp.zeros(WIDTH))


def close(one, two):
    assert jax.tree.structure(one) == jax.tree.structure(two)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        a, b = (jax.random.key_data(k) if jnp.issubdtype(k.dtype, jax.dtypes.prng_key) else k for k in (a, b))
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


SLOW = {"one for every matrix", "MultiSteps as a transformation", "plateau"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in sorted(OPTIMIZERS)]
)
def test_train(learner, name):
    optimizer = OPTIMIZERS[name]
    train = learner.train(optimizer, loss, window=WINDOW)
    params, opt_state, _, losses = train(PARAMS, optimizer.init(PARAMS), learner.init(), XS, YS)
    close((params, opt_state, losses), by_hand(name, optimizer))
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(PARAMS), strict=True))


@pytest.mark.parametrize("name", ["groups", "one that reads the loss"])
@pytest.mark.parametrize("update", ["window", "sequence"])
def test_trainer(learner, name, update):
    """Two epochs of one sequence; under an exact rule the gradient of a whole one is that of one long window."""
    optimizer, data = OPTIMIZERS[name], etrax.train.Dataset(XS[:, None], YS[:, None])
    learner, window = (learner, WINDOW) if update == "window" else (learner.with_rule("d_rtrl"), STEPS)
    trainer = etrax.Trainer(learner, optimizer, loss, window=WINDOW, update=update)
    result = trainer.fit(data, epochs=2, progress=False)
    params, opt_state, _ = by_hand(name, optimizer, passes=2, window=window)
    close((result.params, result.opt_state), (params, opt_state))
