"""What a file belongs to: values of another model, loss, optimizer or data are refused, unless that is asked for."""

import ast
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.train.common import B, H, I, data, loss, params, same

import etrax
from etrax.train import CheckpointError, Dataset, Trainer
from etrax.train._store import Store

X = jnp.zeros((B, I))
SLOPE = np.ones(H)


def leaky(leak=0.9, slope=SLOPE):
    def step(p, h, x):
        h = leak * h + jnp.tanh(x @ p["w"] * slope + p["leak"])
        return h, h @ p["out"]

    return step


def learner(step=None, rule="d_rtrl", hidden=0.0, **options):
    hidden = jnp.full((B, H), hidden)
    return etrax.compile(step or leaky(), rule, X, params=params(), hidden=hidden, **options)


def trainer(made=None, optimizer=None, loss_fn=loss, **options):
    return Trainer(made or learner(), optimizer or optax.adam(0.03), loss_fn, **{"window": 2, **options})


def changed(found, **parts):
    return Dataset(**{**found._asdict(), **parts})


def one_number_more(array):
    array = np.array(array)
    array[-1, -1, -1] += 1e-9
    return array


OTHER_RUNS = {
    "model": lambda: (trainer(learner(leaky(leak=0.8))), {}),
    "a constant of the model": lambda: (trainer(learner(leaky(slope=SLOPE * np.arange(H)))), {"word": "model"}),
    "hidden": lambda: (trainer(learner(hidden=0.5)), {}),
    "rule": lambda: (trainer(learner(rule=etrax.pp_prop(0.8))), {}),
    "type of the traces": lambda: (trainer(learner(trace_dtype=jnp.float32)), {"word": "rule"}),
    "window": lambda: (trainer(window=3), {}),
    "loss": lambda: (trainer(loss_fn=lambda o, t: jnp.mean(jnp.abs(o - t))), {}),
    "a number in the loss": lambda: (trainer(loss_fn=lambda o, t: 2 * loss(o, t)), {"word": "loss"}),
    "optimizer": lambda: (trainer(optimizer=optax.adam(0.04)), {}),
    "a schedule": lambda: (trainer(optimizer=optax.adam(0.03, b1=0.8)), {"word": "optimizer"}),
    "data": lambda: (trainer(), {"data": changed(data(), inputs=one_number_more(data().inputs))}),
    "targets": lambda: (trainer(), {"word": "data", "data": changed(data(), targets=one_number_more(data().targets))}),
    "mask": lambda: (trainer(), {"word": "data", "data": changed(data(), mask=data().mask * 0.5)}),
    "validation": lambda: (trainer(), {"validation": data(3)}),
    "evaluated": lambda: (trainer(evaluated=learner(leaky(0.5))), {}),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved")
    trainer().fit(data(), 1, validation=data(2), checkpoint=directory, progress=False)
    return directory


def fit(made, directory, epochs=2, **options):
    options = {"data": data(), "validation": data(2), **options}
    return made.fit(epochs=epochs, checkpoint=directory, progress=False, **options)


@pytest.mark.parametrize("what", OTHER_RUNS)
def test_another_run_is_refused_by_its_word(saved, what):
    made, options = OTHER_RUNS[what]()
    word = options.pop("word", what)
    with pytest.raises(CheckpointError, match=rf"(?s)belongs to a different run:\n  {word}: .*accept=\['{word}'\]"):
        fit(made, saved, **options)


def test_the_same_run_written_anew_goes_on(saved, tmp_path):
    """Other objects, another place in the source, other names: the same numbers."""

    def again(weights, state, given):
        state = 0.9 * state + jnp.tanh(given @ weights["w"] * np.array(SLOPE) + weights["leak"])
        return state, state @ weights["out"]

    squares = lambda answer, wanted: jnp.mean((answer - wanted) ** 2)
    shutil.copytree(saved, tmp_path / "run")
    made = trainer(learner(jax.jit(again)), optax.chain(optax.adam(0.03)), squares)
    plain = trainer(learner(again), optax.adam(0.03), squares)
    with pytest.raises(CheckpointError, match="absent"):
        fit(made, tmp_path / "run")  # a chain has another state
    same(fit(plain, tmp_path / "run").params, trainer().fit(data(), 2, validation=data(2), progress=False).params)


def test_an_explicit_word_goes_on(tmp_path):
    """The learning rate is lowered on purpose: the run is that of the new rate from there, and needs the word once."""
    fit(trainer(), tmp_path, 1)
    start = trainer().fit(data(), 1, validation=data(2), progress=False)
    slower = trainer(optimizer=optax.adam(0.01))
    found = fit(slower, tmp_path, 2, accept=["optimizer"])
    assert len(found.history) == 2 and found.history[0].metrics == start.history[0].metrics
    assert len(fit(slower, tmp_path, 3).history) == 3
    with pytest.raises(CheckpointError, match="optimizer: digest"):
        fit(trainer(), tmp_path, 4)


def test_a_rate_that_lies_in_the_state_counts(tmp_path):
    """`inject_hyperparams` keeps the rate in its state: going on, the stored one would silently win."""
    make = lambda rate: trainer(optimizer=optax.inject_hyperparams(optax.sgd)(learning_rate=rate))
    fit(make(0.1), tmp_path, 1)
    with pytest.raises(CheckpointError, match="optimizer: digest"):
        fit(make(0.2), tmp_path)


def test_words_that_are_none(saved):
    for accept in ("optimiser", ["data", 3], 3, None):
        with pytest.raises(etrax.ArgumentError, match=r"`accept` is .*expected some of 'model', 'hidden'"):
            fit(trainer(), saved, accept=accept)


def test_shapes_cannot_be_accepted(saved):
    wide = {**params(), "out": jnp.ones((H, 5))}
    made = etrax.compile(leaky(), "d_rtrl", X, params=wide, hidden=jnp.zeros((B, H)))
    with pytest.raises(CheckpointError, match=r"params\['out'\]: float64\[4, 2\] there") as found:
        fit(Trainer(made, optax.adam(0.03), lambda o, t: (o**2).mean(), window=2), saved, accept=["model", "loss"])
    assert "accept=" not in str(found.value)


def test_large_data_are_told_apart_by_some_samples(monkeypatch, tmp_path):
    monkeypatch.setattr("etrax.train._data.DIGESTED", 4 * 6 * I * 8)  # four samples of seven
    fit(trainer(), tmp_path, 1)
    assert len(fit(trainer(), tmp_path, 2).history) == 2
    with pytest.raises(CheckpointError, match="data: 7 samples of 6 steps, digest"):
        fit(trainer(), tmp_path, 3, data=changed(data(), inputs=data().inputs + 1))


def write_as_before(directory):
    """The last checkpoint as the version before wrote it, which knew less of a run."""
    write = Store.write

    def old(self, number, tree, meta):
        run = meta["run"]
        names = ("rule", "update", "window", "gradient", "batch size", "key", "monitor")
        kept = {k: run[k] for k in names} | {"steps of data": 6, "samples of data": 7}
        was = {"format": 2, "run": run["arrays"] | kept, "best": meta["best"], "history": meta["history"]}
        write(self, number, tree, was)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "write", old)
        fit(trainer(), directory, 1)


