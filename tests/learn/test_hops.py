"""One hop: layers under leaky layers are exact where leaks are one or few, and are not called so where they are not."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import flatten_util, lax
from tests.learn.cases import spike_jvp, spike_vjp
from tests.learn.oracle import bptt, relative_error
from tests.machines import set_machine

import etrax
from etrax.compiler.ir import equations

B, I, H, O, T = 2, 3, 4, 2, 10


def lif(reset, spike=spike_jvp):
    def step(p, s, x):
        v = 0.9 * s["v"] + x @ p["w"] - reset(spike(s["v"] - 0.3))
        r = 0.8 * s["r"] + 0.2 * (spike(v - 0.3) @ p["out"])
        return {"v": v, "r": r}, r

    return step


def alif(p, s, x):
    """Spikes are a state that follows from others, and the readout reads those of the step before."""
    v = 0.8 * s["v"] - 0.5 * s["z"] + x @ p["w"]
    a = 0.9 * s["a"] + 0.3 * s["z"]
    r = 0.7 * s["r"] + s["z"] @ p["out"]
    return {"v": v, "a": a, "z": spike_vjp(v - 0.2 - a), "r": r}, r


def learnable(p, s, x):
    """Leaks, thresholds and biases learn, that of the readout as well."""
    v = jax.nn.sigmoid(p["leak"]) * s["v"] + x @ p["w"] + p["b"]
    r = jax.nn.sigmoid(p["kappa"]) * s["r"] + spike_jvp(v - p["th"]) @ p["out"] + p["bo"]
    return {"v": v, "r": r}, r


def two_heads(p, s, x):
    v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
    r = 0.8 * s["r"] + jnp.sin(v) @ p["out"]
    q = 0.5 * s["q"] + v @ p["other"]
    return {"v": v, "r": r, "q": q}, (r, q)


def two_layers_below(p, s, x):
    v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
    q = 0.7 * s["q"] + jnp.sin(x @ p["w2"])
    r = 0.8 * s["r"] + jnp.sin(v) @ p["out"] + q @ p["other"]
    return {"v": v, "q": q, "r": r}, r


def synapse_and_membrane(p, s, x):
    v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
    c = 0.6 * s["c"] + jnp.sin(v) @ p["out"]
    r = 0.8 * s["r"] + 0.3 * c
    return {"v": v, "c": c, "r": r}, r


def nothing_below(p, s, x):
    r = 0.8 * s["r"] + jnp.tanh(x @ p["w"]) @ p["out"]
    return {"r": r}, jnp.sin(r)


def beside_inputs(p, s, x):
    v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
    r = 0.8 * s["r"] + jnp.concatenate([jnp.sin(v), x], -1) @ p["wide"]
    return {"v": v, "r": r}, r


def leak_in_time(p, s, x):
    v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
    r = jax.nn.sigmoid(x.mean()) * s["r"] + jnp.sin(v) @ p["out"]
    return {"v": v, "r": r}, r


def rolled(p, s, x):
    v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
    r = 0.8 * s["r"] + jnp.roll(jnp.sin(v), 1, -1) @ p["out"]
    return {"v": v, "r": r}, r


def gated_cell(p, s, x):
    gate = jax.nn.sigmoid(x @ p["w2"])
    v = gate * s["v"] + (1 - gate) * jnp.tanh(x @ p["w"])
    r = 0.8 * s["r"] + v @ p["out"]
    return {"v": v, "r": r}, r


def read_a_step_later(p, s, x):
    """The state above has no memory but its last value, which nothing else than the output reads."""
    v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
    return {"v": v, "r": jnp.sin(v) @ p["out"]}, s["r"]


def delayed(p, s, x):
    """The last of two states above is a delay: the step reads it for the output alone."""
    v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
    r = 0.8 * s["r"] + jnp.sin(v) @ p["out"]
    return {"v": v, "r": r, "q": s["r"]}, s["q"]


def steep_at_zero(p, s, x):
    """The data of the leaky layer have an infinite slope where the layer below is zero; no leak depends on it."""
    v = 0.9 * s["v"] + x @ p["w"]
    r = 0.8 * s["r"] + jnp.sqrt(jnp.abs(s["v"])) @ p["out"]
    return {"v": v, "r": r}, r


def near_miss(leak=0.8, feed=lambda z, p: z @ p["out"], back=lambda r, p: 0.0):
    def step(p, s, x):
        v = 0.9 * s["v"] + jnp.tanh(x @ p["w"]) + back(s["r"], p)
        r = (leak(p, x) if callable(leak) else leak) * s["r"] + feed(jnp.sin(v), p)
        return {"v": v, "r": r}, r

    return step


def few_spiking_neurons(p, s, x):
    """The layer above spikes and resets: its leaks depend on its states, and differ between samples and neurons."""
    v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
    r = jax.nn.sigmoid(p["leaks"]) * s["r"] * (1 - spike_jvp(s["r"] - 0.2)) + jnp.sin(v) @ p["out"]
    return {"v": v, "r": r}, spike_jvp(r - 0.2)


def two_states_of_each(p, s, x):
    """A synapse and a membrane, both with leaks per unit."""
    v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
    c = jax.nn.sigmoid(p["leaks"]) * s["c"] + jnp.sin(v) @ p["out"]
    r = jnp.array([0.8, 0.5]) * s["r"] + p["leaks"] * c
    return {"v": v, "c": c, "r": r}, r


def heads_of_both_kinds(p, s, x):
    """One head has leaks and gains of each unit, which depend on the input, another one leak."""
    v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
    gate = jax.nn.sigmoid(x[:, :1] + p["leaks"])
    r = gate * s["r"] + (1 - gate) * (jnp.sin(v) @ p["out"])
    q = 0.7 * s["q"] + v @ p["other"]
    return {"v": v, "r": r, "q": q}, (r, q)


def vmapped(p, s, x):
    """One sample at a time, as `W @ u`."""

    def one(v, r, x):
        v = 0.9 * v + jnp.tanh(x @ p["w"])
        return v, jnp.array([0.8, 0.5]) * r + p["out"].T @ jnp.sin(v)

    v, r = jax.vmap(one)(s["v"], s["r"], x)
    return {"v": v, "r": r}, r


def einsum(p, s, x):
    v = 0.9 * s["v"] + jnp.tanh(jnp.einsum("bi,ih->bh", x, p["w"]))
    y = jnp.einsum("ho,bh->bo", p["out"], jnp.sin(v))
    return {"v": v, "r": jnp.exp(-jnp.exp(p["leaks"])) * s["r"] + y}, s["r"]


EXACT = {
    "a leak of each": near_miss(lambda p, x: jax.nn.sigmoid(p["leaks"])),
    "one leak differs": near_miss(np.array([0.8, 0.7])),
    "a leak of each sample": near_miss(lambda p, x: jax.nn.sigmoid(x[:, :1])),
    "not linear": near_miss(feed=lambda z, p: jnp.tanh(z @ p["out"])),
    "a gain of each": near_miss(feed=lambda z, p: p["leaks"] * (z @ p["out"])),
    "few spiking neurons": few_spiking_neurons, "two states of each": two_states_of_each, "vmapped": vmapped,
    "einsum": einsum, "heads of both kinds": heads_of_both_kinds,
    "detached": lif(lax.stop_gradient), "plain": lif(lambda z: z), "vjp": lif(lambda z: z, spike_vjp), "alif": alif,
    "learnable": learnable, "two_heads": two_heads, "two_layers_below": two_layers_below, "gated_cell": gated_cell,
    "synapse_and_membrane": synapse_and_membrane, "nothing_below": nothing_below,
    "leak_in_time": leak_in_time, "rolled": rolled, "read_a_step_later": read_a_step_later, "delayed": delayed,
    "steep_at_zero": steep_at_zero,
}  # fmt: skip


def two_hops(p, s, x):
    v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
    r = 0.8 * s["r"] + jnp.sin(v) @ p["out"]
    q = 0.5 * s["q"] + r @ p["top"]
    return {"v": v, "r": r, "q": q}, q


def many_leaks(p, s, x):
    v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
    many = jnp.linspace(0.1, 0.9, 40) * s["many"] + jnp.sin(v) @ jnp.tile(p["out"], (1, 20))
    return {"v": v, "many": many}, many


NOT_EXACT = {
    "more leaks than are carried": many_leaks,
    "mixed before": near_miss(feed=lambda z, p: (z - z.mean(-1, keepdims=True)) @ p["out"]),
    "feeds back": near_miss(back=lambda r, p: r @ p["back"]),
    "two hops": two_hops,
    "beside inputs": beside_inputs,
}
SHAPES = {
    "w": (I, H), "w2": (I, H), "out": (H, O), "other": (H, O), "wide": (H + I, O), "leak": (H,), "th": (H,), "b": (H,),
    "bo": (O,), "kappa": (), "leaks": (O,), "back": (O, H), "top": (O, O),
    "across": (H, H), "top4": (H, H),
}  # fmt: skip
STATES = {"v": H, "a": H, "z": H, "r": O, "c": O, "q": O, "many": 20 * O}


class Names(dict):
    """Remembers which of its entries are read."""

    def __init__(self, values):
        super().__init__(values)
        self.read = {}

    def __getitem__(self, name):
        self.read[name] = super().__getitem__(name)
        return self.read[name]


def model(step, **states):
    """Parameters and states that a step reads, a sequence, targets."""
    rng = np.random.default_rng(0)
    params = Names({n: jnp.asarray(rng.normal(size=shape)) for n, shape in SHAPES.items()})
    hidden = Names({n: jnp.asarray(0.1 * rng.normal(size=(B, states.get(n, k)))) for n, k in STATES.items()})
    xs = jnp.asarray(rng.normal(size=(T, B, I)))
    output = jax.eval_shape(lambda x: step(params, hidden, x)[1], xs[0])
    targets = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=(T, *a.shape))), output)
    return SimpleNamespace(step=step, params=params.read, hidden=hidden.read, loss=loss), xs, targets


def loss(output, target):
    pairs = zip(jax.tree.leaves(output), jax.tree.leaves(target), strict=True)
    return sum(((o - t) ** 2).mean() + (jnp.sin(o) * t).mean() for o, t in pairs)


def gradients(learner, m, xs, targets, window):
    run = jax.jit(learner.value_and_grad(loss, window=window))
    (_, found), _ = run(m.params, learner.init(m.params, m.hidden), xs, targets)
    return found


@pytest.mark.parametrize("name", EXACT)
def test_a_layer_under_a_leaky_layer_is_exact(name):
    m, xs, targets = model(EXACT[name], **({"q": H} if name == "two_layers_below" else {}))
    learner = etrax.compile(m.step, "d_rtrl", xs[0], params=m.params, hidden=m.hidden)
    assert {v.kind for v in learner.report.verdicts.values()} == {"exact"}
    want = bptt(m, (xs,), targets)
    for window in (1, 3, 7):
        for path, g in gradients(learner, m, xs, targets, window).items():
            assert relative_error(g, want[path]) < 1e-11, (window, path)


@pytest.mark.parametrize("name", ["detached", "plain", "learnable"])
def test_large_traces_are_moved_to_the_same(name, monkeypatch):
    """Large traces are moved one sample at a time; here all are."""
    set_machine(monkeypatch, by_sample_bytes=0, by_sample_steps=1)
    test_a_layer_under_a_leaky_layer_is_exact(name)


def test_leaks_below_many_states_are_carried_one_by_one(monkeypatch):
    set_machine(monkeypatch, unrolled_block_terms=1)  # the layer below and its filtered data count as many states
    test_a_layer_under_a_leaky_layer_is_exact("heads of both kinds")


def equations_of_each_step(run, *args):
    """How many equations the loops over the five steps of a window have."""
    every = equations(jax.make_jaxpr(run)(*args).jaxpr)
    loops = [e for e in every if e.primitive.name == "scan" and e.params["length"] == 5]
    return sum(len(list(equations(e.params["jaxpr"].jaxpr))) for e in loops)


def test_the_loops_of_a_window_do_not_grow_with_the_number_of_leaks():
    def size(units):
        def step(p, s, x):
            v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
            r = jnp.linspace(0.2, 0.9, units) * s["r"] + jnp.sin(v) @ p["out"]
            return {"v": v, "r": r}, r

        params, hidden = {"w": jnp.ones((I, H)), "out": jnp.ones((H, units))}, {"v": jnp.zeros((B, H))}
        hidden["r"] = jnp.zeros((B, units))
        learner = etrax.compile(step, "d_rtrl", jnp.ones((B, I)), params=params, hidden=hidden)
        run = learner.value_and_grad(lambda y, t: ((y - t) ** 2).mean(), window=5)
        data = jnp.ones((T, B, I)), jnp.ones((T, B, units))
        trace = sum(a.size for a in jax.tree.leaves(jax.eval_shape(learner.init).trace))
        return equations_of_each_step(run, params, learner.init(), *data), trace

    (few, small), (many, large) = size(3), size(12)
    assert many == few > 0
    assert large - small == 9 * B * H * (I + 1)  # of w for each leak, and of the readout


def test_without_the_hop_it_is_not():
    m, xs, targets = model(EXACT["detached"])
    learner = etrax.compile(m.step, etrax.d_rtrl(hops=0), xs[0], params=m.params, hidden=m.hidden)
    assert learner.report.verdicts["w",].kind == "approximate"
    got, want = gradients(learner, m, xs, targets, 1), bptt(m, (xs,), targets)
    assert relative_error(got["w"], want["w"]) > 1e-3
    assert relative_error(got["out"], want["out"]) < 1e-12


def test_an_op_that_feeds_its_own_layer_as_well_is_no_hop():
    def step(p, s, x):
        y = s["v"] @ p["across"]
        v = jnp.tanh(x @ p["w"]) + y
        r = 0.8 * s["r"] + y
        return {"v": v, "r": r}, r

    m, xs, targets = model(step, r=H)
    learner = etrax.compile(m.step, "d_rtrl", xs[0], params=m.params, hidden=m.hidden)
    assert {v.kind for v in learner.report.verdicts.values()} == {"approximate"}
    want = bptt(m, (xs,), targets)
    assert relative_error(gradients(learner, m, xs, targets, 1)["across"], want["across"]) > 1e-3


@pytest.mark.parametrize("name", NOT_EXACT)
def test_near_misses_are_not_called_exact(name):
    m, xs, targets = model(NOT_EXACT[name])
    learner = etrax.compile(m.step, "d_rtrl", xs[0], params=m.params, hidden=m.hidden)
    assert learner.report.verdicts["w",].kind != "exact"
    want = bptt(m, (xs,), targets)
    got = gradients(learner, m, xs, targets, 3)
    assert relative_error(got["w"], want["w"]) > 1e-6
    for (path,), verdict in learner.report.verdicts.items():
        assert verdict.kind != "exact" or relative_error(got[path], want[path]) < 1e-11, path


def test_a_hop_in_part_is_not_called_truncated():
    """`w` acts on the leaky state by the hop that makes `bo` exact, and on its own layer through another op."""

    def step(p, s, x):
        u = jnp.sin(s["v"] @ p["across"] + x @ p["w"])
        v = jnp.tanh(u @ p["top4"])
        r = 0.8 * s["r"] + jnp.sin(u + p["b"]) @ p["out"]
        return {"v": v, "r": r}, r

    m, xs, targets = model(step)
    learner = etrax.compile(m.step, "d_rtrl", xs[0], params=m.params, hidden=m.hidden)
    verdicts, want = learner.report.verdicts, bptt(m, (xs,), targets)
    assert verdicts["b",].kind == "exact" and verdicts["w",].kind == "approximate"
    assert "on 'r' through 'out' is carried in part" in verdicts["w",].reason and "'top4'" in verdicts["w",].reason
    got, none = (gradients(r, m, xs, targets, 1) for r in (learner, compiled_without_traces(m, xs)))
    assert relative_error(got["b"], want["b"]) < 1e-11
    assert relative_error(got["w"], none["w"]) > 1e-3


def compiled_without_traces(m, xs):
    return etrax.compile(m.step, "tbptt", xs[0], params=m.params, hidden=m.hidden)


def recurrent(keep):
    def step(p, s, x):
        v = 0.9 * s["v"] + x @ p["w"] + keep(s["z"]) @ p["rec"]
        z = spike_jvp(v - 0.3)
        r = 0.8 * s["r"] + z @ p["out"]
        return {"v": v, "z": z, "r": r}, r

    return step


def test_a_recurrent_layer_under_a_leaky_one_keeps_the_hop_if_asked():
    """The oracle is a dense influence matrix that lacks the paths through `rec`, and is read by the whole step."""
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {"w": (I, H), "rec": (H, H), "out": (H, O)}
    params = {k: jax.random.normal(key, shapes[k]) for k, key in zip(shapes, keys, strict=False)}
    hidden = {"v": jnp.zeros((B, H)), "z": jnp.zeros((B, H)), "r": jnp.zeros((B, O))}
    xs = jax.random.normal(keys[3], (T, B, I))
    whole, cut = recurrent(lambda z: z), recurrent(lax.stop_gradient)
    loss = lambda y, _: jnp.sum(jnp.sin(y))
    flat, back = flatten_util.ravel_pytree(params)
    state, unravel = flatten_util.ravel_pytree(hidden)

    def moved(step, p, s, x):
        return flatten_util.ravel_pytree(step(back(p), unravel(s), x)[0])[0]

    influence, expected = jnp.zeros((len(state), len(flat))), jnp.zeros_like(flat)
    for x in xs:
        told = jax.grad(lambda p, s, x=x: loss(whole(back(p), unravel(s), x)[1], None), (0, 1))(flat, state)
        expected += told[0] + told[1] @ influence
        own, carried = jax.jacobian(moved, (1, 2))(cut, flat, state, x)
        influence, state = own + carried @ influence, moved(cut, flat, state, x)

    learner = etrax.compile(whole, etrax.d_rtrl(hops=1), xs[0], params=params, hidden=hidden)
    found = learner.value_and_grad(loss, window=1, reduction="sum")(params, learner.init(), xs)[0][1]
    assert relative_error(flatten_util.ravel_pytree(found)[0], expected) < 1e-12
    reason = learner.report.verdicts["w",].reason
    assert "on 'r' through 'out' is carried in part; not carried: state 'z' acts on states" in reason
    assert "'rec'" in reason.partition("not carried")[2] and "'out'" not in reason.partition("not carried")[2]
    plain = etrax.compile(whole, "d_rtrl", xs[0], params=params, hidden=hidden)
    assert plain.report.verdicts["w",].kind == learner.report.verdicts["w",].kind == "approximate"
    assert "behind 'out' is carried by `etrax.d_rtrl(hops=1)`" in str(plain.report)
