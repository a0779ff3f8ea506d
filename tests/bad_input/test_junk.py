"""Every public function with arguments that nobody meant: the answer is given, or an `EtraxError` says what to do."""

import inspect
import os
import warnings

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from tests.bad_input.calls import CALLS, JUNK, learner, loss, step

import etrax
from etrax.rules import RULES

PLACES = [(name, argument) for name, made in CALLS.items() for argument in made.valid]


@pytest.fixture(scope="module", autouse=True)
def somewhere_else(tmp_path_factory):
    """A name of a file may be nonsense and still be a name."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("junk"))
    yield
    os.chdir(before)


def run(name, **instead):
    """What a call gives with some arguments replaced; an `EtraxError` that says something is an answer, too."""
    made = CALLS[name]
    given = {k: (JUNK[instead[k]] if k in instead else v)() for k, v in made.valid.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return made.run(**given)
    except etrax.EtraxError as error:
        assert len(str(error)) > 20, (name, instead)
        return error


@hypothesis.settings(max_examples=150, deadline=None, derandomize=True, database=None)
@hypothesis.given(place=st.sampled_from(PLACES), junk=st.sampled_from(sorted(JUNK)))
def test_one_argument(place, junk):
    run(place[0], **{place[1]: junk})


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)
@hypothesis.given(data=st.data(), name=st.sampled_from(sorted(n for n, made in CALLS.items() if len(made.valid) > 1)))
def test_several_arguments(data, name):
    chosen = data.draw(st.lists(st.sampled_from(sorted(CALLS[name].valid)), min_size=2, unique=True))
    run(name, **{argument: data.draw(st.sampled_from(sorted(JUNK))) for argument in chosen})


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_every_argument_with_everything(name):
    for argument in CALLS[name].valid:
        for junk in JUNK:
            run(name, **{argument: junk})


def test_valid_arguments_are_answered():
    """The other tests would pass if everything were refused."""
    refused = [name for name in CALLS if isinstance(run(name), etrax.EtraxError)]
    assert set(refused) <= {"check", "fashion_mnist", "spoken_digits"}  # not watched; data that may be missing


@hypothesis.settings(max_examples=40, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    targets=st.sampled_from(sorted(JUNK)), mask=st.sampled_from(sorted(JUNK)), inputs=st.sampled_from(sorted(JUNK))
)
def test_what_is_answered_is_right(targets, mask, inputs):
    """The model is exact under its rule: loss and gradient are those of `jax.grad` over a scan, written here."""
    replaced = {"targets": targets, "mask": mask, "inputs": inputs}
    for chosen in (replaced, {"targets": targets}, {"mask": mask}, {"inputs": inputs}):
        found = run("gradient", **chosen)
        if isinstance(found, etrax.EtraxError):
            continue
        given = {k: (JUNK[chosen[k]] if k in chosen else v)() for k, v in CALLS["gradient"].valid.items()}
        xs = given["inputs"][0] if isinstance(given["inputs"], tuple) else given["inputs"]

        def total(params, given=given, xs=xs):
            outputs = jax.lax.scan(lambda h, x: step(params, h, x), learner().hidden, xs)[1]
            targets = given["targets"]
            each = [
                loss(o, None if targets is None else jax.tree.map(lambda a, t=t: a[t], targets))
                for t, o in enumerate(outputs)
            ]
            weight = np.ones(len(each)) if given["mask"] is None else np.asarray(given["mask"], float)
            return (jax.numpy.stack(each) * weight).sum() / (weight.sum() or 1)

        value, grads = jax.value_and_grad(total)(given["params"])
        np.testing.assert_allclose(found[0][0], value, rtol=1e-10)
        np.testing.assert_allclose(found[0][1]["w"], grads["w"], rtol=1e-9, atol=1e-12)


def test_the_table_holds_every_public_function():
    """A new name needs a row, or a reason to have none."""
    no_arguments = {n for n, rule in RULES.items() if not inspect.signature(rule).parameters} | {"frozen"}
    public = {n for n, v in vars(etrax).items() if callable(v) and not n.startswith("_") and not isinstance(v, type)}
    assert public - no_arguments - set(CALLS) - {"Any"} == set()
