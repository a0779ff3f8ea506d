"""What a newcomer sees of the package."""

import inspect

import jax.numpy as jnp
import optax
import pytest

import etrax


def test_names_in_reach():
    names = dir(etrax)
    assert {"compile", "d_rtrl", "Trainer", "train", "testing", "tasks", "viz", "nn", "Stateful", "save"} <= set(names)
    assert not {"Any", "annotations", "runtime", "compiler", "_compile"} & set(names)
    for name in names:
        assert getattr(etrax, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'rtlr'"):
        etrax.rtlr  # noqa: B018


def public():
    names = ("nn", "tasks", "testing", "train", "viz")
    folders = {"etrax": etrax} | {f"etrax.{name}": getattr(etrax, name) for name in names}
    for folder, module in folders.items():
        for name in dir(module):
            thing = getattr(module, name)
            own = str(getattr(thing, "__module__", "")).startswith("etrax")
            if own and callable(thing) and not name.startswith("_"):
                yield f"{folder}.{name}", thing


def test_public_names_are_explained():
    """Each says what it is, and all but errors show how it is used."""
    for name, thing in public():
        text = inspect.getdoc(thing) or ""
        assert text, name
        assert ">>>" in text or (isinstance(thing, type) and issubclass(thing, Exception)), name


def test_integer_parameters_are_named():
    step = lambda p, h, x: (0.9 * h + x @ p["w"] * p["n"], h)
    params = {"w": jnp.ones((3, 4)), "n": jnp.arange(4)}
    with pytest.warns(etrax.RuleWarning, match="parameter 'n' holds whole numbers, which have no gradient"):
        etrax.compile(step, "d_rtrl", jnp.ones(3), params=params, hidden=jnp.zeros(4))


def test_integer_parameters_that_an_optimizer_turns_into_others():
    step = lambda p, h, x: (0.9 * h + x @ p["w"] * p["n"], h)
    params = {"w": jnp.ones((3, 4)), "n": jnp.arange(4)}
    with pytest.warns(etrax.RuleWarning, match="whole numbers"):
        learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=params, hidden=jnp.zeros(4))
    loss, xs, ys = lambda h, y: ((h - y) ** 2).mean(), jnp.ones((6, 3)), jnp.zeros((6, 4))
    with pytest.raises(etrax.ArgumentError, match=r"'.*mu\.n' of its state from int64 into float64"):
        train = learner.train(optax.adam(0.1), loss, window=1)
        train(params, optax.adam(0.1).init(params), learner.init(), xs, ys)
    stream = learner.online(optax.sgd(0.1), loss)  # one that keeps its types learns the others
    stream.feed(xs[0], ys[0])
    stream.feed(xs[1], ys[1])
    assert (stream.params["n"] == params["n"]).all() and not (stream.params["w"] == params["w"]).all()
