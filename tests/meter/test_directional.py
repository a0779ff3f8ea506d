"""`directional`: the projection of BPTT's gradient on candidates, which no candidate beats and which never ascends."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.learn.oracle import bptt
from tests.zoo import ZOO

import etrax
from etrax.meter._directional import orthonormal

T = 7
RULES = ("tbptt", "d_rtrl")
# Derivative rules that are not linear in what they are given, loop, or call out of JAX.
WITHOUT_FORWARD_MODE = ("clipped", "rounded", "loop_in_the_rule", "callback", "linear_function_with_its_transpose")


def flat(tree):
    """The numbers that have derivatives as one real vector."""
    arrays = [np.asarray(a).ravel() for a in jax.tree.leaves(tree) if jnp.issubdtype(jnp.asarray(a).dtype, jnp.inexact)]
    parts = [part for a in arrays for part in (np.real(a), np.imag(a))]
    return np.concatenate(parts).astype(float) if parts else np.zeros(0)


def cosine(one, other):
    size = np.linalg.norm(one) * np.linalg.norm(other)
    return float(one @ other / size) if size else 0.0


@pytest.mark.fast_seconds(25)
# Names without a slash are one family, of which as many rows are fast as the seconds allow.
@pytest.mark.parametrize("name", [n for n in ZOO if n != "size/two_hundred"], ids=lambda n: n.replace("/", " "))
def test_no_candidate_is_better(name):
    """On every model: the cosine with BPTT is at least that of each candidate, and the projection is one."""
    entry = ZOO[name]
    for module in entry.needs:
        pytest.importorskip(module)
    model = entry()
    inputs, targets = model.make_inputs(T, 0), model.make_target(T, 0)
    first = jax.tree.map(lambda a: a[0], inputs)
    plain = etrax.compile(model.step, "tbptt", *first, params=model.params, hidden=model.hidden)

    def gradient(rule):
        learner = plain.with_rule(rule)
        (_, grads), _ = learner.value_and_grad(model.loss, window=2)(model.params, learner.init(), inputs, targets)
        return flat(grads)

    try:
        ours = gradient(etrax.directional(RULES, random=2))
    except etrax.NotSupportedError as error:
        assert "forward mode" in str(error) and any(word in name for word in WITHOUT_FORWARD_MODE)
        return
    if "rounded" in name:
        return  # its gradient is not linear: BPTT's own is no derivative along a direction
    true = flat(bptt(model, inputs, targets))
    slack = max(1e-9, 100 * model.tol)
    for rule in RULES:
        assert cosine(ours, true) >= cosine(gradient(rule), true) - slack, rule
    assert ours @ true >= -slack * np.linalg.norm(ours) * np.linalg.norm(true)
    # ⟨ĝ, g⟩ = ‖ĝ‖² of a projection.
    np.testing.assert_allclose(ours @ true, ours @ ours, atol=slack * (true @ true) + 1e-300)


def recurrent(params, h, x):
    h = jnp.tanh(x @ params["w"] + h @ params["u"])
    return h, h @ params["out"]


def squared(output, target):
    return ((output - target) ** 2).sum()


def drawn(seed, steps=12):
    rng = np.random.default_rng(seed)
    shapes = {"w": (3, 6), "u": (6, 6), "out": (6, 2)}
    params = {name: jnp.asarray(rng.standard_normal(shape) / 2) for name, shape in shapes.items()}
    return params, rng.standard_normal((steps, 2, 3)), rng.standard_normal((steps, 2, 2))


def compiled(rule):
    params, xs, _ = drawn(0)
    return etrax.compile(recurrent, rule, xs[0], params=params, hidden=np.zeros((2, 6)))


def by_loop(params, xs, ys, mask=None, flags=None):
    """BPTT's gradient of the mean loss by `jax.grad` over a loop."""
    mask = np.ones(xs.shape[:2]) if mask is None else np.broadcast_to(np.reshape(mask, (len(xs), -1)), xs.shape[:2])
    flags = np.zeros((len(xs), 1), bool) if flags is None else np.reshape(flags, (len(xs), -1))

    def total(params):
        h, out = jnp.zeros((2, 6)), 0.0
        for x, y, weight, again in zip(xs, ys, mask, flags, strict=True):
            h, o = recurrent(params, jnp.where(again[:, None], 0.0, h), x)
            out += (((o - y) ** 2).sum(-1) * weight).sum()
        return out

    return jax.grad(total)(params)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_projection_on_the_candidates(seed):
    """Least squares of BPTT's gradient on the gradients of the rules, by numpy."""
    params, xs, ys = drawn(seed)
    rules = ["tbptt", "d_rtrl", etrax.snap(1)]
    columns = []
    for rule in rules:
        learner = compiled(rule)
        columns.append(flat(learner.value_and_grad(squared, 1)(params, learner.init(), xs, ys)[0][1]))
    matrix, true = np.stack(columns, 1), flat(by_loop(params, xs, ys)) / len(xs)
    wanted = matrix @ np.linalg.lstsq(matrix, true, rcond=None)[0]
    learner = compiled(etrax.directional(rules, random=0, last=False))
    (_, grads), _ = learner.value_and_grad(squared, 1)(params, learner.init(), xs, ys)
    np.testing.assert_allclose(flat(grads), wanted, rtol=1e-9, atol=1e-10)


