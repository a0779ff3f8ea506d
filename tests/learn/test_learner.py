"""The learner's functions: windows, pieces, masks, training, transformations, retraces, bad arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import etrax

B, I, H, O, T = 3, 4, 5, 2, 11


def cell(params, h, x):
    z = jax.nn.sigmoid(x @ params["z"] + params["b"])
    h = (1 - z) * h + z * jnp.tanh(x @ params["w"])
    return h, h @ params["out"]


def recurrent(params, h, x):
    h = 0.8 * h + jnp.tanh(x @ params["w"] + h @ params["r"])
    return h, h @ params["out"]


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def numbers(seed=0):
    rng = np.random.RandomState(seed)
    params = {"z": (I, H), "b": (H,), "w": (I, H), "r": (H, H), "out": (H, O)}
    params = {k: jnp.asarray(rng.standard_normal(s) * 0.5) for k, s in params.items()}
    return (
        params,
        jnp.asarray(rng.standard_normal((B, H))),
        jnp.asarray(rng.standard_normal((T, B, I))),
        jnp.asarray(rng.standard_normal((T, B, O))),
    )


PARAMS, HIDDEN, XS, YS = numbers()
RULES = ["tbptt", "d_rtrl", "pp_prop", "rtrl"]


def learner_of(step, rule):
    used = {"w", "r", "out"} if step is recurrent else {"z", "b", "w", "out"}
    params = {k: v for k, v in PARAMS.items() if k in used}
    return etrax.compile(step, rule, XS[0], params=params, hidden=HIDDEN), params


def bptt(step, params, xs, ys, mask=None, hidden=HIDDEN):
    def total(p):
        def body(h, xy):
            h, out = step(p, h, xy[0])
            return h, jnp.mean((out - xy[1]) ** 2, axis=-1)

        each = jax.lax.scan(body, hidden, (xs, ys))[1]
        weight = jnp.ones(each.shape) if mask is None else jnp.broadcast_to(mask.reshape(len(xs), -1), each.shape)
        return (each * weight).sum() / weight.sum()

    return jax.jit(jax.value_and_grad(total))(params)


def close(a, b, tol=1e-12):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tol, atol=tol), a, b)


@pytest.mark.parametrize("rule", RULES)
def test_one_window_is_bptt(rule):
    learner, params = learner_of(recurrent, rule)
    (value, grads), state = learner.value_and_grad(loss, window=T)(params, learner.init(), XS, YS)
    want, want_grads = bptt(recurrent, params, XS, YS)
    close((value, grads), (want, want_grads))
    assert int(state.step) == T


@pytest.mark.parametrize("window", [1, 4, T + 5])
@pytest.mark.parametrize("rule", ["d_rtrl", "rtrl"])
def test_exact_transport_is_bptt_for_every_window(rule, window):
    learner, params = learner_of(cell if rule == "d_rtrl" else recurrent, rule)
    (value, grads), _ = learner.value_and_grad(loss, window=window)(params, learner.init(), XS, YS)
    close((value, grads), bptt(cell if rule == "d_rtrl" else recurrent, params, XS, YS))


@pytest.mark.parametrize("rule", RULES)
def test_pieces_equal_the_whole(rule):
    learner, params = learner_of(recurrent, rule)
    f = learner.value_and_grad(loss, window=2, reduction="sum")
    (whole, grads), end = f(params, learner.init(), XS[:10], YS[:10])
    (a, g1), state = f(params, learner.init(), XS[:4], YS[:4])
    (b, g2), state = f(params, state, XS[4:10], YS[4:10])
    close((a + b, jax.tree.map(jnp.add, g1, g2), state), (whole, grads, end))


@pytest.mark.parametrize("shape", [(T,), (T, B)])
@pytest.mark.parametrize("rule", ["d_rtrl", "rtrl"])
def test_mask(rule, shape):
    mask = jnp.asarray(np.random.RandomState(3).uniform(size=shape) < 0.6, float)
    learner, params = learner_of(cell, rule)
    (value, grads), _ = learner.value_and_grad(loss, window=3)(params, learner.init(), XS, YS, mask)
    close((value, grads), bptt(cell, params, XS, YS, mask))


def test_masked_steps_evolve_state_and_trace():
    learner, params = learner_of(cell, "d_rtrl")
    f = learner.value_and_grad(loss, window=3)
    (_, _), seen = f(params, learner.init(), XS, YS)
    (value, grads), masked = f(params, learner.init(), XS, YS, jnp.zeros(T))
    close(seen, masked)
    assert value == 0 and not any(jnp.any(g) for g in jax.tree.leaves(grads))


@pytest.mark.parametrize("rule", RULES)
def test_step_evolves_like_a_window(rule):
    learner, params = learner_of(recurrent, rule)
    step = jax.jit(learner.step)
    state = learner.init()
    outputs = []
    for x in XS[:4]:
        state, out = step(params, state, x)
        outputs.append(out)
    _, other = learner.value_and_grad(loss, window=1)(params, learner.init(), XS[:4], YS[:4])
    close(state, other)
    h = HIDDEN
    for x, out in zip(XS[:4], outputs, strict=True):
        h, want = recurrent(params, h, x)
        close(out, want)


def test_train_updates_after_every_window():
    learner, params = learner_of(cell, "d_rtrl")
    optimizer = optax.adam(1e-2)
    run = learner.train(optimizer, loss, window=4)
    new, opt_state, state, losses = run(params, optimizer.init(params), learner.init(), XS, YS)
    f = learner.value_and_grad(loss, window=4)
    want, want_opt, want_state, found = params, optimizer.init(params), learner.init(), []
    for a in (0, 4, 8):
        (value, grads), want_state = f(want, want_state, XS[a : a + 4], YS[a : a + 4])
        updates, want_opt = optimizer.update(grads, want_opt, want)
        want = optax.apply_updates(want, updates)
        found.append(value)
    close((new, opt_state, state, losses), (want, want_opt, want_state, jnp.stack(found)), 1e-9)


def test_a_fully_masked_window_changes_nothing():
    learner, params = learner_of(cell, "d_rtrl")
    optimizer = optax.adam(1e-2)
    mask = jnp.ones(T).at[4:8].set(0)
    run = learner.train(optimizer, loss, window=4)
    one, opt_one, _, _ = run(params, optimizer.init(params), learner.init(), XS[:4], YS[:4])
    two, opt_two, _, losses = run(params, optimizer.init(params), learner.init(), XS[:8], YS[:8], mask[:8])
    close((one, opt_one), (two, opt_two))
    assert losses[1] == 0


def test_vmap_over_sequences_and_scan_over_epochs():
    learner, params = learner_of(cell, "d_rtrl")
    f = learner.value_and_grad(loss, window=3)
    xs, ys = jnp.stack([XS, 2 * XS]), jnp.stack([YS, YS])
    (values, grads), _ = jax.vmap(lambda x, y: f(params, learner.init(), x, y))(xs, ys)
    for k in range(2):
        (value, grad), _ = f(params, learner.init(), xs[k], ys[k])
        close((values[k], jax.tree.map(lambda a, k=k: a[k], grads)), (value, grad))

    def epoch(carry, xy):
        (value, _), state = f(params, carry, *xy)
        return state, value

    _, values = jax.lax.scan(epoch, learner.init(), (xs, ys))
    assert values.shape == (2,)


def test_one_trace_per_shape():
    count = []

    def counted(params, h, x):
        count.append(1)
        return cell(params, h, x)

    params = {k: PARAMS[k] for k in ("z", "b", "w", "out")}
    learner = etrax.compile(counted, "d_rtrl", XS[0], params=params, hidden=HIDDEN)
    traced = len(count)
    calls = []

    def counted_loss(output, target):
        calls.append(1)
        return loss(output, target)

    f = learner.value_and_grad(counted_loss, window=3)
    (_, _), state = f(params, learner.init(), XS, YS)
    once = len(calls)
    for _ in range(3):
        (_, _), state = f(params, state, XS, YS)
    assert len(calls) == once, "the same shapes were traced again"
    assert len(count) == traced, "the model was run again after it was compiled"


@pytest.mark.parametrize("rule", ["d_rtrl", "rtrl", "pp_prop"])
def test_trace_memory_is_that_of_the_table(rule):
    learner, _ = learner_of(recurrent, rule)
    size = sum(a.size for a in jax.tree.leaves(learner.init().trace) if jnp.issubdtype(a.dtype, jnp.floating))
    weights = I * H + H * H
    want = {"d_rtrl": B * weights, "rtrl": B * H * weights, "pp_prop": B * (I + H) + B * H}
    assert size == want[rule]
    assert learner.report.memory[rule] == 8 * size + (4 if rule == "pp_prop" else 0)


def test_float32_and_bfloat16():
    for dtype, tol in ((jnp.float32, 1e-5), (jnp.bfloat16, 5e-2)):

        def cast(tree, dtype=dtype):
            return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)

        params = cast({k: PARAMS[k] for k in ("z", "b", "w", "out")})
        learner = etrax.compile(cell, "d_rtrl", cast(XS[0]), params=params, hidden=cast(HIDDEN))
        assert all(a.dtype == jnp.float32 for a in jax.tree.leaves(learner.init().trace))

        def wide(o, t):
            return loss(o.astype(jnp.float32), t.astype(jnp.float32))

        (_, grads), _ = learner.value_and_grad(wide, window=3)(params, learner.init(), cast(XS), cast(YS))
        _, want = bptt(cell, {k: PARAMS[k] for k in params}, XS, YS)
        for k in params:
            assert grads[k].dtype == dtype
            error = np.linalg.norm(np.asarray(grads[k], float) - want[k]) / np.linalg.norm(want[k])
            assert error < tol, (dtype, k, error)


def test_trace_dtype():
    learner = etrax.compile(
        cell,
        "d_rtrl",
        XS[0],
        params={k: PARAMS[k] for k in ("z", "b", "w", "out")},
        hidden=HIDDEN,
        trace_dtype=jnp.bfloat16,
    )
    assert all(a.dtype == jnp.bfloat16 for a in jax.tree.leaves(learner.init().trace))


def elman(p, h, tokens):
    """A cell whose trace is its last step's data; one of its products looks rows up by whole numbers."""
    h = jnp.tanh(p["rows"][tokens] + h @ p["u"] + p["b"])
    return h, h


