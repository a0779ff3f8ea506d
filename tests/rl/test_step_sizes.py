"""Step sizes against their formulas, written out in numpy."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import etrax

RNG = np.random.default_rng(3)
STEPS, DECAY = 6, 0.8
GRADS = [{"w": RNG.standard_normal((2, 3)), "b": RNG.standard_normal(3)} for _ in range(STEPS)]
ERRORS = np.array([0.3, -2.0, 0.0, 40.0, -0.1, 1.5])


def flat(tree):
    return np.concatenate([np.ravel(tree[name]) for name in sorted(tree)])


def run(rule):
    """The updates of a rule along a stream, flattened, with the traces that it was given."""
    z = {name: np.zeros_like(g) for name, g in GRADS[0].items()}
    state, updates, traces, sizes = rule.init(z), [], [], []
    for grads, error in zip(GRADS, ERRORS, strict=True):
        z = {name: DECAY * z[name] + grads[name] for name in z}
        update, state = rule.update(z, state, None, error=jnp.asarray(error), grads=grads)
        updates.append(flat(update)), traces.append(flat(z)), sizes.append(float(state.step_size))
    return updates, traces, sizes


def check_sizes(updates, traces, sizes):
    for update, z, error, size in zip(updates, traces, ERRORS, sizes, strict=True):
        wanted = np.linalg.norm(update) / (abs(error) * np.linalg.norm(z)) if error else 0.0
        np.testing.assert_allclose(size, wanted, rtol=1e-9)


def test_obgd():
    updates, traces, sizes = run(etrax.rl.obgd(0.5, 3.0))
    for update, z, error, size in zip(updates, traces, ERRORS, sizes, strict=True):
        step = 0.5 / max(1.0, 3.0 * 0.5 * max(abs(error), 1.0) * np.abs(z).sum())
        np.testing.assert_allclose(update, step * error * z, rtol=1e-12)
        np.testing.assert_allclose(size, step, rtol=1e-12)


def test_intentional():
    updates, traces, sizes = run(etrax.rl.intentional(0.2, DECAY, moment_decay=0.9, clip=2.0, epsilon=1e-3))
    v = sigma = square = 0.0
    for t, (grads, error) in enumerate(zip(GRADS, ERRORS, strict=True), start=1):
        g, z = flat(grads), traces[t - 1]
        v, square = 0.9 * v + 0.1 * g**2, 0.9 * square + 0.1 * error**2
        m = np.sqrt(v / (1 - 0.9**t)) + 1e-3
        sigma = DECAY * sigma + (1 - DECAY) * (g**2 / m).sum()
        step = 0.2 / np.sqrt(sigma / (1 - DECAY**t) * (z**2 / m).sum())
        bound = 2.0 * np.sqrt(square / (1 - 0.9**t))
        np.testing.assert_allclose(updates[t - 1], step * np.clip(error, -bound, bound) * z / m, rtol=1e-9)
    check_sizes(updates, traces, sizes)
    assert abs(ERRORS[3]) > bound or np.abs(ERRORS).max() > 2 * np.sqrt(np.mean(ERRORS[:4] ** 2)), "an error is clipped"


@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_intentional_at_the_ends(decay):
    rule = etrax.rl.intentional(0.1, decay)
    z = jnp.array([1.0, 2.0])
    state = rule.init(z)
    for _ in range(3):
        updates, state = rule.update(z, state, error=jnp.asarray(0.5), grads=z)
        np.testing.assert_allclose((updates * z).sum(), 0.1 * 0.5, rtol=1e-6)


def test_a_trace_of_zeros_changes_nothing():
    z = jnp.zeros(2)
    for rule in (etrax.rl.obgd(), etrax.rl.intentional(0.1, 0.9), etrax.rl.adaptive_q(decay=0.9)):
        updates, state = rule.update(z, rule.init(z), error=jnp.asarray(1.0), grads=z)
        assert not np.asarray(updates).any() and np.isfinite(float(state.step_size))


def test_adaptive_q():
    updates, traces, sizes = run(etrax.rl.adaptive_q(0.01, decay=DECAY))
    v = 0.0
    for update, grads, z, error in zip(updates, GRADS, traces, ERRORS, strict=True):
        v = DECAY * v + (1 - DECAY) * flat(grads) ** 2
        np.testing.assert_allclose(update, 0.01 * np.clip(error, -1, 1) * z / (np.sqrt(v) + 0.1), rtol=1e-12)
    check_sizes(updates, traces, sizes)


def test_chained_with_optax():
    rule = optax.chain(etrax.rl.obgd(0.5, 3.0), optax.scale(2.0))
    z = GRADS[0]
    updates, _ = rule.update(z, rule.init(z), z, error=jnp.asarray(0.3), grads=z)
    alone, _ = etrax.rl.obgd(0.5, 3.0).update(z, etrax.rl.obgd().init(z), error=jnp.asarray(0.3))
    np.testing.assert_allclose(flat(updates), 2 * flat(alone), rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: etrax.rl.obgd(0.0), "`obgd` takes a `learning_rate` above 0"),
        (lambda: etrax.rl.obgd(kappa=float("nan")), "`kappa`"),
        (lambda: etrax.rl.intentional(0.1, 1.5), "`decay` from 0 to 1"),
        (lambda: etrax.rl.adaptive_q(decay=-1), "`decay`"),
        (lambda: etrax.rl.adaptive_q(decay=0.5).update({}, None, error=1.0), "needs the gradient of the last score"),
        (lambda: etrax.rl.adaptive_q(decay=0.5).update({}, None, error=1.0, grads=[1.0]), "another structure"),
    ],
)
def test_bad_arguments(make, text):
    with pytest.raises(etrax.ArgumentError, match=text):
        make()
