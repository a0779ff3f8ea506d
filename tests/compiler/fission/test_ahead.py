"""Products that are made for all steps of a window at once, and output traces that ops share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.machines import set_machine

import etrax
from etrax._compat import scan_parts
from etrax.compiler.fission import products_to_part
from etrax.compiler.fission._fission import split_scan

B, I, H, T = 3, 4, 5, 7
RNG = np.random.RandomState(0)
PARAMS = {k: jnp.asarray(RNG.standard_normal(s)) * 0.4 for k, s in {"w": (I, H), "r": (H, H), "c": (I + H, H)}.items()}
HIDDEN = jnp.asarray(RNG.standard_normal((B, H)))
XS, YS = jnp.asarray(RNG.standard_normal((T, B, I))), jnp.asarray(RNG.standard_normal((T, B, H)))


def plain(p, h, x):
    h = jnp.tanh(0.5 * h + x @ p["w"] + jnp.tanh(h) @ p["r"])
    return h, h


def joined(p, h, x):
    h = 0.5 * h + jnp.tanh(jnp.concatenate([x, h], -1) @ p["c"])
    return h, h


def joined_in_the_middle(p, h, x):
    h = 0.5 * h + jnp.tanh(jnp.concatenate([h[:, :2], x, h[:, 2:]], -1) @ p["c"])
    return h, h


def weight_first(p, h, x):
    h = 0.5 * h + jnp.einsum("ch,bc->bh", p["c"], jnp.concatenate([x**2, h], -1))
    return h, h


def two_in_a_row(p, h, x):
    """The second product reads inputs, through a weight."""
    h = 0.5 * h + jnp.tanh(x @ p["w"]) @ p["r"]
    return h, h


def other_axis(p, h, x):
    """Joined along the batch: nothing of the contracted axis is from outside."""
    h = 0.5 * h + (jnp.concatenate([x, x]) @ p["w"])[:B]
    return h, h


def rarely(p, h, x):
    h = lax.cond(x[0, 0] > 0, lambda: 0.5 * h + x @ p["w"], lambda: 0.5 * h)
    return h, h


def in_a_loop(p, h, x):
    h = lax.fori_loop(0, 2, lambda i, h: 0.5 * h + x @ p["w"], h)
    return h, h


MODELS = {
    f.__name__: f
    for f in (plain, joined, joined_in_the_middle, weight_first, two_in_a_row, other_axis, rarely, in_a_loop)
}
# Products that are made ahead, and of products over concatenated data: which parts of these are.
AHEAD = {
    "plain": (1, []),
    "joined": (1, [(True, False)]),
    "joined_in_the_middle": (1, [(False, True, False)]),
    "weight_first": (1, [(True, False)]),
    "two_in_a_row": (2, []),
    "other_axis": (1, []),
    "rarely": (0, []),
    "in_a_loop": (0, []),
}


def used(step):
    """The parameters that a step reads."""
    names = {"plain": "wr", "two_in_a_row": "wr", "other_axis": "w", "rarely": "w", "in_a_loop": "w"}.get(
        step.__name__, "c"
    )
    return {k: PARAMS[k] for k in names}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_made_ahead(name):
    """Products of inputs, and the shares of inputs in products, whatever the number of rows."""
    step, params = MODELS[name], used(MODELS[name])
    program = jax.make_jaxpr(lambda: split_scan(lambda h, x: step(params, h, x), HIDDEN, XS, T))()
    names = [eqn.primitive.name for eqn in program.eqns]
    count, parts = AHEAD[name]
    assert names[: names.index("scan")].count("dot_general") == count
    loop = scan_parts(jax.make_jaxpr(lambda: lax.scan(lambda h, x: step(params, h, x), HIDDEN, XS))().eqns[-1])
    found = products_to_part(loop.jaxpr, loop.num_consts, loop.num_carry)
    assert [p.ahead for p in found.values()] == parts


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rule", ["tbptt", "rtrl"])
def test_gradients(name, rule):
    """A window as long as the sequence gives BPTT's gradient; RTRL gives it with any."""
    step, params = MODELS[name], used(MODELS[name])
    loss = lambda o, y: ((o - y) ** 2).mean()

    def total(p):
        def body(h, xy):
            h, o = step(p, h, xy[0])
            return h, loss(o, xy[1])

        return lax.scan(body, HIDDEN, (XS, YS))[1].mean()

    expected = jax.grad(total)(params)
    learner = etrax.compile(step, rule, XS[0], params=params, hidden=HIDDEN)
    for k in (T,) if rule == "tbptt" else (1, 3, T):
        (_, found), _ = learner.value_and_grad(loss, window=k)(params, learner.init(), XS, YS)
        for key in params:
            np.testing.assert_allclose(found[key], expected[key], rtol=1e-9, atol=1e-12, err_msg=f"{key}, window {k}")


def test_ops_that_are_summed_share_a_trace():
    """pp_prop keeps one output trace for the input and the recurrent weight, none less where they act apart."""

    def apart(p, h, x):
        h = jnp.tanh(0.5 * h + x @ p["w"]) + 0.1 * jnp.tanh(h) @ p["r"]
        return h, h

    count = lambda step: len(etrax.compile(step, "pp_prop", XS[0], params=used(plain), hidden=HIDDEN).init().trace.back)
    assert count(plain) == 1
    assert count(apart) == 2


def compartments(p, h, x):
    """Ten states in a chain, and one that follows from the last."""
    new = {"v0": jnp.tanh(0.5 * h["v0"] + x @ p["w"] + h["s"] @ p["r"])}
    for i in range(1, 10):
        new[f"v{i}"] = 0.5 * h[f"v{i}"] + 0.3 * h[f"v{i - 1}"]
    new["s"] = jnp.tanh(2 * new["v9"])
    return new, new["s"] + sum(new[f"v{i}"] for i in range(10))


@pytest.mark.parametrize("rule", [etrax.ostl(), etrax.d_rtrl(), etrax.pp_prop(0.8)], ids=str)
@pytest.mark.parametrize("step", [plain, compartments])
def test_many_pulls_are_one(step, rule, monkeypatch):
    """A position at a time (OSTL) or many state variables: the same whether one by one or stacked."""
    hidden = {f"v{i}": HIDDEN for i in range(10)} | {"s": jnp.tanh(2 * HIDDEN)} if step is compartments else HIDDEN
    found = []
    for many in (0, 10**6):
        set_machine(monkeypatch, separate_pulls=many)
        learner = etrax.compile(step, rule, XS[0], params=used(plain), hidden=hidden)
        run = learner.value_and_grad(lambda o, y: ((o - y) ** 2).mean(), window=2)
        found.append(run(used(plain), learner.init(), XS, YS)[0][1])
    for key in found[0]:
        np.testing.assert_allclose(found[0][key], found[1][key], rtol=1e-12)
        assert jnp.abs(found[0][key]).max() > 1e-6