@pytest.mark.parametrize("rule", ["d_rtrl", "e_prop", "ostl"])
@pytest.mark.parametrize(
    ("own", "asked", "kept"), [("bfloat16", None, "float32"), ("float16", None, "float32"),
                               ("bfloat16", "bfloat16", "bfloat16"), ("float64", "float32", "float32")],
)  # fmt: skip
def test_every_array_of_a_trace_has_its_type(rule, own, asked, kept):
    params = {"rows": jnp.ones((5, 4), own), "u": jnp.ones((4, 4), own), "b": jnp.ones(4, own)}
    options = {} if asked is None else {"trace_dtype": asked}
    tokens = jnp.arange(6).reshape(3, 2)
    learner = etrax.compile(elman, rule, tokens[0], params=params, hidden=jnp.zeros((2, 4), own), **options)
    run = learner.value_and_grad(lambda o, _: o.astype(jnp.float32).sum(), window=2)
    before = jax.eval_shape(learner.init).trace
    (_, grads), after = jax.eval_shape(run, params, learner.init(), tokens, None)
    kinds = [a.dtype for a in jax.tree.leaves(before) if jnp.issubdtype(a.dtype, jnp.inexact)]
    assert kinds and set(kinds) == {jnp.dtype(kept)}
    assert jax.tree.map(lambda a: a.dtype, after.trace) == jax.tree.map(lambda a: a.dtype, before)
    assert all(g.dtype == own for g in jax.tree.leaves(grads))


