"""What `fit` computes, beside loops written by hand: updates, padding, shuffling, keys, and compiles."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.train.common import B, H, I, N, T, by_hand, close, data, learner, loss, outputs_of, params, same, trainer

import etrax
from etrax.train import Dataset, Trainer

ORDER = np.arange(N)


@pytest.mark.parametrize("options", [{}, {"window": 1}, {"gradient": etrax.testing.bptt}])
def test_update_by_sequence_is_gradient_descent(options):
    """d_rtrl is exact on this model, so every window, and BPTT itself, give what BPTT by hand gives."""
    result = trainer(update="sequence", **options).fit(data(), 2, shuffle=False, progress=False)
    want, first = by_hand(params(), data(), ORDER)
    want, second = by_hand(want, data(), ORDER)
    close(result.params, want)
    np.testing.assert_allclose([e.metrics["loss"] for e in result.history], [first, second], rtol=1e-12)


@pytest.mark.parametrize(
    "rule",
    [
        etrax.d_rtrl(),
        etrax.e_prop(feedback="random", key=0),
        etrax.three_factor(lambda output, target: (target - output).mean(-1)),
    ],
    ids=str,
)
def test_update_by_window_is_learner_train(rule):
    """The last batch holds one sample and two that are filled in: it equals a learner compiled for one sample."""
    d, p, opt = data(), params(), optax.adam(0.03)
    state, fits = opt.init(p), {}
    for i in (ORDER[:3], ORDER[3:6], ORDER[6:]):
        if len(i) not in fits:
            small = learner(rule, len(i))
            fits[len(i)] = small.train(opt, loss, window=4), small.init()
        fit, start = fits[len(i)]
        p, state, _, _ = fit(p, state, start, d.inputs[:, i], d.targets[:, i], d.mask[:, i])
    result = trainer(rule, optimizer=opt, window=4).fit(d, 1, shuffle=False, progress=False)
    close(result.params, p, 1e-10)
    close(result.opt_state, state, 1e-10)


def test_training_loss_weighs_every_step_alike():
    """With no learning, the training loss is the loss of the data, however windows and batches cut it."""
    d = data()
    result = trainer(optimizer=optax.sgd(0.0), window=4).fit(d, 1, progress=False)
    each = ((np.stack([outputs_of(params(), d.inputs[:, n]) for n in range(N)], 1) - d.targets) ** 2).mean(-1)
    np.testing.assert_allclose(result.history[0].metrics["loss"], each[d.mask].mean(), rtol=1e-12)


def counting(samples, batch):
    """A model of one number per sample: learning from a sample lowers its number by 1/(samples of the batch)."""
    step = lambda w, h, x: (h, x @ w)
    made = etrax.compile(step, "tbptt", jnp.zeros((batch, samples)), params=jnp.zeros(samples), hidden=jnp.zeros(batch))
    d = Dataset(np.eye(samples)[None], np.zeros((1, samples)))
    fit = Trainer(made, optax.sgd(1.0), lambda output, _: output.mean(), update="sequence").fit
    return lambda key=0, epochs=1: -np.asarray(fit(d, epochs, key=key, progress=False).params)


def test_every_sample_is_used_once_in_an_epoch():
    np.testing.assert_allclose(sorted(counting(7, 3)()), [1 / 3] * 6 + [1])
    np.testing.assert_allclose(counting(6, 3)(), 1 / 3)
    np.testing.assert_allclose(counting(2, 5)(), 1 / 2)


def test_order_is_drawn_from_the_key():
    count = counting(7, 3)
    alone = [int(count(key).argmax()) for key in range(8)]  # the sample of the last, short batch
    assert len(set(alone)) > 2
    assert alone == [int(count(jax.random.key(key)).argmax()) for key in range(8)]
    # Another order in the second epoch: two samples stood alone once.
    np.testing.assert_allclose(sorted(count(0, epochs=2)), [2 / 3] * 5 + [4 / 3] * 2)


def test_learner_without_a_batch_axis_takes_one_sample_at_a_time():
    result = trainer(batch=None, update="sequence").fit(data(), 1, shuffle=False, progress=False)
    want, mean = by_hand(params(), data(), ORDER, size=1)
    close(result.params, want)
    np.testing.assert_allclose(result.history[0].metrics["loss"], mean, rtol=1e-12)


def test_several_inputs_and_one_that_all_samples_share():
    def step(p, h, x, pair):
        h = 0.5 * h + x @ p["w"] * pair["gain"] + pair["clock"]
        return h, h

    d, one = data(), jnp.ones((B, H))
    w = {"w": params()["w"]}
    example = (jnp.zeros((B, I)), {"gain": one, "clock": jnp.zeros(())})
    made = etrax.compile(step, "d_rtrl", *example, params=w, hidden=jnp.zeros((B, H)))
    gain, clock = np.random.default_rng(3).standard_normal((T, N, H)), np.linspace(0, 1, T)
    fit = Trainer(made, optax.sgd(0.1), lambda o, _: (o**2).mean(), window=3, update="sequence")
    result = fit.fit(Dataset((d.inputs, {"gain": gain, "clock": clock})), 1, shuffle=False, progress=False)

    def total(w, i):
        h, sums = jnp.zeros((len(i), H)), 0.0
        for t in range(T):
            h, out = step(w, h, d.inputs[t, i], {"gain": gain[t, i], "clock": clock[t]})
            sums = sums + (out**2).mean()
        return sums / T

    for i in (ORDER[:3], ORDER[3:6], ORDER[6:]):
        w = jax.tree.map(lambda a, g: a - 0.1 * g, w, jax.grad(total)(w, i))
    close(result.params, w)


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_noise_differs_from_batch_to_batch(make):
    def step(w, hidden, x):
        key, h = hidden
        now, later = jax.random.split(key)
        return (later, h + x @ w), jax.random.normal(now, x.shape[:1])

    hidden = (make(0), jnp.zeros(1))
    made = etrax.compile(step, "tbptt", jnp.zeros((1, 2)), params=jnp.ones(2), hidden=hidden)
    d = Dataset(np.zeros((1, 4, 2)), np.zeros((1, 4)))
    seen = []
    fit = Trainer(made, optax.sgd(0.1), lambda o, t: _tell(seen, o.mean()), update="sequence").fit
    fit(d, 2, progress=False)
    jax.effects_barrier()
    assert len(set(seen)) == 8


def _tell(seen, value):
    jax.debug.callback(lambda v: seen.append(float(v)), jax.lax.stop_gradient(value))
    return value


def test_random_rule_draws_anew():
    """UORO's signs must not be the same in every batch: its noise would not average out."""
    one = jax.tree.map(lambda a: a[:, :B], data())
    found = []
    spy = optax.GradientTransformation(lambda p: p, lambda g, s, p: (jax.tree.map(jnp.zeros_like, g), g))
    made = Trainer(learner(etrax.uoro(0)), spy, loss, update="sequence")  # its state is the last gradient
    for epochs in (1, 2):
        found.append(made.fit(one, epochs, shuffle=False, progress=False).opt_state)
    assert np.abs(found[0]["w"] - found[1]["w"]).max() > 1e-6
    close(found[0]["out"], found[1]["out"])  # the readout's gradient is exact, so it does not hang on the signs


