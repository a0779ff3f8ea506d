"""Pairs of outputs of an op and positions, and F over them, against the dense Jacobian of the tail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax
from etrax.compiler.analysis import FanOut, analyse, traced_relations
from etrax.frontends import bind
from etrax.runtime import plan_probes, whole_view

B, I = 3, 4
ALL = FanOut(np.inf, np.inf)
CONSTANT = jnp.asarray(np.random.RandomState(0).standard_normal((4, 6)))


@jax.custom_vjp
def backwards_only(x):
    return jnp.sin(x)


backwards_only.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.cos(x) * g,))


def selective(y, h):
    u, b, s = y[:, :3], y[:, 3:5], jax.nn.softplus(y[:, 5:8])
    return jnp.exp(-s)[:, :, None] * h + (s * u)[:, :, None] * b[:, None]


def rotated(y, h):
    angle = y[:, :1]
    return jnp.stack([h[0] * jnp.cos(angle) - h[1] * jnp.sin(angle), h[0] * jnp.sin(angle) + h[1] * jnp.cos(angle)])


# Tails h' = f(y, h): widths of y, shapes of h, pushes that F takes.
TAILS = {
    "gate": (lambda y, h: jax.nn.sigmoid(y) * h, 1, (B, 5), 1),
    "gate, reverse mode only": (lambda y, h: backwards_only(y) * h, 1, (B, 5), 1),
    "keys": (lambda y, h: 0.9 * h + y[:, :2, None] * y[:, None, 2:], 5, (B, 2, 3), 2),
    "keys and keys": (lambda y, h: 0.9 * h + y[:, :, None] * y[:, None, :], 3, (B, 3, 3), 3),
    "heads": (lambda y, h: y.reshape(B, 2, 1, 3) * h, 6, (B, 2, 4, 3), 1),
    "selective": (selective, 8, (B, 3, 2), 3),
    "fixed matrix": (lambda y, h: 0.5 * h + jnp.tanh(y) @ CONSTANT, 4, (B, 6), 4),
    "normalised": (lambda y, h: 0.5 * h + jax.nn.softmax(y), 5, (B, 5), 5),
    "neighbours": (lambda y, h: 0.5 * h + y[:, 1:] * y[:, :-1], 7, (B, 6), 2),
    "some alone": (lambda y, h: h + jnp.concatenate([y[:, :3] * y[:, 3:4], y[:, 4:]], 1), 6, (B, 5), 2),
    "samples meet": (lambda y, h: h * y.mean(0), 5, (B, 5), 3),
    "blocks": (lambda y, h: 0.5 * h + jnp.repeat(y, 20, 1), 3, (B, 60), 1),
    "one position of two": (lambda y, h: h.at[:, :2].mul(y), 1, (B, 5), 1),
}


def facts_of(name):
    f, width, shape, pushes = TAILS[name]

    def step(w, h, x):
        h = f(x @ w, h)
        return h, h

    args = (jnp.zeros((I, width)), jnp.zeros(shape), jnp.zeros((B, I)))
    bound = bind(step, args[2:], params=args[0], hidden=args[1])
    return analyse(bound.step), pushes


def relation_of(facts):
    (found,) = [r for r in traced_relations(facts, ALL) if facts.sites[r.site].rule.name == "matmul"]
    return found


@pytest.mark.parametrize("name", TAILS)
def test_pairs_hold_the_whole_jacobian(name):
    f, width, shape, _ = TAILS[name]
    facts, pushes = facts_of(name)
    relation = relation_of(facts)
    rng = np.random.RandomState(1)
    w, h, x = (jnp.asarray(rng.standard_normal(s)) for s in ((I, width), shape, (B, I)))
    y = x @ w
    dense = np.asarray(jax.jacrev(f)(y, h)).reshape(h.size, y.size)
    copies = relation.copies
    assert copies is not None and copies.pushes == pushes
    assert copies.pairs == (relation.places >= 0).sum()
    probes = plan_probes(whole_view(facts), [relation])
    _, ((row,),) = jax.jit(probes)([w, h, x], [w], {relation.site: y})
    rows = np.asarray(row).reshape(B, -1)
    found = np.zeros_like(dense)
    for b in range(B):
        for q, (place, column) in enumerate(zip(relation.places[b], copies.of, strict=True)):
            if place < 0:
                assert rows[b, q] == 0
            else:
                assert found[place, b * width + column] == 0
                found[place, b * width + column] = rows[b, q]
    np.testing.assert_allclose(found, dense, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", TAILS)
def test_no_two_of_a_push_meet(name):
    facts, _ = facts_of(name)
    relation = relation_of(facts)
    copies = relation.copies
    for b in range(B):
        assert (copies.push[b] == np.where(relation.places[b] >= 0, copies.colour[b][copies.of], -1)).all()
    for c in range(copies.pushes):
        met = relation.places[copies.push == c]
        assert np.unique(met).size == met.size


def test_bound():
    """The bound is on the bytes of a trace; what passes it is reported with what it takes."""

    def step(p, h, x):
        h = jax.nn.sigmoid(x @ p["gate"]) * h + x @ p["w"]
        return h, h

    params, x, h = {"w": jnp.ones((I, 50)), "gate": jnp.ones((I, 1))}, jnp.ones((B, I)), jnp.ones((B, 50))
    size = B * I * 50 * x.dtype.itemsize

    def verdict(rule):
        return etrax.compile(step, rule, x, params=params, hidden=h).report.verdicts["gate",]

    for fan_out in ("auto", None, size, f"{size} B"):
        assert verdict(etrax.d_rtrl(fan_out=fan_out)).kind == "exact"
    assert "150 pairs, 4.8 kB" in verdict(etrax.d_rtrl()).reason
    for fan_out in (0, size - 1):
        found = verdict(etrax.d_rtrl(fan_out=fan_out))
        assert found.kind == "truncated"
        assert "`etrax.d_rtrl(fan_out=None)` carries them all, in a trace of 4.8 kB" in found.reason


def test_many_that_meet_are_asked_for():
    """A normalisation over more outputs than are read in a few pushes is carried when that is asked for."""

    def step(w, h, x):
        h = 0.9 * h + jax.nn.softmax(x @ w)
        return h, h

    def kind(rule):
        learner = etrax.compile(step, rule, jnp.ones((B, I)), params=jnp.ones((I, 9)), hidden=jnp.ones((B, 9)))
        return learner.report.verdicts[()].kind

    assert kind(etrax.d_rtrl()) == "truncated"
    assert kind(etrax.d_rtrl(fan_out=None)) == "exact"


@pytest.mark.parametrize("wrong", [-1, "a lot", True, float("nan"), [1]])
def test_bad_bound(wrong):
    with pytest.raises(etrax.EtraxError, match="fan_out"):
        etrax.d_rtrl(fan_out=wrong)


def test_memory_is_that_of_the_pairs():
    def step(p, h, x):
        h = 0.9 * h + (x @ p["k"])[:, :, None] * (x @ p["v"])[:, None]
        return h, h.sum(-1)

    params, x = {"k": jnp.ones((I, 6)), "v": jnp.ones((I, 7))}, jnp.ones((B, I))
    learner = etrax.compile(step, etrax.d_rtrl(), x, params=params, hidden=jnp.ones((B, 6, 7)))
    assert learner.memory(window=2).trace == 2 * B * I * 6 * 7 * x.dtype.itemsize