def calls(*args, loss_fn=loss):
    """Call `value_and_grad` of a learner with changed arguments."""
    return lambda L, p: (L.value_and_grad(loss_fn, 2), [a(L, p) if callable(a) else a for a in args])


def good(L, p):
    return p


def start(L, p):
    return L.init()


BAD = {
    "structure of params": (calls(lambda L, p: {"w": p["w"]}, start, XS, YS), r"missing: .*'b'"),
    "shape of params": (calls(lambda L, p: {**p, "b": jnp.ones(H + 1)}, start, XS, YS), r"'b'.*\[6\].*\[5\]"),
    "dtype of params": (calls(lambda L, p: {**p, "b": jnp.ones(H, jnp.float32)}, start, XS, YS), "float32.*float64"),
    "inputs without time": (calls(good, start, XS[0], YS), "leading time axis"),
    "inputs of two": (calls(good, start, (XS, XS), YS), "holds .*but the step takes"),
    "length of targets": (calls(good, start, XS, YS[:-1]), "time axis of 11"),
    "shape of mask": (calls(good, start, XS, YS, jnp.ones((2, T))), "mask"),
    "batch of mask": (calls(good, start, XS, YS, jnp.ones((T, B + 1))), "batch"),
    "loss not scalar": (calls(good, start, XS, YS, loss_fn=lambda o, t: o - t), "one real number"),
    "another learner's state": (
        calls(good, lambda L, p: learner_of(cell, "rtrl")[0].init(), XS, YS),
        "`state.trace` does not belong to this learner",
    ),
    "hidden of another shape": (lambda L, p: (L.init, (p, HIDDEN[:, :2])), r"\[3, 2\].*\[3, 5\]"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_named(case):
    learner, params = learner_of(cell, "d_rtrl")
    make, message = BAD[case]
    f, args = make(learner, params)
    with pytest.raises(etrax.EtraxError, match=f"(?s){message}"):
        f(*args)


@pytest.mark.parametrize("window", [0, -1, 2.5, "auto?", True])
def test_bad_window(window):
    learner, _ = learner_of(cell, "d_rtrl")
    with pytest.raises(etrax.EtraxError, match="whole number"):
        learner.value_and_grad(loss, window=window)


def test_bad_rule():
    with pytest.raises(etrax.EtraxError, match="no rule 'bptt'"):
        etrax.compile(cell, "bptt", XS[0], params=PARAMS, hidden=HIDDEN)
    with pytest.raises(etrax.EtraxError, match="decay"):
        etrax.pp_prop(1.5)


@pytest.mark.parametrize("window", [1, 3])
def test_online_equals_train(window):
    learner, params = learner_of(cell, "d_rtrl")
    optimizer = optax.adam(1e-2)
    stream = learner.online(optimizer, loss, window=window)
    found = [stream.feed(x, y) for x, y in zip(XS, YS, strict=True)]
    last = stream.flush()
    losses = [f.loss for f in found if f.loss is not None] + ([] if last is None else [last])
    want, _, state, want_losses = learner.train(optimizer, loss, window=window)(
        params, optimizer.init(params), learner.init(), XS, YS
    )
    close((stream.params, stream.state, jnp.stack(losses)), (want, state, want_losses), 1e-9)
    close(found[0].output, cell(params, HIDDEN, XS[0])[1])
    assert stream.flush() is None


def test_a_key_is_a_state_like_others():
    def step(params, s, x):
        noise = jax.random.normal(s["k"], s["h"].shape)
        return {"h": 0.9 * s["h"] + x @ params + 0.1 * noise, "k": jax.random.split(s["k"])[0]}, s["h"]

    hidden = {"h": jnp.zeros((2, 3)), "k": jax.random.key(0)}
    learner = etrax.compile(step, "d_rtrl", jnp.ones((2, 4)), params=jnp.ones((4, 3)), hidden=hidden)
    f = learner.value_and_grad(lambda o, t: (o**2).sum(), window=1)
    run = lambda h: f(jnp.ones((4, 3)), learner.init(jnp.ones((4, 3)), h), jnp.ones((5, 2, 4)))[0]
    close(jax.jit(run)(hidden), run(hidden))
    assert float(run(hidden)[0]) != float(run({**hidden, "k": jax.random.key(1)})[0])


def counted(function):
    """The function, and how often it was traced."""
    calls = []

    def wrapped(*args):
        calls.append(1)
        return function(*args)

    return wrapped, calls


def test_asking_again_compiles_nothing():
    learner, params = learner_of(cell, "d_rtrl")
    state, (own_loss, traced) = learner.init(), counted(loss)
    optimizer = optax.sgd(0.1)
    opt_state, first = optimizer.init(params), []
    for i in range(20):
        (value, _), _ = learner.value_and_grad(own_loss, window=5)(params, state, XS, YS)
        learner.train(optimizer, own_loss, window=5)(params, opt_state, state, XS, YS)
        first = first or [len(traced), float(value)]
        assert [len(traced), float(value)] == first, i
    others = [learner.value_and_grad(own_loss, window=5, reduction="sum"), learner.value_and_grad(own_loss, window=4)]
    assert learner.value_and_grad(own_loss, window=5) not in others


def test_a_loss_that_cannot_be_hashed():
    class Scaled:
        __hash__ = None

        def __init__(self, factor):
            self.factor = factor

        def __eq__(self, other):
            return True

        def __call__(self, output, target):
            return self.factor * loss(output, target)

    learner, params = learner_of(cell, "d_rtrl")
    one, three = (
        learner.value_and_grad(Scaled(factor), window=3)(params, learner.init(), XS, YS)[0][0] for factor in (1.0, 3.0)
    )
    np.testing.assert_allclose(three, 3 * one, rtol=1e-12)


def test_a_step_is_compiled_once():
    traced = []

    def own(params, h, x):
        traced.append(1)
        return cell(params, h, x)

    learner, params = learner_of(own, "d_rtrl")
    state, found = learner.init(), []
    for x in [*XS, *XS]:
        state, _ = learner.step(params, state, x)
        found.append(learner._step.compiled._cache_size())
    assert found[0] == found[-1] == 1
    assert len(traced) < 10


BAD_AFTER_GOOD = {
    "a state that was used up": (lambda p, o, s, x, y: (p, o, s, x, y), "was donated"),
    "no state": (lambda p, o, s, x, y: (p, o, s.hidden, x, y), "hidden states alone"),
    "swapped": (lambda p, o, s, x, y: (p, s, o, x, y), "are swapped"),
    "a parameter too few": (lambda p, o, s, x, y: ({"w": p["w"]}, o, s, x, y), "missing: 'b', 'out', 'z'"),
    "another shape": (lambda p, o, s, x, y: (p, o, s, x[:, :1], y), "has shape"),
    "another type": (lambda p, o, s, x, y: (p, o, s, x.astype(jnp.float32), y), "Cast it"),
    "a target too few": (lambda p, o, s, x, y: (p, o, s, x, y[1:]), "expected a leading time axis"),
    "text": (lambda p, o, s, x, y: (p, o, s, x, "y"), "not an array of numbers"),
    "objects of numpy": (lambda p, o, s, x, y: (p, o, s, x, np.array([[None]])), "not an array of numbers"),
}


@pytest.mark.parametrize("name", BAD_AFTER_GOOD)
def test_arguments_that_fit_hide_no_others(name):
    """Arguments like those of a call before are not looked at again; all others are."""
    learner, params = learner_of(cell, "d_rtrl")
    optimizer = optax.sgd(0.1)
    train = learner.train(optimizer, loss, window=1, donate=name == "a state that was used up")
    opt_state, bad, text = optimizer.init(params), *BAD_AFTER_GOOD[name]
    for _ in range(3):
        state = learner.init()
        ends = train(params, opt_state, state, XS, YS)
    with pytest.raises(ValueError, match=text):
        train(*bad(params, opt_state, state, XS, YS))
    again = train(params, opt_state, learner.init(), XS, YS)
    close(again[:3], ends[:3], 0)


def test_arguments_are_checked_once(monkeypatch):
    """Arrays of one kind are checked when they are first seen; those of numpy are of the kind of JAX's."""
    learner, params = learner_of(cell, "d_rtrl")
    calls, kind = {"check_given": 0, "arguments": 0}, type(learner.program)

    def counted(name, check):
        def count(*args):
            calls[name] += 1
            return check(*args)

        return count

    for name in calls:
        monkeypatch.setattr(kind, name, counted(name, getattr(kind, name)))
    gradient = learner.value_and_grad(loss, window=4)
    state = learner.init()
    for x, y in ((XS, YS), (np.asarray(XS), np.asarray(YS)), (XS[:4], YS[:4])):
        for _ in range(3):
            _, state = gradient(params, state, x, y)
    # The first state has other abstract values than those that come back, at most.
    assert calls["check_given"] == 1 and 2 <= calls["arguments"] <= 3
