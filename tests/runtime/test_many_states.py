"""Many states at a position: products of blocks against dense matrices, and programs that do not grow with S."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.machines import set_machine

import etrax
from etrax.compiler.analysis import analyse, slot_links
from etrax.compiler.ir import trace_step
from etrax.runtime import plan_probes, reduced_view
from etrax.runtime.blocks import Pattern, Sparse, Stacked, full_times, power

B, I, H, T = 2, 3, 4, 9
RNG = np.random.RandomState(0)
XS, YS = jnp.asarray(RNG.standard_normal((T, B, I))), jnp.asarray(RNG.standard_normal((T, B, H)))
PARAMS = {"w": jnp.asarray(RNG.standard_normal((I, H))), "leak": jnp.asarray(RNG.uniform(0.5, 0.9, H))}


def line(slots, taps=(1, -1)):
    """A neuron that hears itself through a line of delays, in one array."""

    def step(p, s, x):
        v = p["leak"] * s["v"] + sum(0.3 * jnp.sin(s["line"][..., t]) for t in taps) + x @ p["w"]
        return {"v": v, "line": jnp.concatenate([jnp.tanh(v)[..., None], s["line"][..., :-1]], -1)}, v

    return step, {"v": jnp.full((B, H), 0.1), "line": jnp.full((B, H, slots), 0.2)}


def coupled(states):
    """All states of a neuron act on each other, and each is an array of its own."""
    matrix = 0.4 * np.eye(states) + 0.4 * np.random.RandomState(1).standard_normal((states, states)) / states**0.5

    def step(p, s, x):
        drive = x @ p["w"]
        new = [jnp.tanh(sum(matrix[a, b] * s[a] for a in range(states)) + drive / (b + 1)) for b in range(states)]
        return [p["leak"] * new[0], *new[1:]], new[0]

    return step, [jnp.full((B, H), 0.1 * (s + 1)) for s in range(states)]


def sixteen():
    """The same for sixteen states in one array."""
    matrix = jnp.asarray(0.4 * np.eye(16) + 0.1 * np.random.RandomState(1).standard_normal((16, 16)))

    def step(p, s, x):
        new = jnp.tanh(p["leak"][:, None] * (s @ matrix)) + (x @ p["w"])[..., None] / 4
        return new, new[..., 0]

    return step, jnp.full((B, H, 16), 0.1)


def twisted():
    """Complex states beside a spike that follows from one of them."""

    def step(p, s, x):
        z = s["z"] * jnp.exp(0.3j) * p["leak"] + 0.1 * s["v"]
        v = 0.8 * s["v"] + x @ p["w"] + jnp.real(s["z"]) - 0.2 * s["spike"]
        return {"v": v, "z": z, "spike": jax.nn.sigmoid(3 * v)}, v + jnp.imag(z)

    real = jnp.full((B, H), 0.3)
    return step, {"v": real, "z": real + 0.1j, "spike": real}


def bptt(step, hidden):
    def total(p):
        def body(s, xy):
            s, out = step(p, s, xy[0])
            return s, jnp.mean((out - xy[1]) ** 2)

        return lax.scan(body, hidden, (XS, YS))[1].mean()

    return jax.grad(total)(PARAMS)


def gradient(step, hidden, rule, window):
    learner = etrax.compile(step, rule, XS[0], params=PARAMS, hidden=hidden)
    run = learner.value_and_grad(lambda out, y: jnp.mean((out - y) ** 2), window=window)
    (_, found), _ = run(PARAMS, learner.init(), XS, YS)
    return learner, found


def facts_of(step, hidden):
    def run(p, h, other, x):
        new, out = step(p, h, x)
        return new, other, out

    return analyse(trace_step(run, PARAMS, hidden, (XS[0],)))


def relative_error(found, want):
    return max(float(jnp.abs(found[k] - want[k]).max() / jnp.abs(want[k]).max()) for k in want)


@pytest.mark.parametrize("density", [0.1, 0.3, 1.0])
def test_products_are_those_of_dense_matrices(density):
    rng, n, shape = np.random.RandomState(3), 7, (2, 5)
    links = rng.uniform(size=(n, n)) < density
    dense = np.where(links[..., None, None], rng.standard_normal((n, n, *shape)), 0)
    pattern = Pattern.of(links)
    d = Sparse(jnp.asarray(dense[pattern.entries]), pattern)
    q, v = rng.standard_normal((n, n, *shape)), rng.standard_normal((n, *shape))
    close = np.testing.assert_allclose
    close(d.full(), dense, rtol=1e-14)
    algebra = Stacked(n, shape)
    close(algebra.compose(jnp.asarray(q), d), np.einsum("srxy,rtxy->stxy", q, dense), rtol=1e-12, atol=1e-14)
    close(algebra.times(d, jnp.asarray(v)), np.einsum("stxy,txy->sxy", dense, v), rtol=1e-12, atol=1e-14)
    back = algebra.of_row(algebra.compose(algebra.row(jnp.asarray(v)), d))
    close(back, np.einsum("stxy,sxy->txy", dense, v), rtol=1e-12, atol=1e-14)
    close(
        full_times(jnp.asarray(dense), jnp.asarray(v), links),
        np.einsum("stxy,txy->sxy", dense, v), rtol=1e-12, atol=1e-14,
    )  # fmt: skip
    for steps in (0, 1, 2, 5):
        want = np.linalg.matrix_power(links.astype(np.int64), steps) > 0
        np.testing.assert_array_equal(power(links, steps), want)


@pytest.mark.parametrize("model", [line(6), coupled(3), twisted()], ids=["line", "coupled", "twisted"])
def test_links_hold_what_the_jacobian_shows(model):
    step, hidden = model
    facts = facts_of(step, hidden)
    (group,) = facts.groups
    leaves, tree = jax.tree.flatten(hidden)

    def run(real):
        old = [jnp.asarray(a, leaf.dtype) for a, leaf in zip(real, leaves, strict=True)]
        new = step(PARAMS, jax.tree.unflatten(tree, old), XS[0])[0]
        return [jnp.real(a) + jnp.imag(a) for a in jax.tree.leaves(new)]

    jac = jax.jacrev(run)([jnp.real(a) for a in leaves])
    links = slot_links(facts.edges, group)
    for b, row in enumerate(jac):
        for a, block in enumerate(row):
            new, old = np.nonzero(np.asarray(block).reshape(leaves[b].size, leaves[a].size))
            assert links[group.slot[b].reshape(-1)[new], group.slot[a].reshape(-1)[old]].all()


RULES = [
    etrax.d_rtrl(), etrax.e_prop(0.7), etrax.ostl(), etrax.pp_prop(0.8), etrax.rflo(0.8), etrax.ottt(0.8),
    etrax.e_prop(0.7, feedback="random", key=0),
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize(
    ("model", "window"), [(line(4), 4), (coupled(3), 1), (twisted(), 4)], ids=["line", "coupled", "twisted"]
)
def test_arrays_and_lists_of_blocks_agree(rule, model, window, monkeypatch):
    _, want = gradient(*model, rule, window)
    set_machine(monkeypatch, unrolled_block_terms=0)
    _, found = gradient(*model, rule, window)
    assert relative_error(found, want) < 1e-12


@pytest.mark.parametrize("rule", [RULES[0], RULES[2], RULES[-1]], ids=str)
@pytest.mark.parametrize(("model", "window"), [(line(4), 3), (line(9), 12), (coupled(2), 4), (twisted(), 1)])
def test_traces_moved_sample_by_sample_agree(rule, model, window, monkeypatch):
    _, want = gradient(*model, rule, window)
    set_machine(monkeypatch, stack_bytes=0, long_stack_bytes=0)
    _, found = gradient(*model, rule, window)
    assert relative_error(found, want) < 1e-12


@pytest.mark.parametrize("window", [1, 3, 7])
@pytest.mark.parametrize("model", [line(30, (2, 5)), line(100, (1, 4)), sixteen()], ids=["30", "100", "coupled"])
def test_many_states_are_exact(model, window):
    learner, found = gradient(*model, "d_rtrl", window)
    assert {v.kind for v in learner.report.verdicts.values()} == {"exact"}
    assert relative_error(found, bptt(*model)) < 1e-12


def test_what_is_compiled_does_not_grow_with_the_number_of_states():
    def equations(slots):
        step, hidden = line(slots)
        learner = etrax.compile(step, "d_rtrl", XS[0], params=PARAMS, hidden=hidden)
        run = learner.value_and_grad(lambda out, y: jnp.mean((out - y) ** 2), window=3)
        return str(jax.make_jaxpr(run)(PARAMS, learner.init(), XS, YS)).count(" = ")

    assert equations(60) == equations(30)


def test_a_line_of_delays_is_a_shift_read_by_few_pulls():
    step, hidden = line(30)
    facts = facts_of(step, hidden)
    assert slot_links(facts.edges, facts.groups[0]).sum() == 29 + 2 * 3  # the first slot follows from v, which has taps
    assert len(plan_probes(reduced_view(facts), facts.relations).pulls) == 3


@pytest.mark.parametrize("rule", ["ostl", "d_rtrl", "pp_prop"])
def test_many_states_without_a_trace_beside_states_with_one(rule):
    """The states that mix hold no parameter; a gate that reads them has one."""

    def step(params, state, x):
        mixed = jnp.cumsum(state["mixed"], -1) + x
        gated = jax.nn.sigmoid(mixed @ params["w"]) * state["gated"]
        return {"mixed": mixed, "copy": mixed, "gated": gated}, gated

    params = {"w": jax.random.normal(jax.random.key(0), (4, 3))}
    hidden = {"mixed": jnp.full(4, 0.1), "copy": jnp.full(4, 0.2), "gated": jnp.ones(3)}
    xs = jax.random.normal(jax.random.key(1), (5, 4))
    learner = etrax.compile(step, rule, xs[0], params=params, hidden=hidden)
    loss = lambda output, target: (output**2).sum()
    found = etrax.testing.compare(learner, loss, params, hidden, xs, window=2).check()
    assert rule == "pp_prop" or str(found["w"].verdict.kind) == "exact"