def test_by_parameter():
    """Each parameter's cosine is at least that of each candidate."""
    params, xs, ys = drawn(3)
    true = by_loop(params, xs, ys)
    learner = compiled(etrax.directional(RULES, random=1, by_parameter=True))
    (_, ours), _ = learner.value_and_grad(squared, 1)(params, learner.init(), xs, ys)
    for rule in RULES:
        other = compiled(rule)
        (_, grads), _ = other.value_and_grad(squared, 1)(params, other.init(), xs, ys)
        for name in params:
            assert cosine(flat(ours[name]), flat(true[name])) >= cosine(flat(grads[name]), flat(true[name])) - 1e-9


def test_an_exact_candidate_is_the_gradient():
    params, xs, ys = drawn(1)
    learner = compiled(etrax.directional(["rtrl", "d_rtrl"]))
    (_, grads), _ = learner.value_and_grad(squared, 3)(params, learner.init(), xs, ys)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b / len(xs), rtol=1e-9), grads, by_loop(params, xs, ys))


@pytest.mark.parametrize("apart", [0.0, 1e-15, 1e-9, 1e-4])
def test_nearly_dependent_candidates(apart):
    """The basis stays orthonormal, and spans what the columns span, however close they are."""
    rng = np.random.default_rng(0)
    one, other = rng.standard_normal((2, 40))
    columns = [[jnp.asarray(c)] for c in (one, 3 * one + apart * other, 0 * one, one * np.nan)]
    (basis,) = orthonormal(columns)
    gram = np.asarray(basis @ basis.T)
    lengths = np.round(np.diag(gram))
    np.testing.assert_allclose(gram, np.diag(lengths), atol=1e-12)
    assert lengths.tolist() == [1, float(apart > 1e-13), 0, 0]
    for column in columns[:2]:
        outside = column[0] - basis.T @ (basis @ column[0])
        assert np.linalg.norm(outside) <= 1e-13 * np.linalg.norm(column[0])


def root(w, h, x):
    h = jax.nn.relu(0.3 * jnp.sqrt(h) + x @ w - 0.1)  # zero in the middle, where the root has no slope
    return h, h


def timer(w, h, x):
    a, age = h
    a = 0.9 * a + (x @ w) * jnp.sqrt(age)
    return (a, jnp.where(x.sum() > 0.2, 0.0, age + 1)), a


