"""Modules of Flax linen by their `apply`: Flax's own cells and other collections, against BPTT written in linen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.learn.harness import in_numpy

import etrax

linen = pytest.importorskip("flax.linen")

B, I, H, T = 2, 3, 4, 5
RNG = np.random.RandomState(0)
XS, YS = jnp.asarray(RNG.standard_normal((T, B, I))), jnp.asarray(RNG.standard_normal((T, B, H)))
WIDE = {"param_dtype": jnp.float64, "dtype": jnp.float64}
KEYS = jax.random.split(jax.random.key(1), T)


def loss(output, target):
    return ((output - target) ** 2).mean()


def assert_is_bptt(learner, step, params, hidden, inputs):
    def total(params):
        def body(h, xy):
            h, out = step(params, h, *xy[0])
            return h, loss(out, xy[1])

        return lax.scan(body, hidden, (inputs, YS))[1].mean()

    run = learner.value_and_grad(loss, window=2)
    got = in_numpy(lambda *a: run(*a)[0], params, learner.init(), inputs, YS)
    assert jax.tree.structure(got[1]) == jax.tree.structure(params)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(jax.value_and_grad(total)(params)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["OptimizedLSTMCell", "MGUCell"])
def test_own_cells(name):
    cell = getattr(linen, name)(H, **WIDE)
    carry = jax.tree.map(lambda a: a.astype(float), cell.initialize_carry(jax.random.key(0), XS[0].shape))
    variables = cell.init(jax.random.key(0), carry, XS[0])
    learner = etrax.compile(cell, "rtrl", XS[0], params=variables, hidden=carry)
    assert {v.kind for v in learner.report.verdicts.values()} == {"exact"}
    assert_is_bptt(learner, cell.apply, variables, carry, (XS,))


class Net(linen.Module):
    """Statistics that change, and a mask that is drawn at every step."""

    @linen.compact
    def __call__(self, carry, x):
        x = linen.BatchNorm(use_running_average=False, **WIDE)(x)
        return linen.SimpleCell(H, **WIDE)(carry, linen.Dropout(0.3, deterministic=False)(x))


def call(net, params, hidden, x, key):
    variables = {"params": params, "batch_stats": hidden["statistics"]}
    (carry, out), new = net.apply(variables, hidden["carry"], x, mutable=["batch_stats"], rngs={"dropout": key})
    return {"carry": carry, "statistics": new["batch_stats"]}, out


def test_other_collections_and_keys():
    net, carry = Net(), jnp.zeros((B, H))
    variables = net.init({"params": KEYS[0], "dropout": KEYS[1]}, carry, XS[0])
    hidden = {"carry": carry, "statistics": jax.tree.map(lambda a: a.astype(float), variables["batch_stats"])}
    learner = etrax.compile(net, "rtrl", XS[0], KEYS[0], params=variables["params"], hidden=hidden, call=call)
    step = lambda *given: call(net, *given)
    assert_is_bptt(learner, step, variables["params"], hidden, (XS, KEYS))


def test_wrong_calls():
    cell, carry = linen.GRUCell(H), jnp.zeros((B, H))
    given = {"params": cell.init(jax.random.key(0), carry, XS[0]), "hidden": carry}
    for model, options, message in (
        (cell, {}, "which holds no values"),
        (cell, {**given, "params": given["params"]["params"]}, "the step raised"),
        (cell, {**given, "hidden": jnp.zeros((B, H + 1))}, "the step raised"),
        (cell, {**given, "call": lambda m, p, h, x: m.apply(p, h, x)[0]}, "not a pair"),
        (linen.RNN(cell), given, r"compile its cell, `module.cell`"),
        (linen.Bidirectional(linen.RNN(cell), linen.RNN(cell)), given, "runs a whole sequence"),
    ):
        with pytest.raises(etrax.CompilationError, match=message):
            etrax.compile(model, "d_rtrl", XS[0], **options)
