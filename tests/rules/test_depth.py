"""`d_rtrl(depth=...)`: layers below others become exact within a bound in bytes, and no others are so called."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz.evaluate import Evaluator
from jax import lax
from tests.learn.cases import spike_vjp
from tests.machines import set_machine

import etrax
from etrax.rules._reached_rows import colours_of

B, I, H, T = 2, 3, 4, 11


def draw(*shape, seed=0):
    rng = np.random.default_rng([seed, *shape])
    return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]))


def min_gru(layers, sees=lambda x, h: x):
    """Gated cells without recurrent weights, one above the other."""

    def step(params, hidden, x):
        new = []
        for p, h in zip(params["layers"], hidden, strict=True):
            z = jax.nn.sigmoid(sees(x, h) @ p["z"])
            x = (1 - z) * h + z * jnp.tanh(x @ p["n"] + p["b"])
            new.append(x)
        return new, x @ params["out"]

    sizes = [I, *[H] * layers]
    params = [{"z": draw(n, H), "n": draw(n, H, seed=1), "b": draw(H)} for n in sizes[:-1]]
    return step, {"layers": params, "out": draw(H, 2)}, [draw(B, H, seed=k) for k in range(layers)], draw(T, B, I)


def embedding_gru():
    def step(p, h, v):
        x = p["table"][v]
        z = jax.nn.sigmoid(x @ p["wz"] + h @ p["uz"])
        h = (1 - z) * h + z * jnp.tanh(x @ p["wn"] + (z * h) @ p["un"])
        return h, h @ p["out"]

    params = {
        "table": draw(5, I),
        "wz": draw(I, H),
        "uz": draw(H, H),
        "wn": draw(I, H, seed=1),
        "un": draw(H, H, seed=1),
    }
    return step, params | {"out": draw(H, 2)}, draw(B, H), jnp.asarray(np.random.default_rng(0).integers(0, 5, (T, B)))


def two_lru():
    """Complex diagonal layers with a norm and a gated linear unit between them."""

    def step(params, hidden, x):
        new = []
        for p, h in zip(params, hidden, strict=True):
            h = jnp.exp(-jnp.exp(p["nu"]) + 1j * p["theta"]) * h + x @ (p["b_re"] + 1j * p["b_im"])
            y = (h @ (p["c_re"] + 1j * p["c_im"])).real
            y = p["scale"] * (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-3)
            x = x + (y @ p["w"]) * jax.nn.sigmoid(y @ p["v"])
            new.append(h)
        return new, x

    def layer(k):
        names = {"b_re": (I, H), "b_im": (I, H), "c_re": (H, I), "c_im": (H, I), "w": (I, I), "v": (I, I)}
        matrices = {name: draw(*shape, seed=n + 10 * k) for n, (name, shape) in enumerate(names.items())}
        return matrices | {"nu": draw(H, seed=k), "theta": draw(H, seed=k + 1), "scale": 1 + draw(I, seed=k)}

    return step, [layer(0), layer(1)], [jnp.zeros((B, H), complex)] * 2, draw(T, B, I)


def spikes_below_recurrence():
    """A spiking layer with a surrogate, under a recurrent one that feeds a leaky sum: narrow, wide and dense rows."""

    def step(p, s, x):
        v = 0.9 * s["v"] + x @ p["w"]
        a = jnp.tanh(spike_vjp(v - 0.2) @ p["up"] + s["a"] @ p["rec"])
        r = 0.8 * s["r"] + jnp.tanh(a @ p["out"])
        return {"v": v, "a": a, "r": r}, r

    params = {"w": draw(I, H), "up": draw(H, 6), "rec": draw(6, 6), "out": draw(6, 2)}
    return step, params, {"v": draw(B, H), "a": draw(B, 6), "r": draw(B, 2)}, draw(T, B, I)


MODELS = {
    "two layers of minGRU": lambda: min_gru(2),
    "three layers of minGRU": lambda: min_gru(3),
    "embedding and GRU": embedding_gru,
    "two LRU": two_lru,
    "spikes below a recurrence": spikes_below_recurrence,
}


def loss(output, target):
    return jnp.mean(jnp.sin(output) ** 2) + 0.3 * output.sum()


def bptt(step, params, hidden, xs):
    def total(params):
        def body(h, x):
            h, out = step(params, h, x)
            return h, loss(out, None)

        return lax.scan(body, hidden, xs)[1].mean()

    return Evaluator()(jax.grad(total), params)


def gradient(learner, params, xs, window, reset=None, remat=None, run=None):
    """Of the mean loss, in numpy: compiling takes longer than all else, and is not under test."""
    reset = None if reset is None else jnp.asarray(reset)
    state = learner.init(lanes=reset is not None)
    f = learner.value_and_grad(loss, window=window, remat=remat)
    (_, grads), _ = (run or Evaluator())(f, params, state, xs, None, None, reset)
    return grads


def compiled(model, depth, **options):
    """Without hops, which make the smallest of these exact by themselves."""
    step, params, hidden, xs = model
    return etrax.compile(step, etrax.d_rtrl(depth=depth, hops=0), xs[0], params=params, hidden=hidden, **options)


def close(one, two, tol=1e-12):
    size = np.linalg.norm(two)
    return np.linalg.norm(np.asarray(one) - np.asarray(two)) <= tol * size


@pytest.mark.parametrize("name", MODELS)
def test_all_is_exact_at_every_window(name):
    _, params, _, xs = model = MODELS[name]()
    learner, want = compiled(model, "1 MB"), bptt(*model)
    assert {str(v.kind) for v in learner.report.verdicts.values()} == {"exact"}
    plain = learner.with_rule(etrax.d_rtrl(hops=0)).report.verdicts.values()
    assert {str(v.kind) for v in plain} != {"exact"}, "there is nothing to gain"
    for window in (1, 3, 7):
        grads = gradient(learner, params, xs, window)
        assert all(map(close, jax.tree.leaves(grads), jax.tree.leaves(want))), window


def test_more_rows_than_are_moved_at_once(monkeypatch):
    """Wide rows go in blocks, of which the last one is not full."""
    set_machine(monkeypatch, rows_at_once=3)
    test_all_is_exact_at_every_window("three layers of minGRU")


def test_resets_and_checkpoints():
    _, params, _, xs = model = min_gru(2)
    learner, reset = compiled(model, "1 MB"), np.zeros((T, B), bool)
    reset[4, 0] = reset[6] = True
    want = gradient(learner.with_rule("rtrl"), params, xs, 5, reset)
    for remat in (None, 2):
        grads = gradient(learner, params, xs, 5, reset, remat)
        assert all(map(close, jax.tree.leaves(grads), jax.tree.leaves(want)))


def test_compiled():
    """Once by XLA, which may order and fuse what numpy does not."""
    _, params, _, xs = model = two_lru()
    grads = gradient(compiled(model, "1 MB"), params, xs, 3, run=lambda f, *args: f(*args))
    assert all(map(close, jax.tree.leaves(grads), jax.tree.leaves(bptt(*model))))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [None, jnp.float32])
def test_the_bound_holds_and_the_cheapest_come_first(name, dtype):
    model = MODELS[name]()
    every = compiled(model, "1 MB", trace_dtype=dtype)
    base = every.with_rule(etrax.d_rtrl(hops=0))
    total = sum(a.nbytes for a in jax.tree.leaves(every.init().trace[1]))
    assert every.report.memory["d_rtrl"] == sum(a.nbytes for a in jax.tree.leaves(every.init().trace))
    gained = []
    for budget in (0.2 * total, 0.6 * total, total):
        learner = compiled(model, budget, trace_dtype=dtype)
        trace = learner.init().trace
        assert sum(a.nbytes for a in jax.tree.leaves(trace[1:])) <= budget if isinstance(trace, list) else True
        exact = {p for p, v in learner.report.verdicts.items() if v.kind == "exact"}
        assert exact >= {p for p, v in base.report.verdicts.items() if v.kind == "exact"}
        gained.append(exact)
        text = str(learner.report)
        assert ("would become exact too" in text) == (budget < total)
    assert gained[0] <= gained[1] <= gained[2]
    assert gained[0] != gained[2]


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_what_a_bound_makes_exact_is(share):
    _, params, _, xs = model = min_gru(3)
    total = sum(a.nbytes for a in jax.tree.leaves(compiled(model, "1 MB").init().trace[1]))
    learner = compiled(model, share * total)
    grads = gradient(learner, params, xs, 2)
    kinds = jax.tree.leaves({k: str(v.kind) for k, v in learner.report.verdicts.items()})
    assert {"exact", "approximate"} <= set(kinds)
    want = dict(jax.tree_util.tree_leaves_with_path(bptt(*model)))
    for path, g in jax.tree_util.tree_leaves_with_path(grads):
        key = tuple(getattr(k, "key", getattr(k, "idx", None)) for k in path)
        assert close(g, want[path]) == (learner.report.verdicts[key].kind == "exact"), key


def test_rows_are_those_that_are_reached():
    """One row for the own position of an element, and one for each unit above: not one for every state."""
    learner = compiled(min_gru(3), "1 MB")
    shapes = {a.shape[0] for arrays in learner.program.transport.parts(learner.init().trace).values() for a in arrays}
    assert shapes <= {1, H, 2 * H, B}  # own position, layers above; the traces of `d_rtrl` begin with samples


def test_scalars_that_meet_are_read_apart():
    class One:
        narrow = np.array([[0, 1, 2]])
        reached = np.eye(3, dtype=bool)

    links = np.eye(3, dtype=bool)
    assert colours_of([One], links).tolist() == [0, 0, 0]
    links[0, 1] = True  # 0 acts on 1: one pull would add what both are made of
    assert colours_of([One], links).tolist() == [0, 1, 0]


def test_in_a_partition():
    step, params, hidden, xs = model = min_gru(2)
    rule = etrax.partition({("layers", 0, "z"): etrax.tbptt()}, default=etrax.d_rtrl(depth="1 MB", hops=0))
    learner = etrax.compile(step, rule, xs[0], params=params, hidden=hidden)
    assert learner.report.verdicts["layers", 0, "n"].kind == "exact"
    assert learner.report.verdicts["layers", 0, "z"].kind == "truncated"
    grads = gradient(learner, params, xs, 2)
    assert close(grads["layers"][0]["n"], bptt(*model)["layers"][0]["n"])


def test_what_is_exact_already_takes_nothing():
    learner = compiled(min_gru(1), "1 MB")
    assert learner.program.transport.nbytes == learner.with_rule(etrax.d_rtrl(hops=0)).program.transport.nbytes
    assert "`depth` carries nothing" in str(learner.report)