@pytest.mark.parametrize(("step", "hidden"), [(root, jnp.ones(4)), (timer, (jnp.zeros(4), jnp.zeros(())))])
def test_an_influence_of_zero_stays_zero_at_an_infinite_slope(step, hidden):
    """The candidate is exact, so that the projection, and what the meter says, are BPTT's own."""
    rng = np.random.default_rng(0)
    w, xs, ys = (jnp.asarray(rng.standard_normal(shape)) for shape in ((3, 4), (T, 3), (T, 4)))

    def total(w):
        def body(h, along):
            h, output = step(w, h, along[0])
            return h, squared(output, along[1])

        return jax.lax.scan(body, hidden, (xs, ys))[1].mean()

    want = jax.grad(total)(w)
    assert np.isfinite(want).all() and np.abs(want).max() > 0
    learner = etrax.compile(step, etrax.directional(["rtrl"]), xs[0], params=w, hidden=hidden)
    (_, grads), _ = learner.value_and_grad(squared, 2)(w, learner.init(), xs, ys)
    np.testing.assert_allclose(grads, want, rtol=1e-9)
    exact = learner.with_rule("rtrl")
    reading = exact.meter(squared, window=2).measure(w, exact.init(), xs, ys, key=jax.random.key(0))
    assert reading.whole.cosine > 1 - 1e-9


def test_small_candidates_count():
    (basis,) = orthonormal([[jnp.full(4, 1e-200)], [jnp.array([1e-190, 0, 0, 0])]])
    np.testing.assert_allclose(basis @ basis.T, np.eye(2), atol=1e-12)


@pytest.mark.parametrize("lanes", [False, True])
def test_masks_and_resets(lanes):
    """With exact candidates, BPTT's gradient by a loop in which masked steps do not count and states start again."""
    params, xs, ys = drawn(4)
    flags, mask = np.zeros((len(xs), 2), bool), np.ones((len(xs), 2))
    flags[[3, 7], 0] = flags[4, 1] = True
    mask[5, 0] = mask[8] = 0
    flags, mask = (flags, mask) if lanes else (flags[:, 0], mask[:, 0])
    hurt = ys.copy()
    hurt[8] = np.nan
    learner = compiled(etrax.directional(["rtrl"], random=1))
    loss = lambda o, y: ((o - y) ** 2).sum()
    (_, grads), _ = learner.value_and_grad(loss, 2, "sum")(params, learner.init(), xs, hurt, mask, flags)
    want = by_loop(params, xs, ys, mask, flags)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), grads, want)


def test_training_updates_once_for_each_call():
    params, xs, ys = drawn(5)
    learner, optimizer = compiled(etrax.directional(RULES)), optax.sgd(0.1)
    (loss, grads), after = learner.value_and_grad(squared, 2)(params, learner.init(), xs, ys)
    new, _, state, losses = learner.train(optimizer, squared, 2)(params, optimizer.init(params), learner.init(), xs, ys)
    assert losses.shape == (1,)
    np.testing.assert_allclose(losses[0], loss)
    jax.tree.map(lambda a, b, g: np.testing.assert_allclose(a, b - 0.1 * g, rtol=1e-12), new, params, grads)
    jax.tree.map(np.testing.assert_array_equal, state, after)
    kept, _, _, _ = learner.train(optimizer, squared, 2)(
        params, optimizer.init(params), learner.init(), xs, ys, np.zeros(len(xs))
    )
    jax.tree.map(np.testing.assert_array_equal, kept, params)


def test_the_last_projection_is_a_candidate():
    """On the same data again the span holds the projection before, so that the cosine cannot fall."""
    params, xs, ys = drawn(6)
    learner, true = compiled(etrax.directional(["tbptt"], random=3)), flat(by_loop(params, xs, ys))
    gradient, state, cosines = learner.value_and_grad(squared, 1), learner.init(), []
    for _ in range(6):
        (_, grads), state = gradient(params, state._replace(hidden=learner.hidden), xs, ys)
        cosines.append(cosine(flat(grads), true))
    assert all(b >= a - 1e-12 for a, b in pairwise(cosines)) and cosines[-1] > cosines[0] + 0.003


def test_under_jit_and_vmap():
    learner = compiled(etrax.directional(RULES))
    gradient = learner.value_and_grad(squared, 2)
    both = [drawn(seed) for seed in (7, 8)]
    params = both[0][0]
    xs, ys = (np.stack([b[i] for b in both]) for i in (1, 2))
    by_vmap = jax.jit(jax.vmap(lambda x, y: gradient(params, learner.init(), x, y)))(xs, ys)
    for n in range(2):
        want = gradient(params, learner.init(), xs[n], ys[n])
        jax.tree.map(lambda a, b, n=n: np.testing.assert_allclose(a[n], b, rtol=1e-8, atol=1e-12), by_vmap, want)


