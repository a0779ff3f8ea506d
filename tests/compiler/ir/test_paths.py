"""Paths of leaves, as keys and as people write them."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from etrax.compiler.ir import format_path, leaves_with_paths


class Pair(NamedTuple):
    h: float
    c: float


@jax.tree_util.register_dataclass
@dataclass
class Cell:
    w: float


@pytest.mark.parametrize(
    ("tree", "paths"),
    [
        (jnp.ones(2), [()]),
        ({"b": 1.0, "a": 2.0}, [("a",), ("b",)]),
        ([1.0, (2.0, {"w": 3.0})], [(0,), (1, 0), (1, 1, "w")]),
        (Pair(1.0, 2.0), [("h",), ("c",)]),
        ({"rnn": Cell(1.0)}, [("rnn", "w")]),
        ({("rnn", "w"): 1.0, ("out",): 2.0}, [("out",), ("rnn", "w")]),
        ({}, []),
        (None, []),
    ],
)
def test_paths(tree, paths):
    found = leaves_with_paths(tree)
    assert [path for path, _ in found] == paths
    assert [leaf for _, leaf in found] == jax.tree.leaves(tree)


@pytest.mark.parametrize(
    ("path", "text"),
    [(("rnn", "w"), "'rnn.w'"), (("layers", 0, "w"), "'layers[0].w'"), ((), "'params'"), ((1, "w"), "'params[1].w'")],
)
def test_text(path, text):
    assert format_path(path, "params") == text


def test_descriptions_as_keys_are_short_and_told_apart():
    said = "(<class 'brainpy.state.Expon'>, (100,), {{'tau': '{} ms'}}) // (<class 'brainpy.state.CUBA'>, (), {{}})"
    assert format_path(("post", said.format(5), "g")) == "'post.Expon(tau=5 ms) // CUBA().g'"
    assert format_path(("post", said.format(5), "g")) != format_path(("post", said.format(10), "g"))
    more = "(<class 'a.Expon'>, (5,), {{'tau': '5 ms', 'g_initializer': {}(unit=mA)}}) // (<class 'a.CUBA'>, (), {{}})"
    two = [format_path(("post", more.format(kind), "g")) for kind in ("ZeroInit", "ConstantOfSomeKind")]
    assert all(t.startswith("'post.Expon(tau=5 ms) // CUBA()") for t in two[1:]) and two[0] != two[1]
    long = [format_path(("a" * 90 + end,)) for end in "bc"]
    assert long[0] != long[1] and max(map(len, long)) <= 62
