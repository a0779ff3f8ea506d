"""A small model, data of sequences with different lengths, and a training loop written out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import etrax
from etrax.train import Dataset, Trainer, accuracy

I, H, C, T, N, B = 3, 4, 2, 6, 7, 3


def step(params, h, x):
    h = jax.nn.sigmoid(params["leak"]) * h + jnp.tanh(x @ params["w"])
    return h, h @ params["out"]


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def params(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "w": jnp.asarray(rng.standard_normal((I, H))),
        "leak": jnp.asarray(rng.standard_normal(H)),
        "out": jnp.asarray(rng.standard_normal((H, C))),
    }


def learner(rule="d_rtrl", batch=B):
    lead = () if batch is None else (batch,)
    return etrax.compile(step, rule, jnp.zeros((*lead, I)), params=params(), hidden=jnp.zeros((*lead, H)))


def data(seed=1, samples=N):
    """Targets at every step; sequence n has the length `lengths[n]`."""
    rng = np.random.default_rng(seed)
    lengths = 1 + rng.permutation(samples) % T
    mask = np.arange(T)[:, None] < lengths
    return Dataset(rng.standard_normal((T, samples, I)), rng.standard_normal((T, samples, C)), mask)


def trainer(rule="d_rtrl", batch=B, optimizer=None, **options):
    return Trainer(learner(rule, batch), optimizer or optax.sgd(0.1), loss, **{"window": 2, **options})


def classes(samples=N):
    """A data set with one label per sequence."""
    found = data(samples=samples)
    return Dataset.labelled(found.inputs, np.arange(samples) % C, found.mask)


def class_trainer(**options):
    def loss(output, target):
        return optax.softmax_cross_entropy_with_integer_labels(output, target).mean()

    return Trainer(learner(), optax.adam(0.02), loss, **{"window": 2, "metrics": {"accuracy": accuracy}, **options})


def outputs_of(p, xs):
    """All outputs of one sequence (T, I), step by step in numpy."""
    p = {k: np.asarray(v) for k, v in p.items()}
    h, found = np.zeros(H), []
    for x in xs:
        h = 1 / (1 + np.exp(-p["leak"])) * h + np.tanh(x @ p["w"])
        found.append(h @ p["out"])
    return np.array(found)


def batch_loss(p, xs, ys, mask):
    """The mean over the steps that count, for any number of sequences, without a scan."""
    h, total = jnp.zeros((xs.shape[1], H)), 0.0
    for x, y, m in zip(xs, ys, mask, strict=True):
        h, out = step(p, h, x)
        total = total + (m * ((out - y) ** 2).mean(-1)).sum()
    return total / mask.sum()


def by_hand(p, d, order, rate=0.1, size=B):
    """Gradient descent by BPTT, a batch at a time; the last batch is simply shorter."""
    losses, weights = [], []
    for start in range(0, len(order), size):
        i = order[start : start + size]
        mask = np.asarray(d.mask[:, i], float)
        value, g = jax.value_and_grad(batch_loss)(p, d.inputs[:, i], d.targets[:, i], mask)
        p = jax.tree.map(lambda a, b: a - rate * b, p, g)
        losses, weights = [*losses, float(value)], [*weights, mask.sum()]
    return p, float(np.average(losses, weights=weights))


def close(a, b, tolerance=1e-12):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance), a, b)


def same(a, b):
    """Bit for bit."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
