"""What a newcomer sees of the package."""

import jax.numpy as jnp
import pytest

import etrax


def test_names_in_reach():
    names = dir(etrax)
    assert {"compile", "d_rtrl", "Trainer", "train", "testing", "tasks", "viz", "nn", "Stateful", "save"} <= set(names)
    assert not {"Any", "annotations", "engine", "ir", "_compile"} & set(names)
    for name in names:
        assert getattr(etrax, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'rtlr'"):
        etrax.rtlr  # noqa: B018


def test_integer_parameters_are_named():
    step = lambda p, h, x: (0.9 * h + x @ p["w"] * p["n"], h)
    params = {"w": jnp.ones((3, 4)), "n": jnp.arange(4)}
    with pytest.warns(etrax.RuleWarning, match="parameter 'n' holds whole numbers, which have no gradient"):
        etrax.compile(step, "d_rtrl", jnp.ones(3), params=params, hidden=jnp.zeros(4))