def test_what_a_rule_learns_goes_on():
    """The matrix of `synthetic` is kept from batch to batch, hidden states are not."""
    rule, d, sgd = etrax.synthetic(), data()._replace(mask=None), optax.sgd(0.05)
    made = learner(rule)
    fit, p, opt, state = made.train(sgd, loss, window=2), params(), sgd.init(params()), made.init()
    for i in (ORDER[:3], ORDER[3:6]):
        state = state._replace(hidden=made.hidden)
        p, opt, state, _ = fit(p, opt, state, d.inputs[:, i], d.targets[:, i], np.ones((T, B)))
    six = Dataset(d.inputs[:, :6], d.targets[:, :6])
    result = trainer(rule, optimizer=sgd).fit(six, 1, shuffle=False, progress=False)
    close(result.params, p, 1e-6)  # the trainer's weights of 1 are float32
    alone = trainer(rule, optimizer=sgd).fit(Dataset(d.inputs[:, 3:6], d.targets[:, 3:6]), 1, progress=False)
    assert np.abs(alone.params["w"] - result.params["w"]).max() > 1e-6


def test_rule_warns_of_data_that_do_not_suit_it():
    with pytest.warns(etrax.RuleWarning, match="sign"):
        trainer("pp_prop").fit(data(), 1, progress=False)


def test_one_compile_to_train_and_one_to_evaluate():
    traced = []

    def counted(output, target):
        traced.append(())
        return loss(output, target)

    made = Trainer(learner(), optax.adam(0.1), counted, window=4)
    made.fit(data(), 1, validation=data(2), progress=False)
    once = len(traced)
    made.fit(data(3), 3, validation=data(2), progress=False)
    made.fit(data(4), 1, params=made.fit(data(), 1, progress=False).params, progress=False)
    made.evaluate(params(), data(5))
    assert len(traced) == once


def test_weak_types_do_not_compile_twice():
    traced = []
    step = lambda p, h, x: (p["a"] * h + x, p["a"] * h)
    p = {"a": jnp.asarray(0.5)}
    assert p["a"].weak_type
    made = etrax.compile(step, "d_rtrl", jnp.zeros(2), params=p, hidden=jnp.zeros(2))
    fit = Trainer(made, optax.sgd(0.1), lambda o, _: (traced.append(()), (o**2).mean())[1], window=2).fit
    d = Dataset(np.ones((4, 6)))
    fit(d, 1, progress=False)
    once = len(traced)
    fit(d, 2, progress=False)
    assert len(traced) == once


def test_masked_batch_changes_nothing():
    d = data()
    d = d._replace(mask=np.where(np.arange(N) < B, d.mask, 0))  # of three batches only the first counts
    for update in ("window", "sequence"):
        made = trainer(optimizer=optax.adam(0.1), update=update)
        result = made.fit(d, 1, shuffle=False, progress=False)
        first = made.fit(jax.tree.map(lambda a: a[:, :B], d), 1, shuffle=False, progress=False)
        same((result.params, result.opt_state), (first.params, first.opt_state))
        assert result.history[0].metrics == first.history[0].metrics


def test_start_is_what_is_given():
    first = trainer(optimizer=optax.adam(0.1)).fit(data(), 1, shuffle=False, progress=False)
    made = trainer(optimizer=optax.adam(0.1))
    second = made.fit(data(), 1, params=first.params, opt_state=first.opt_state, shuffle=False, progress=False)
    whole = made.fit(data(), 2, shuffle=False, progress=False)
    same(second.params, whole.params)
    same(second.opt_state, whole.opt_state)
