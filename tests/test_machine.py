"""What a `Machine` may change is how fast numbers come, not which."""

from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.sparse import BCOO

import etrax
from etrax._machine import CPU, GPU, MACHINES, TPU, Machine, compiling_for, machine

B, I, H, T = 5, 3, 4, 6
RNG = np.random.RandomState(0)
AT = jnp.asarray([[0, 1], [0, 3], [2, 2], [2, 2], [3, 0], [1, 3]])


def normal(*shape):
    return jnp.asarray(0.5 * RNG.standard_normal(shape))


def gated(p, h, x):
    gate = jax.nn.sigmoid(x @ p["gate"])
    h = gate * h + (1 - gate) * jnp.tanh(x @ p["w"] + p["b"])
    return h, h


def two_states(p, s, x):
    v = 0.9 * s["v"] - 0.2 * s["a"] + x @ p["w"]
    return {"v": v, "a": 0.8 * s["a"] + 0.3 * jnp.tanh(v)}, v


def sparse(p, h, x):
    h = 0.9 * h + (BCOO((p["r"], AT), shape=(H, H)) @ jnp.tanh(h).T).T + x @ p["w"]
    return h, h


MODELS = {
    "gated": (gated, {"gate": normal(I, H), "w": normal(I, H), "b": normal(H)}, normal(B, H)),
    "two states": (two_states, {"w": normal(I, H)}, {"v": normal(B, H), "a": normal(B, H)}),
    "sparse": (sparse, {"r": normal(6), "w": normal(I, H)}, normal(B, H)),
}
XS, YS = normal(T, B, I), normal(T, B, H)
# Every other way at once, however small the model is.
EAGER = replace(
    CPU, unrolled_product_bytes=0, unrolled_sums=((0, 64),), stack_bytes=0, long_stack_bytes=0, by_sample_bytes=0,
    turned_rows=0, by_sample_steps=1, copied_size=0, dense_share=0, entries_in_a_sum=2, unrolled_power_states=0,
    separate_pulls=0,
)  # fmt: skip
OTHERS = {"gpu": GPU, "tpu": TPU, "plain": Machine(), "eager": EAGER, "arrays": replace(CPU, unrolled_block_terms=0)}


def gradient(name, target):
    step, params, hidden = MODELS[name]
    with compiling_for(target):
        learner = etrax.compile(step, "d_rtrl", XS[0], params=params, hidden=hidden)
        loss = lambda output, wanted: jnp.mean((output - wanted) ** 2)
        (_, grads), _ = learner.value_and_grad(loss, window=2)(params, learner.init(), XS, YS)
    return learner.report.verdicts, grads


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("name", MODELS)
def test_every_machine_gives_the_same_numbers(name, kind):
    verdicts, grads = gradient(name, CPU)
    others, found = gradient(name, OTHERS[kind])
    assert others == verdicts
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), found, grads)


@pytest.mark.parametrize(("backend", "record"), [("cpu", CPU), ("gpu", GPU), ("tpu", TPU), ("other", Machine())])
def test_the_platform_chooses(backend, record, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert machine() == record
    with compiling_for(EAGER):
        assert machine() is EAGER
    assert machine() == record


def test_machines_differ():
    """Each kind of device has numbers of its own."""
    assert len({str(MACHINES[name]) for name in ("cpu", "gpu", "tpu")}) == 3
    assert {f.name for f in fields(Machine)} >= {"joined_rows", "unrolled_terms", "dense_share"}
