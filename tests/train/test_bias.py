"""`Trainer(meter=...)`: cosines with the true gradient at the end of every epoch, recorded, shown, saved and drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.train.common import B, data, loss, same, trainer

import etrax
import etrax.viz


def recurrent(p, h, x):
    h = jnp.tanh(x @ p["w"] + h @ p["u"])
    return h, h @ p["out"]


def recurrent_trainer(**options):
    rng = np.random.default_rng(0)
    shapes = {"w": (3, 4), "u": (4, 4), "out": (4, 2)}
    start = {name: jnp.asarray(rng.standard_normal(shape)) for name, shape in shapes.items()}
    learner = etrax.compile(recurrent, "d_rtrl", jnp.zeros((B, 3)), params=start, hidden=jnp.zeros((B, 4)))
    return etrax.Trainer(learner, optax.sgd(0.05), loss, **{"window": 1, "meter": 16, **options})


def true_cosines(trained, p):
    """Of the rule's gradient on the first batch with that of BPTT over a loop."""
    found = data()
    xs, ys, mask = (np.asarray(a[:, :B], float) for a in (found.inputs, found.targets, found.mask))

    def total(p):
        h, out = jnp.zeros((B, 4)), 0.0
        for x, y, m in zip(xs, ys, mask, strict=True):
            h, o = recurrent(p, h, x)
            out += (m * ((o - y) ** 2).mean(-1)).sum()
        return out / mask.sum()

    learner = trained.learner
    (_, rule), _ = learner.value_and_grad(loss, 1)(p, learner.init(p), xs, ys, mask)
    true = jax.grad(total)(p)
    angle = lambda a, b: float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
    flat = lambda tree: np.concatenate([np.ravel(tree[name]) for name in sorted(tree)])
    return {**{n: angle(np.ravel(rule[n]), np.ravel(true[n])) for n in p}, "all": angle(flat(rule), flat(true))}


def test_cosines_of_every_epoch():
    """The interval of every parameter and of all holds the true cosine in at least nine of ten."""
    trained, seen = recurrent_trainer(), []
    result = trained.fit(data(), 5, progress=False, callback=lambda record: seen.append(record.params))
    inside = []
    for record, p in zip(result.history, seen, strict=True):
        truth = true_cosines(trained, p)
        assert set(record.cosines) == {"w", "u", "out", "all"}
        assert record.metrics["cosine"] == record.cosines["all"][0]
        inside += [low - 1e-9 <= truth[name] <= high + 1e-9 for name, (_, low, high) in record.cosines.items()]
    assert np.mean(inside) >= 0.9


def test_an_exact_rule_stays_at_one_and_learns_the_same():
    plain, metered = trainer(), trainer(meter=4)
    one, other = plain.fit(data(), 2, progress=False), metered.fit(data(), 2, progress=False)
    same(one.params, other.params)
    assert all(low > 1 - 1e-9 for record in other.history for _, low, _ in record.cosines.values())
    assert not one.history[0].cosines and "cosine" not in one.history[0].metrics


def test_a_line_shows_the_interval(capsys):
    recurrent_trainer().fit(data(), 1)
    line = capsys.readouterr().out
    assert "  cosine 0." in line and line.count("[") == 1


def test_checkpoints_keep_cosines(tmp_path):
    whole = recurrent_trainer().fit(data(), 2, progress=False)
    recurrent_trainer().fit(data(), 1, progress=False, checkpoint=tmp_path)
    resumed = recurrent_trainer().fit(data(), 2, progress=False, checkpoint=tmp_path)
    for one, other in zip(whole.history, resumed.history, strict=True):
        assert one.cosines == other.cosines and one.metrics == other.metrics


def test_a_picture_with_bands():
    result = recurrent_trainer().fit(data(), 3, progress=False)
    (axes,) = etrax.viz.bias(result).axes
    assert axes.get_legend_handles_labels()[1] == ["all", "out", "u", "w"] and len(axes.collections) == 4
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [e.cosines["all"][0] for e in result.history])
    assert axes.get_ylabel() == "cosine with the true gradient"


def test_bad_arguments():
    with pytest.raises(etrax.ArgumentError, match="leave out `gradient`"):
        trainer(meter=8, update="sequence", gradient=etrax.testing.bptt)
    with pytest.raises(etrax.ArgumentError, match="`meter`"):
        trainer(meter=1)
    with pytest.raises(etrax.ArgumentError, match="another name"):
        trainer(meter=8, metrics={"cosine": etrax.train.accuracy})
    plain = trainer().fit(data(), 1, progress=False)
    for nothing in (plain, {}, 3):
        with pytest.raises(etrax.ArgumentError, match="nothing to draw"):
            etrax.viz.bias(nothing)


def test_the_first_batch_of_an_iterable_is_that_of_then():
    """A generator may fill one array again and again; the samples of a model without a batch axis are views of it."""

    def step(w, h, x):
        h = jnp.tanh(x @ w["in"] + h @ w["rec"])
        return h, h

    rng = np.random.default_rng(0)
    w = {"in": rng.standard_normal((3, 4)), "rec": rng.standard_normal((4, 4)) / 2}
    xs, ys = rng.standard_normal((4, 6, 1, 3)), rng.standard_normal((4, 6, 1, 4))
    learner = etrax.compile(step, "d_rtrl", xs[0, 0, 0], params=w, hidden=jnp.zeros(4))
    made = etrax.train.Trainer(learner, optax.sgd(0.1), lambda o, y: ((o - y) ** 2).sum(), window=1, meter=4)

    def filled():
        x, y = np.empty((6, 1, 3)), np.empty((6, 1, 4))
        for i in range(4):
            x[...], y[...] = xs[i], ys[i]
            yield x, y

    one, other = (made.fit(source, 2, batches=2, progress=False) for source in (filled(), zip(xs, ys, strict=True)))
    assert [e.cosines for e in one.history] == [e.cosines for e in other.history]
