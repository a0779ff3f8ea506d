"""A loop that is split gives what `lax.scan` gives: states, outputs and derivatives, whatever reads whatever."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import etrax
from etrax._compat import scan_parts
from etrax.compiler.fission import schedule
from etrax.compiler.fission._fission import split_scan
from etrax.runtime import _window

B, N, K = 2, 4, 5


@jax.custom_vjp
def fired(v):
    return (v > 0).astype(v.dtype)


fired.defvjp(lambda v: (fired(v), v), lambda v, g: (g / (1 + jnp.abs(v)) ** 2,))


def parts_of(step, carry, xs):
    """The parts of a loop, in order: `at once`, or the numbers of the states that a loop carries."""
    eqn = jax.make_jaxpr(lambda c, xs: lax.scan(step, c, xs))(carry, xs).eqns[-1]
    assert eqn.primitive.name == "scan"
    found = scan_parts(eqn)
    plan = schedule(found.jaxpr, found.num_consts, found.num_carry)
    return [part.states if part.loop else "at once" for part in plan.parts]


def values(seed, *shape):
    return jnp.asarray(np.random.RandomState(seed).standard_normal(shape)) * 0.7


def assert_same(step, carry, xs, length=K):
    """States, outputs and what flows back from random cotangents of both to states, inputs and closed-over weights."""

    def both(run, carry, xs):
        found, pull = jax.vjp(lambda c, xs: run(step, c, xs, length), carry, xs)
        leaves, tree = jax.tree.flatten(found)
        seeds = [values(i, *a.shape).astype(a.dtype) for i, a in enumerate(leaves)]
        return found, pull(jax.tree.unflatten(tree, seeds))

    expected, found = (jax.jit(lambda c, xs, run=run: both(run, c, xs))(carry, xs) for run in (lax.scan, split_scan))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), found, expected)


W = [values(i, N, N) for i in range(6)]
X = values(9, K, B, N)
H = [values(20 + i, B, N) for i in range(6)]


def stack(h, x):
    """Three layers, each with a skip past it; the last has a readout."""
    new = []
    for i in range(3):
        new.append(jnp.tanh(0.9 * h[i] + x @ W[i]))
        x = x + new[-1]
    return new, x @ W[3]


def with_feedback(h, x):
    """The upper layer acts on the lower one a step later: one recurrence."""
    low = jnp.tanh(0.9 * h[0] + x @ W[0] + h[1] @ W[2])
    high = jnp.tanh(0.5 * h[1] + low @ W[1])
    return [low, high], high @ W[3]


def feedback_above(h, x):
    """Two layers that act on each other, on one that does not hear of them."""
    (low,), y = stack_of_one(h[:1], x)
    rest, out = with_feedback(h[1:], y)
    return [low, *rest], out


def stack_of_one(h, x):
    h = 0.9 * h[0] + x @ W[4]
    return [h], fired(h - 0.5)


def unread(h, x):
    """A state that nobody reads, one that remembers an input, one that is a constant, two that change places."""
    low = jnp.tanh(0.9 * h[0] + h[2] @ W[0])
    return [low, jnp.cos(low @ W[1]), x, jnp.ones_like(x), h[5], h[4]], (low @ W[2], h[5] @ W[3], h[3] @ W[4])


def stays(h, x):
    """A state that is never changed is one value at all steps, also as a weight."""
    low = jnp.tanh(0.9 * h[0] + x @ h[1])
    return [low, h[1]], low @ h[1]


def between(h, x):
    """Two products in a row after a recurrence, two recurrences in a row without a product."""
    low = 0.9 * h[0] + x @ W[0]
    mid = 0.5 * h[1] + jnp.tanh(low)
    high = 0.9 * h[2] + jnp.tanh(jnp.tanh(mid @ W[1]) @ W[2])
    return [low, mid, high], (high, low @ W[3])


def weight_first(h, x):
    low = 0.9 * h[0] + jnp.einsum("io,bi->bo", W[0], x)
    return [low], jnp.einsum("oi,bi->ob", W[1], jnp.sin(low))


def sorted_between(h, x):
    """Something on no cycle that is not known to be cheap stays in a loop, and so does a product of data with data."""
    low = 0.9 * h[0] + x @ W[0]
    high = jnp.tanh(h[1] + jnp.sort(low @ W[1], axis=-1) @ W[2])
    return [low, high], (high @ high.T) @ high


MODELS = {
    "stack": (stack, 3, ["at once", (0,), "at once", (1,), "at once", (2,), "at once"]),
    "with_feedback": (with_feedback, 2, ["at once", (0, 1), "at once"]),
    "feedback_above": (feedback_above, 3, ["at once", (0,), "at once", (1, 2), "at once"]),
    "unread": (unread, 6, ["at once", (0, 4, 5), "at once"]),
    "stays": (stays, 2, None),
    "between": (between, 3, ["at once", (0, 1), "at once", (2,)]),
    "weight_first": (weight_first, 1, ["at once", (0,), "at once"]),
    "sorted_between": (sorted_between, 2, ["at once", (0,), "at once", (), "at once", (1,)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_split(name):
    step, n, parts = MODELS[name]
    carry = [H[0], W[5]] if name == "stays" else H[:n]
    if parts is not None:
        assert parts_of(step, carry, X) == parts
    assert_same(step, carry, X)


@pytest.mark.parametrize("seed", range(24))
def test_random_steps(seed):
    """Layers that read inputs, each other's new states, and each other's old ones."""
    rng = np.random.RandomState(seed)
    n = rng.randint(2, 6)
    upward, back = rng.rand(n, n) < 0.5, rng.rand(n, n) < 0.12
    weighted, nonlinear, kind = rng.rand(n, n) < 0.7, rng.rand(n) < 0.5, rng.randint(0, 3, n)

    def step(h, x):
        new = []
        for i in range(n):
            total = [jnp.tanh, jnp.cos, fired][kind[i]](x) @ W[i] if i == 0 or rng.rand() < 0.4 else 0.0
            for j in range(n):
                values = ([new[j]] if j < i and upward[i, j] else []) + ([h[j]] if back[i, j] else [])
                for v in values:
                    total = total + (v @ W[j] if weighted[i, j] else v)
            new.append(0.8 * h[i] + total if nonlinear[i] else jnp.tanh(0.8 * h[i] + total))
        return new, (new[-1] @ W[0], [jnp.sin(v).sum() for v in new])

    state = rng.get_state()

    def same_each_time(h, x):
        rng.set_state(state)
        return step(h, x)

    assert_same(same_each_time, [values(seed + i, B, N) for i in range(n)], X)


def test_one_step_and_no_product_are_one_loop():
    plain = lambda h, x: (0.9 * h + x, h)
    assert parts_of(plain, H[0], X) == [(0,)]
    assert_same(plain, H[0], X)
    assert_same(stack, H[:3], X[:1], 1)


def test_random_numbers_are_those_of_the_step():
    """A key that is split at each step, noise and dropout between layers."""

    def step(carry, x):
        key, h = carry
        key, one, two = jax.random.split(key, 3)
        low = 0.9 * h[0] + x @ W[0] + jax.random.normal(one, (B, N))
        high = 0.9 * h[1] + jnp.where(jax.random.bernoulli(two, 0.5, (B, N)), jnp.tanh(low), 0) @ W[1]
        return (key, [low, high]), high @ W[2]

    start = (jax.random.key(3), H[:2])
    (a, states), outs = jax.jit(lambda: split_scan(step, start, X, K))()
    (b, expected), expected_outs = lax.scan(step, start, X, K)
    assert (jax.random.key_data(a) == jax.random.key_data(b)).all()
    for one, two in zip([*states, outs], [*expected, expected_outs], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12)


def test_what_has_effects_is_run_in_order():
    seen = []

    def step(h, x):
        jax.debug.callback(lambda v: seen.append(float(v)), h[0][0, 0], ordered=True)
        new, y = stack(h, x)
        jax.debug.callback(lambda v: seen.append(float(v)), y[0, 0], ordered=True)
        return new, y

    assert parts_of(step, H[:3], X) == [(0, 1, 2)]
    (_, outs) = split_scan(step, H[:3], X, K)
    jax.effects_barrier()
    np.testing.assert_allclose(seen[1::2], outs[:, 0, 0])


def test_an_operation_without_batching_rule_stays_in_a_loop():
    def host(v):
        return jax.pure_callback(lambda a: np.tanh(a), jax.ShapeDtypeStruct(v.shape, v.dtype), v)

    def step(h, x):
        low = 0.9 * h[0] + x @ W[0]
        high = 0.9 * h[1] + host(low @ W[1]) @ W[2]
        return [low, high], high @ W[3]

    found, expected = (run(step, H[:2], X, K) for run in (split_scan, lax.scan))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, expected)


def test_many_rows_are_not_joined():
    """Where a product has rows enough, only what inputs alone feed is made ahead."""
    wide = [jnp.zeros((200, N))] * 3
    assert parts_of(stack, wide, jnp.zeros((K, 200, N))) == ["at once", (0, 1, 2)]


# One of each kind: no trace, records, steps that move, signals, a future.
RULES = ["tbptt", "d_rtrl", "pp_prop", etrax.snap(1), etrax.e_prop(feedback="random", key=1), "synthetic"]


def lif_stack(p, h, x):
    new = {}
    for i in range(3):
        v = 0.9 * h[f"v{i}"] + x @ p[f"w{i}"]
        x = fired(v - 0.5)
        new[f"v{i}"] = v - x
    new["r"] = 0.8 * h["r"] + x @ p["out"] + p["b"]
    return new, new["r"]


@pytest.mark.parametrize(("rule", "masked"), [*((rule, False) for rule in RULES), ("tbptt", True)], ids=str)
def test_learners_are_the_same(rule, masked, monkeypatch):
    """Loss, gradients, states and trace of every rule, with windows of which the last is shorter."""
    params = {f"w{i}": W[i] for i in range(3)} | {"out": W[3], "b": W[4][0]}
    hidden = {k: 0.3 * H[i] for i, k in enumerate(["v0", "v1", "v2", "r"])}
    xs, ys = values(1, 8, B, N), values(2, 8, B, N)
    mask = jnp.asarray(np.random.RandomState(3).rand(8, B) < 0.6, jnp.float64) if masked else None
    loss = lambda o, y: ((o - y) ** 2).mean()
    found = []
    for run in (lax.scan, split_scan):
        monkeypatch.setattr(_window, "split_scan", run)
        learner = etrax.compile(lif_stack, rule, xs[0], params=params, hidden=hidden)
        gradient = jax.jit(learner.value_and_grad(loss, window=3))
        found.append(gradient(params, learner.init(), xs, ys, mask=mask))
    pairs = zip(*(jax.tree.leaves(f) for f in found), strict=True)
    for one, two in pairs:
        if jnp.issubdtype(one.dtype, jnp.number):
            np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-12)


def test_a_state_that_no_loop_carries_is_read_a_step_later():
    w = values(0, N, N)

    def step(carry, x):
        h, g = carry
        return (jnp.tanh(x @ w), jnp.sin(h)), jnp.cos(g) * h

    assert_same(step, (values(1, B, N), values(2, B, N)), values(3, K, B, N))


def test_a_state_that_a_product_makes_is_read_by_what_is_no_recurrence():
    """The product runs for all steps at once; what reads its last value waits until all of it is there."""

    def step(h, x):
        return x @ W[0], jnp.sin(h) + x

    assert_same(step, H[0], X)
    assert_same(lambda h, x: (x @ W[0], (x @ W[1] + jnp.sin(h)) @ W[2]), H[0], X)
    assert_same(lambda h, x: ((x @ W[0], h[0]), h[0] * h[1]), (H[0], H[1]), X)  # and the one before it
    assert_same(lambda h, x: ((x @ W[0], jnp.tanh(h[1] + h[0])), h[1]), (H[0], H[1]), X)  # in a loop


@jax.custom_vjp
def on_the_host(a):
    return jnp.sin(a)


def _cosine(a, g):
    shape = jax.ShapeDtypeStruct(a.shape, a.dtype)
    return (jax.pure_callback(lambda b, h: np.asarray(np.cos(b) * h), shape, a, g),)


on_the_host.defvjp(lambda a: (jnp.sin(a), a), _cosine)


def test_a_derivative_that_cannot_be_batched():
    """A callback on the way back has no batching rule: what holds it runs step by step."""
    assert_same(lambda h, x: (0.9 * h + x @ W[0], on_the_host(h @ W[1])), H[0], X)
    assert_same(lambda h, x: (h, on_the_host(x @ W[1])), H[0], X)
