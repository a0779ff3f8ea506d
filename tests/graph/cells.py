"""Models for the graph, and an oracle for their cut step that knows nothing of the compiler.

Every matrix product of these models is a `Linear` layer or, in neurons, `affine`. Stopping the gradient of what they
read therefore cuts the weight ops and nothing else: derivatives of a model under `cut` are those of the cut step.
"""

import contextlib

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import etrax.nn
from etrax.nn import _neurons

I, H, B = 3, 4, 2


class Net(brainstate.nn.Module):
    """A cell and a readout."""

    def __init__(self, cell, size=H):
        super().__init__()
        self.cell = cell
        self.readout = etrax.nn.Linear(size, 5)

    def update(self, x):
        return self.readout(self.cell(x))


# Name -> (model, number of states at a position, weights that reach the group).
CELLS = {
    "etrax GRU": (lambda: etrax.nn.GRUCell(I, H), 1, {"Wz", "Wh"}),
    "etrax LSTM": (lambda: etrax.nn.LSTMCell(I, H), 2, {"W"}),
    "etrax RNN": (lambda: etrax.nn.VanillaRNNCell(I, H, activation="tanh"), 1, {"W"}),
    "etrax LIF": (lambda: etrax.nn.RecurrentLIF(I, H), 2, {"W", "b", "Wrec"}),
    "etrax ALIF": (lambda: etrax.nn.RecurrentALIF(I, H), 3, {"W", "b", "Wrec"}),
    "brainstate GRU": (lambda: brainstate.nn.GRUCell(I, H), 1, None),
    "brainstate LSTM": (lambda: brainstate.nn.LSTMCell(I, H), 2, {"W"}),
    "brainstate RNN": (lambda: brainstate.nn.ValinaRNNCell(I, H, activation="tanh"), 1, {"W"}),
}


def build(name, batched, seed=0):
    """The model with random states, and an input."""
    brainstate.random.seed(seed)
    rng = np.random.RandomState(seed)
    model = CELLS[name][0]() if isinstance(name, str) else name()
    brainstate.nn.init_all_states(model, **({"batch_size": B} if batched else {}))
    for state in model.states(brainstate.ParamState).values():  # biases start at zero, which hides mistakes
        state.value = jax.tree.map(lambda w: w + 0.3 * rng.standard_normal(w.shape), state.value)
    for state in model.states(brainstate.HiddenState).values():
        noise = rng.standard_normal(state.value.shape)
        if jnp.iscomplexobj(state.value):
            noise = noise + 1j * rng.standard_normal(state.value.shape)
        state.value = state.value + 0.5 * noise
    return model, jnp.asarray(rng.standard_normal((B, I) if batched else (I,)))


@contextlib.contextmanager
def cut():
    """Within it, no gradient passes from what a `Linear` layer reads to what it gives."""
    kept = {cls: cls.update for cls in (etrax.nn.Linear, brainstate.nn.Linear)}
    affine = _neurons.affine
    _neurons.affine = lambda x, *weights: affine(lax.stop_gradient(x), *weights)
    for cls, update in kept.items():
        cls.update = lambda self, x, update=update: update(self, lax.stop_gradient(x))
    try:
        yield
    finally:
        _neurons.affine = affine
        for cls, update in kept.items():
            cls.update = update


def values(model):
    return {path: state.value for path, state in model.states().items()}


def run(model, given, x):
    """Outputs and new values of a model from given values of its states, as a pure function."""
    kept = values(model)
    try:
        with brainstate.StateTraceStack():
            for path, value in given.items():
                model.states()[path].value = value
            out = model(x)
            return out, values(model)
    finally:
        with brainstate.StateTraceStack():
            for path, value in kept.items():
                model.states()[path].value = value


def jacobian(model, x, wrt, of, diff=jax.jacrev):
    """∂(new value of state `of`)/∂(value of state `wrt`) of the cut step; `wrt` may go on inside the state's value."""
    old = values(model)
    at = next(path for path in old if wrt[: len(path)] == path)
    inner = wrt[len(at) :]

    def f(v):
        value = v if not inner else {**old[at], inner[0]: v}
        return run(model, {**old, at: value}, x)[1][of]

    with cut():
        return diff(f)(old[at] if not inner else old[at][inner[0]])


def diagonal(j, shape):
    """The entries (p, p) of a Jacobian (*shape, *shape)."""
    n = int(np.prod(shape))
    return np.diagonal(np.asarray(j).reshape(n, n)).reshape(shape)


def blocks(model, x, paths, diff=jax.jacrev):
    """∂h'[p, :]/∂h[p, :] of the cut step, (*shape, S, S)."""
    shape = values(model)[paths[0]].shape
    rows = [[diagonal(jacobian(model, x, b, a, diff), shape) for b in paths] for a in paths]
    return np.moveaxis(np.asarray(rows), (0, 1), (-2, -1))