def test_complex_parameters():
    """A linear recurrence with complex diagonal: the projection in the plane of real and imaginary parts."""

    def step(params, h, x):
        h = params["a"] * h + x @ params["b"]
        return h, jnp.real(h @ params["c"])

    rng = np.random.default_rng(0)
    pair = lambda *shape: jnp.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) / 2
    params = {"a": pair(5) / 2, "b": pair(3, 5), "c": pair(5, 2)}
    xs, ys = rng.standard_normal((9, 3)), rng.standard_normal((9, 2))

    def total(params):
        h, out = jnp.zeros(5, complex), 0.0
        for x, y in zip(xs, ys, strict=True):
            h, o = step(params, h, x)
            out += squared(o, y)
        return out / len(xs)

    true = flat(jax.grad(total)(params))
    plain = etrax.compile(step, "tbptt", xs[0], params=params, hidden=jnp.zeros(5, complex))
    results = {}
    rough = etrax.rflo(0.5)
    for rule in ("tbptt", rough, etrax.directional(["tbptt", rough], random=2)):
        learner = plain.with_rule(rule)
        (_, grads), _ = learner.value_and_grad(squared, 1)(params, learner.init(), xs, ys)
        results[str(rule).partition("(")[0]] = flat(grads)
    ours = results["directional"]
    np.testing.assert_allclose(ours @ true, ours @ ours, rtol=1e-9)
    assert cosine(ours, true) >= max(cosine(results[r], true) for r in ("tbptt", "rflo")) - 1e-9


def test_frozen_parameters_stay():
    params, xs, ys = drawn(2)
    learner = compiled(etrax.directional([etrax.partition({"u": etrax.frozen()}, default="d_rtrl")], random=2))
    (_, grads), _ = learner.value_and_grad(squared, 2)(params, learner.init(), xs, ys)
    assert not grads["u"].any() and grads["w"].any()
    assert str(learner.report.verdicts["u",].kind) == "unused"


def test_a_learner_with_a_random_rule_draws_anew():
    params, xs, ys = drawn(2)
    learner = compiled(etrax.directional([etrax.uoro(1)], random=0, last=False))
    gradient = learner.value_and_grad(squared, 1)
    (_, one), state = gradient(params, learner.init(), xs, ys)
    (_, two), _ = gradient(params, state._replace(hidden=learner.hidden), xs, ys)
    assert abs(cosine(flat(one), flat(two))) < 0.999


@pytest.mark.parametrize(
    "rule, words",
    [
        (lambda: etrax.directional([]), "at least one"),
        (lambda: etrax.directional("d_rtrl"), "a list of rules"),
        (lambda: etrax.directional(random=-1), "`random`"),
        (lambda: etrax.directional([etrax.directional()]), "does not hold itself"),
        (lambda: etrax.partition({"w": etrax.directional()}, default="tbptt"), "does not hold `directional`"),
    ],
)
def test_bad_arguments(rule, words):
    with pytest.raises(etrax.EtraxError, match=words):
        rule()


def test_what_learns_window_by_window_is_refused():
    params, xs, _ = drawn(0)
    learner, optimizer = compiled(etrax.directional()), optax.sgd(0.1)
    for call in (
        lambda: learner.online(optimizer, squared),
        lambda: learner.export("nowhere", optimizer, squared),
        lambda: etrax.rl.eligibility(learner, lambda o, t: o.sum(), decay=0.5),
    ):
        with pytest.raises(etrax.NotSupportedError, match="window by window"):
            call()
    with pytest.raises(etrax.ArgumentError, match="check_finite"):
        etrax.compile(recurrent, etrax.directional(), xs[0], params=params, hidden=np.zeros((2, 6)), check_finite=True)


def test_memory_is_that_of_tangents():
    learner = compiled(etrax.directional(random=2))
    assert learner.memory(window=4, steps=8).peak > 0
