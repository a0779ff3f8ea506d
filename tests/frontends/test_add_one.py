"""A front end is one record in one list: a library that is made up here is served like all others."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import etrax
from etrax import frontends
from etrax.compiler.ir import Notation, format_path, use_notation
from etrax.frontends import FrontEnd, bind_function, registered


class Cell:
    """A module of the library "Toy": weights inside, called with its memory last."""

    def __init__(self, weights, gain=0.9):
        self.weights, self.gain = weights, gain

    def run(self, weights, x, memory):
        memory = self.gain * memory + jnp.tanh(x @ weights["w"])
        return memory @ weights["o"], memory


def bind_toy(cell, inputs, values):
    def step(weights, memory, x):
        return cell.run(weights, x, memory)[::-1]

    return bind_function(step, inputs, cell.weights, values.hidden)


def write_toy(cell, params, hidden):
    cell.weights = params
    return cell


TOY = FrontEnd(
    name="Toy",
    library="Toy",
    kind="a `toy.Cell`",
    matches=lambda model: isinstance(model, Cell),
    bind=bind_toy,
    layers=lambda cell: [((), cell)],
    write_back=write_toy,
)
RNG = np.random.RandomState(0)
WEIGHTS = {"w": jnp.asarray(RNG.standard_normal((3, 4))), "o": jnp.asarray(RNG.standard_normal((4, 2)))}
XS, YS = (jnp.asarray(RNG.standard_normal((7, 2, n))) for n in (3, 2))


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(registered, "FRONT_ENDS", (*registered.FRONT_ENDS, TOY))


def loss(output, target):
    return ((output - target) ** 2).mean()


def by_hand(weights):
    """The mean loss of the sequence, with nothing of Etrax."""
    memory, total = jnp.zeros((2, 4)), 0.0
    for x, y in zip(XS, YS, strict=True):
        memory = 0.9 * memory + jnp.tanh(x @ weights["w"])
        total += loss(memory @ weights["o"], y) / len(XS)
    return total


def test_it_learns(toy):
    cell = Cell(WEIGHTS)
    learner = etrax.compile(cell, "d_rtrl", XS[0], hidden=jnp.zeros((2, 4)))
    (value, grads), _ = learner.value_and_grad(loss, window=3)(learner.params, learner.init(), XS, YS)
    want, want_grads = jax.value_and_grad(by_hand)(WEIGHTS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), (value, grads), (want, want_grads))
    assert learner.facts.step.layers[0].name == "Cell"


def test_it_takes_values_back(toy):
    cell, sgd = Cell(WEIGHTS), optax.sgd(0.1)
    learner = etrax.compile(cell, "d_rtrl", XS[0], hidden=jnp.zeros((2, 4)))
    params, *_ = learner.train(sgd, loss, window=1)(learner.params, sgd.init(learner.params), learner.init(), XS, YS)
    assert etrax.write_back(cell, params) is cell and cell.weights is params


def test_messages_name_it(toy):
    assert frontends.is_module(Cell(WEIGHTS))
    with pytest.raises(etrax.CompilationError, match="a module of brainstate, Flax, Equinox or Toy"):
        etrax.compile(3, "d_rtrl", XS[0])
    with pytest.raises(etrax.ArgumentTypeError, match="a module of brainstate, NNX, Equinox or Toy"):
        etrax.write_back(3)
    with pytest.raises(etrax.ArgumentTypeError, match="brainstate, Flax, Equinox or Toy, or a step function"):
        etrax.compile_etrace_graph(3, XS[0])
    with pytest.raises(etrax.CompilationError, match="`batch_size=` is for brainstate modules"):
        etrax.compile(Cell(WEIGHTS), "d_rtrl", XS[0], batch_size=2)


def test_the_compiler_api_takes_it(toy):
    graph = etrax.compile_etrace_graph(Cell(WEIGHTS), XS[0], hidden=jnp.zeros((2, 4)))
    assert len(graph.hidden_groups) == 1


@jax.tree_util.register_pytree_with_keys_class
class Box:
    """A value of a library that wraps an array, with a unit."""

    def __init__(self, inner):
        self.inner = inner

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.GetAttrKey("inner"), self.inner)], None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_a_library_says_how_its_values_and_names_are_read(monkeypatch):
    from etrax.compiler.ir import _paths

    monkeypatch.setattr(_paths, "_NOTATIONS", list(_paths._NOTATIONS))
    is_box = lambda value: isinstance(value, Box)
    use_notation(Notation(is_box, lambda v: "mV" if is_box(v) else None, lambda key, _: key.replace("very_", "")))
    tree = {"a": Box(1.0), "b": [Box(Box(2.0)), 3.0]}
    assert _paths.leaves_with_paths(tree) == [(("a",), 1.0), (("b", 0), 2.0), (("b", 1), 3.0)]
    assert _paths.leaves_with_paths(Box(1.0)) == [((), 1.0)]
    assert _paths.units_of(tree) == [" in mV", " in mV", ""]
    assert format_path(("very_long", "w")) == "'long.w'"