def test_checkpoint_of_the_version_before(tmp_path):
    write_as_before(tmp_path)
    message = r"(?s)did not record all settings of a run:\n  model: absent there.*loss: absent.*accept=\["
    with pytest.raises(CheckpointError, match=message) as found:
        fit(trainer(), tmp_path)
    words = ast.literal_eval(str(found.value).split("accept=")[1].split("`")[0])
    assert words == ["model", "hidden", "loss", "optimizer", "data", "validation"]
    assert len(fit(trainer(), tmp_path, accept=words).history) == 2
    assert len(fit(trainer(), tmp_path, 3).history) == 3


# etrax.save and etrax.restore

LIKE = {"params": params()}


def test_restore_refuses_another_model_of_equal_shapes(tmp_path):
    mine = learner()
    etrax.save(tmp_path, params=params(), learner=mine)
    same(etrax.restore(tmp_path, like=LIKE, learner=learner())["params"], params())
    for other in (learner(leaky(0.8)), learner(leaky(slope=2 * SLOPE))):
        with pytest.raises(CheckpointError, match=r"saved with another learner:\n  model: digest .* here\nIf this is"):
            etrax.restore(tmp_path, like=LIKE, learner=other)
        same(etrax.restore(tmp_path, like=LIKE, learner=other, accept="model")["params"], params())
        same(etrax.restore(tmp_path, like=LIKE)["params"], params())
    with pytest.raises(etrax.ArgumentError, match="expected some of 'model', 'rule', 'names'"):
        etrax.restore(tmp_path, like=LIKE, learner=mine, accept=["shape"])


