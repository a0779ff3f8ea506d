"""Windows that overlap: each loss sees the last steps, at the parameters of today."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fuzz.evaluate import Evaluator
from tests.learn.oracle import bptt, moving, put, relative_error
from tests.zoo import ZOO

import etrax
from etrax.compiler.ir import leaves_with_paths

T, B, I, H = 7, 2, 3, 4


def learner_of(name, steps):
    model = ZOO[name]()
    inputs, targets = model.make_inputs(T, 0), model.make_target(T, 0)
    first = jax.tree.map(lambda a: a[0], inputs)
    rule = etrax.tbptt(steps=steps)
    return model, inputs, targets, etrax.compile(model.step, rule, *first, params=model.params, hidden=model.hidden)


def rolling(model, inputs, targets, steps):
    """Each loss differentiated through its last steps alone, from the state that was there."""
    at = lambda t: jax.tree.map(lambda a: a[t], (inputs, targets))
    entries = [model.hidden]
    for t in range(T):
        entries.append(model.step(model.params, entries[-1], *at(t)[0])[0])

    def total(values):
        params, loss = put(model.params, values), 0.0
        for t in range(T):
            first = max(t - steps + 1, 0)
            h = jax.lax.stop_gradient(entries[first])
            for k in range(first, t + 1):
                h, output = model.step(params, h, *at(k)[0])
            loss = loss + model.loss(output, at(t)[1])
        return loss / T

    return put(jax.tree.map(jnp.zeros_like, model.params), jax.grad(total)(moving(model.params)))


def compared(got, want, tolerance=1e-9):
    want = dict(leaves_with_paths(want))
    for path, g in leaves_with_paths(got):
        assert relative_error(g, want[path]) < tolerance, path


@pytest.mark.parametrize("name", ["cells/gru", "stacks/two_lru_layers", "series/low_rank_complex"])
def test_each_loss_sees_so_many_steps(name):
    model, inputs, targets, learner = learner_of(name, 3)
    f = learner.value_and_grad(model.loss, window=1)
    (_, grads), _ = Evaluator()(f, model.params, learner.init(), inputs, targets)
    compared(grads, rolling(model, inputs, targets, 3))
    assert {str(v.kind) for v in learner.report.verdicts.values()} <= {"truncated", "exact"}


@pytest.mark.parametrize(("name", "window"), [("cells/gru", 1), ("cells/gru", 2), ("states/dropout", 2)])
def test_the_whole_sequence_is_bptt(name, window):
    model, inputs, targets, learner = learner_of(name, T)
    f = learner.value_and_grad(model.loss, window=window)
    (_, grads), _ = Evaluator()(f, model.params, learner.init(), inputs, targets)
    compared(grads, bptt(model, inputs, targets))


def attention(params, caches, x):
    """A cache of the last keys and values, newest last."""
    caches = {n: jnp.concatenate([c[:, 1:], (x @ params[n])[:, None]], 1) for n, c in caches.items()}
    mixed = jnp.einsum("bl,bld->bd", jax.nn.softmax(jnp.einsum("bd,bld->bl", x, caches["k"])), caches["v"])
    return caches, mixed @ params["out"]


@pytest.mark.parametrize(("steps", "kind"), [(3, "truncated"), (4, "exact"), (6, "exact")])
def test_exact_for_what_is_forgotten(steps, kind):
    """A cache of four steps is closed by windows that overlap by three."""
    rng = np.random.RandomState(0)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape))
    params = {"k": draw(I, I), "v": draw(I, H), "out": draw(H, I)}
    hidden = {"k": draw(B, 4, I), "v": draw(B, 4, H)}
    x, target = draw(T, B, I), draw(T, B, I)
    loss = lambda y, t: ((y - t) ** 2).sum()
    learner = etrax.compile(attention, etrax.tbptt(steps=steps), x[0], params=params, hidden=hidden)
    verdicts = {k[0]: str(v.kind) for k, v in learner.report.verdicts.items()}
    assert verdicts == {"k": kind, "v": kind, "out": "exact"}
    run = learner.value_and_grad(loss, window=1, reduction="sum")
    (_, grads), _ = Evaluator()(run, params, learner.init(), x, target)

    def total(p):
        def body(h, xs):
            h, y = attention(p, h, xs[0])
            return h, loss(y, xs[1])

        return jax.lax.scan(body, hidden, (x, target))[1].sum()

    want = jax.grad(total)(params)
    errors = {k: relative_error(grads[k], want[k]) for k in params}
    assert errors["out"] < 1e-9 and all((errors[k] < 1e-9) == (kind == "exact") for k in "kv"), errors


def test_an_update_after_each_step_runs_the_past_again_at_new_parameters():
    """By hand: states as they were, one step of descent after another."""
    rng = np.random.RandomState(1)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape))
    step = lambda w, h, x: (jnp.tanh(h @ w[:H] + x @ w[H:]),) * 2
    w, h, x, target = draw(H + I, H), draw(B, H), draw(T, B, I), draw(T, B, H)
    loss = lambda y, t: ((y - t) ** 2).sum()
    learner = etrax.compile(step, etrax.tbptt(steps=3), x[0], params=w, hidden=h)
    optimizer = optax.sgd(0.05)
    train = learner.train(optimizer, loss, window=1)
    got, *_ = Evaluator()(train, w, optimizer.init(w), learner.init(), x, target)

    past = []
    for t in range(T):
        past = [*past, (h, x[t])][-3:]

        def of_today(w, t=t, past=past):
            g = past[0][0]
            for k, (stored, data) in enumerate(past):
                # The state that today's step begins with is the one that was carried, whatever the past gives now.
                g = g + jax.lax.stop_gradient(stored - g) if k == len(past) - 1 else g
                g = step(w, g, data)[0]
            return loss(g, target[t])

        h, w = step(w, h, x[t])[0], w - 0.05 * jax.grad(of_today)(w)
    assert relative_error(got, w) < 1e-12


def test_steps_are_checked():
    assert etrax.tbptt(steps=1).transport is etrax.tbptt().transport
    assert etrax.tbptt(steps=2) != etrax.tbptt(steps=3)
    for wrong in (0, -1, 1.5, "3"):
        with pytest.raises(etrax.EtraxError, match="steps"):
            etrax.tbptt(steps=wrong)
