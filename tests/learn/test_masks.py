"""What is masked may be NaN: loss, gradient and states are those of any other data in its place."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

import etrax

T, B, I, H, O = 7, 2, 3, 4, 2
RNG = np.random.RandomState(0)
PARAMS = {k: jnp.asarray(RNG.standard_normal(s) * 0.4) for k, s in (("w", (I, H)), ("r", (H,)), ("o", (H, O)))}
XS, YS = (jnp.asarray(RNG.standard_normal((T, B, n))) for n in (I, O))
STEPS = jnp.asarray([1.0, 0.0, 2.0, 0.0, 0.0, 1.0, 0.5])  # at window 2 a step, and a whole window
LANES = jnp.asarray(RNG.rand(T, B) > 0.4).at[2:4].set(False) * 1.0
MASKS = {"steps": STEPS, "lanes": LANES, "bool": STEPS > 0, "int": (LANES > 0).astype(int)}
RULES = ["d_rtrl", "pp_prop", etrax.e_prop(0.3, "random", key=1), etrax.synthetic(), etrax.three_factor(),
         etrax.three_factor(lambda o, t: (o - t).mean(-1)), etrax.ottt(0.5)]  # fmt: skip


def cell(p, h, x):
    h = jnp.tanh(h * p["r"] + x @ p["w"])
    return h, h @ p["o"]


def square(output, target):
    return ((output - target) ** 2).mean()


def cosine(output, target):
    """Its derivative is NaN for a target of zeros, with which NaN might be replaced."""
    norms = jnp.sqrt((output**2).sum(-1)) * jnp.sqrt((target**2).sum(-1))
    return 1 - ((output * target).sum(-1) / norms).mean()


def scored(output, target):
    return -jnp.log(jax.nn.softmax(output))[..., 0].mean() + 0 * (target**2).sum()


def learner_of(rule="d_rtrl", **options):
    return etrax.compile(cell, rule, XS[0], params=PARAMS, hidden=jnp.zeros((B, H)), **options)


def off(mask, a):
    """Where data (T, B, …) are masked."""
    mask = jnp.asarray(mask, float)
    return (mask == 0).reshape(mask.shape + (1,) * (a.ndim - mask.ndim))


def missing(mask, a):
    return jnp.where(off(mask, a), jnp.nan, a)


def in_place(mask, a, value=0.0):
    return jnp.where(off(mask, a), value, a)


def bptt(loss, xs, ys, mask):
    """By hand: the mean over what counts, sample by sample, of data that are all finite."""
    weight = jnp.broadcast_to(jnp.asarray(mask, float).reshape(T, -1), (T, B))

    def total(p):
        _, outs = jax.lax.scan(lambda h, x: cell(p, h, x), jnp.zeros((B, H)), xs)
        if jnp.ndim(mask) == 1:
            return (jax.vmap(loss)(outs, ys) * weight[:, 0]).sum() / weight[:, 0].sum()
        each = jax.vmap(jax.vmap(lambda o, y: loss(o[None], y[None])))(outs, ys)
        return (each * weight).sum() / weight.sum()

    return jax.value_and_grad(total)(PARAMS)


def same(a, b, rtol=1e-10):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-13), a, b)


@pytest.mark.parametrize("loss", [square, cosine, scored])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("window", [2, T])
def test_against_bptt(loss, mask, window):
    """`d_rtrl` is exact for this cell."""
    mask = MASKS[mask]
    learner = learner_of(check_finite=True)
    run = learner.value_and_grad(loss, window=window)
    found, state = run(PARAMS, learner.init(), missing(mask, XS), missing(mask, YS), mask)
    want = bptt(loss, in_place(mask, XS), in_place(mask, YS, 0.7), mask)
    same(found, want)
    same(etrax.testing.bptt(learner, loss)(PARAMS, learner.hidden, missing(mask, XS), missing(mask, YS), mask), want)
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(state))


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("mask", ["steps", "lanes"])
@pytest.mark.filterwarnings("ignore::etrax.RuleWarning")
def test_every_rule(rule, mask):
    """The same as with finite data in their place: gradients, updates, losses and states."""
    mask, learner, optimizer = MASKS[mask], learner_of(rule), optax.adam(1e-2)
    nan, finite = ((f(mask, XS), g(mask, YS)) for f, g in ((missing, missing), (in_place, in_place)))
    run, train = learner.value_and_grad(square, window=2), learner.train(optimizer, square, window=2)
    start = PARAMS, optimizer.init(PARAMS), learner.init()
    same(run(PARAMS, learner.init(), *nan, mask), run(PARAMS, learner.init(), *finite, mask))
    same(train(*start, *nan, mask), train(*start, *finite, mask))


@pytest.mark.parametrize("mask", MASKS)
def test_derivatives_through_a_learner(mask):
    """In parameters, targets and inputs: zero where they are masked, and those of finite data elsewhere."""
    mask, learner = MASKS[mask], learner_of()

    def value(params, xs, ys):
        (loss, grads), _ = learner.value_and_grad(square, window=2)(params, learner.init(), xs, ys, mask)
        return loss + sum((g**2).sum() for g in jax.tree.leaves(grads))

    derivative = jax.jit(jax.grad(value, argnums=(0, 1, 2)))
    found = derivative(PARAMS, missing(mask, XS), missing(mask, YS))
    want = derivative(PARAMS, in_place(mask, XS), in_place(mask, YS))
    same(found, (want[0], in_place(mask, want[1]), in_place(mask, want[2])))


def test_what_counts_is_not_hidden():
    """NaN where a sample counts stays NaN, and infinity is the step's own business."""
    learner = learner_of()
    run = learner.value_and_grad(square, window=2)
    (value, grads), _ = run(PARAMS, learner.init(), XS.at[0, 0, 0].set(jnp.nan), YS, LANES.at[0, 0].set(1.0))
    assert np.isnan(value) and np.isnan(grads["w"]).any()

    def shared(p, h, x):
        """An input that all samples share, as long as a sample's."""
        return cell(p, h, jnp.broadcast_to(x["all"], (B, I)) + x["own"])

    inputs = {"all": XS[:, 0], "own": XS}
    one = jax.tree.map(lambda a: a[0], inputs)
    learner = etrax.compile(shared, "d_rtrl", one, params=PARAMS, hidden=jnp.zeros((B, H)))
    run = learner.value_and_grad(square, window=2)
    hidden = lambda at: run(PARAMS, learner.init(), ({**inputs, "all": XS[:, 0].at[at].set(jnp.nan)},), YS, LANES)
    assert np.isfinite(hidden(2)[0][0])  # masked for all
    assert np.isnan(hidden(int(np.argmax(LANES.sum(1) == 1)))[0][0])  # one sample counts


@pytest.mark.parametrize("shard", ["batch"])
@pytest.mark.parametrize("mask", ["steps", "lanes"])
def test_on_a_mesh(mask, shard):
    mask, mesh = MASKS[mask], Mesh(np.array(jax.devices()[:2]), ("batch",))
    alone, cut = learner_of(), learner_of(mesh=mesh, shard=shard)
    run = lambda learner: learner.value_and_grad(square, window=2)(
        PARAMS, learner.init(), missing(mask, XS), missing(mask, YS), mask
    )
    found, want = (jax.tree.map(np.asarray, run(learner)) for learner in (cut, alone))
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(want))
    same(found, want)


def test_trainer():
    """Fitting and evaluating: the same curve as with finite data in their place."""

    def fitted(xs, ys):
        data = etrax.train.Dataset(np.asarray(xs), np.asarray(ys), np.asarray(LANES))
        trainer = etrax.Trainer(learner_of(), optax.adam(1e-2), square, window=2)
        result = trainer.fit(data, 2, progress=False)
        return result.params, trainer.evaluate(result.params, data)

    same(fitted(missing(LANES, XS), missing(LANES, YS)), fitted(in_place(LANES, XS), in_place(LANES, YS)))
