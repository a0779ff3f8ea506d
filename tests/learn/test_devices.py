"""Steps with collectives: `vmap` with an axis name, and `shard_map`. RTRL is exact for them, and says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from tests.learn.oracle import relative_error

import etrax

RNG = np.random.default_rng(0)
PARAMS = {"w": jnp.asarray(RNG.standard_normal((3, 4))) * 0.5, "u": jnp.asarray(RNG.standard_normal((4, 4))) * 0.3}
X, H = jnp.asarray(RNG.standard_normal((5, 4, 3))), jnp.zeros((4, 4))


def mesh():
    return Mesh(np.array(jax.devices()[:2]), ("a",))


def along_the_batch(collective, **axes):
    def step(p, h, x):
        h = 0.9 * h + x @ p["w"] + h @ p["u"]
        h = jnp.tanh(h - 0.5 * jax.vmap(collective, axis_name="a", **axes)(h))
        return h, h

    return step


def sharded(body, in_specs, out_specs, **options):
    def step(p, h, x):
        run = jax.shard_map(body, mesh=mesh(), in_specs=in_specs, out_specs=out_specs, **options)
        h = run(p["w"], p["u"], h, x)
        return h, h

    return step


BATCH = (P(), P(), P("a"), P("a"))
STEPS = {
    "pmean": along_the_batch(lambda a: lax.pmean(a, "a")),
    "psum over another axis": along_the_batch(lambda a: lax.psum(a, "a"), in_axes=1, out_axes=1),
    "all_gather": along_the_batch(lambda a: lax.all_gather(a, "a").sum(0)),
    "ppermute": along_the_batch(lambda a: lax.ppermute(a, "a", [(i, (i + 1) % 4) for i in range(4)])),
    "shard_map": sharded(lambda w, u, h, x: jnp.tanh(h @ u + x @ w), BATCH, P("a")),
    "shard_map, unchecked": sharded(lambda w, u, h, x: jnp.tanh(h @ u + x @ w), BATCH, P("a"), check_vma=False),
    "shard_map, pmean": sharded(lambda w, u, h, x: jnp.tanh(h @ u + x @ w - lax.pmean(h, "a")), BATCH, P("a")),
    "shard_map, scatter": sharded(
        lambda w, u, h, x: jnp.tanh(lax.psum_scatter(h @ u, "a", scatter_dimension=1, tiled=True) + x @ w),
        (P(None, "a"), P("a", None), P(None, "a"), P()), P(None, "a"),
    ),
    "shard_map, gather": sharded(
        lambda w, u, h, x: jnp.tanh(lax.all_gather(h, "a", axis=1, tiled=True) @ u + x @ w),
        (P(None, "a"), P(None, "a"), P(None, "a"), P()), P(None, "a"),
    ),
}  # fmt: skip


def loss(output, target):
    return (output**2).sum()


def bptt(step):
    def total(params):
        return lax.scan(lambda h, x: step(params, h, x), H, X)[1]

    return jax.grad(lambda p: (total(p) ** 2).sum() / len(X))(PARAMS)


@pytest.mark.parametrize("name", STEPS)
def test_rtrl_is_exact(name):
    learner = etrax.compile(STEPS[name], "rtrl", X[0], params=PARAMS, hidden=H)
    (_, grads), _ = learner.value_and_grad(loss, window=2)(PARAMS, learner.init(), X)
    for key, want in bptt(STEPS[name]).items():
        assert relative_error(grads[key], want) < 1e-12
        assert str(learner.report.verdicts[key,].kind) == "exact"


def test_a_derivative_rule_inside_is_still_seen():
    """A gradient clip between devices is not linear, and an offset is not zero."""
    for back in (lambda ct: jnp.clip(ct, -0.1, 0.1), lambda ct: ct + 0.1):
        rule = jax.custom_vjp(lambda a: a)
        rule.defvjp(lambda a: (a, None), lambda _, ct, back=back: (back(ct),))
        step = sharded(lambda w, u, h, x, rule=rule: jnp.tanh(rule(h @ u) + x @ w), BATCH, P("a"), check_vma=False)
        learner = etrax.compile(step, "rtrl", X[0], params=PARAMS, hidden=H)
        assert str(learner.report.verdicts["u",].kind) == "approximate"