def test_options_that_no_line_shows_count(tmp_path):
    """Two random feedbacks are two rules, though both are written `e_prop(kappa=0.0, …)`."""
    first, second = (learner(rule=etrax.e_prop(feedback="random", key=k)) for k in (0, 1))
    assert str(first.rule) == str(second.rule)
    etrax.save(tmp_path, params=params(), learner=first)
    with pytest.raises(CheckpointError, match=r"rule: e_prop\(.*, options .* there, e_prop\(.*, options .* here"):
        etrax.restore(tmp_path, like=LIKE, learner=second)
    same(etrax.restore(tmp_path, like=LIKE, learner=second, accept=["rule"])["params"], params())


def test_functions_of_a_rule_count_by_what_they_do(tmp_path):
    """All of these are called `<lambda>`."""

    def reward(number, array=SLOPE):
        return lambda o, t: number * o.sum() + array[0]

    written = learner(rule=etrax.three_factor(reward(1.0)))
    etrax.save(tmp_path, params=params(), learner=written)
    same(etrax.restore(tmp_path, like=LIKE, learner=learner(rule=etrax.three_factor(reward(1.0))))["params"], params())
    for other in (reward(2.0), reward(1.0, SLOPE + 1), lambda o, t: o.sum(), lambda o, t: o.mean()):
        with pytest.raises(CheckpointError, match=r"rule: three_factor\("):
            etrax.restore(tmp_path, like=LIKE, learner=learner(rule=etrax.three_factor(other)))


def test_save_checks_what_it_labels(tmp_path):
    mine, other = learner(), learner(rule="rtrl")
    for given, message in (
        ({"params": {**params(), "w": jnp.ones((I, 5))}}, r"`params` at 'w' has shape \[3, 5\]"),
        ({"params": {"v": params()["w"]}}, "not expected: 'v'"),
        ({"params": params(), "state": other.init()}, "`state.trace` does not belong to this learner"),
        ({"state": mine.init()._replace(hidden=jnp.zeros((B, 7)))}, r"`hidden` .*has shape \[3, 7\]"),
        ({"state": mine.init().hidden}, "holds hidden states alone"),
    ):
        with pytest.raises(etrax.ArgumentError, match=message):
            etrax.save(tmp_path, **given, learner=mine)
    assert not list(tmp_path.iterdir())


def test_what_was_saved_without_a_learner_cannot_be_told(tmp_path):
    etrax.save(tmp_path, params=params())
    with pytest.raises(CheckpointError, match=r"was saved without `learner=`, .*Leave `learner` out"):
        etrax.restore(tmp_path, like=LIKE, learner=learner())
    same(etrax.restore(tmp_path, like=LIKE)["params"], params())
    same(etrax.restore(tmp_path, like=LIKE, learner=learner(), accept=["model", "rule", "names"])["params"], params())
