"""Every cell against a few lines of numpy, in float64: one row of `CELLS` a cell."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

brainstate = pytest.importorskip("brainstate")

from etrax import nn  # noqa: E402
from etrax._install import install_advice  # noqa: E402

T, B, N, M = 7, 3, 4, 5
SPIKING = {"LIF", "ALIF", "RecurrentLIF", "RecurrentALIF"}


@pytest.fixture(autouse=True)
def float64():
    before = jax.config.jax_enable_x64
    with brainstate.environ.context(precision=64), jax.numpy_dtype_promotion("strict"):
        brainstate.random.seed(0)
        yield
    jax.config.update("jax_enable_x64", before)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Numbers:
    """The parameters of a cell as numpy arrays: `p("W", x)` applies an affine map, `p["D"]` reads an array."""

    def __init__(self, cell):
        self.values = {
            path: jax.tree.map(np.asarray, s.value) for path, s in cell.states(brainstate.ParamState).items()
        }

    def __call__(self, layer, *inputs):
        if (layer,) in self.values:  # a cell with a pure definition
            bias = self.values.get(("b",), 0.0) if layer == "W" else 0.0
            return np.concatenate(inputs, axis=-1) @ self.values[(layer,)] + bias
        values = self.values[(layer, "weight")]
        return np.concatenate(inputs, axis=-1) @ values["weight"] + values.get("bias", 0.0)

    def __getitem__(self, name):
        return self.values[(name,)]


# Each reference maps (parameters, states, x) to the new states and the output.


def vanilla(p, s, x):
    h = np.maximum(0, p("W", x, s["h"]))
    return {"h": h}, h


def minimal(p, s, x):
    z = np.tanh(p("Wx", x))
    u = sigmoid(p("Wu", z, s["h"]))
    h = u * s["h"] + (1 - u) * z
    return {"h": h}, h


def gru(p, s, x):
    z, r = sigmoid(p("Wz", x, s["h"])), sigmoid(p("Wr", x, s["h"]))
    h = (1 - z) * s["h"] + z * np.tanh(p("Wh", x, r * s["h"]))
    return {"h": h}, h


def mgu(p, s, x):
    f = sigmoid(p("Wf", x, s["h"]))
    h = (1 - f) * s["h"] + f * np.tanh(p("Wh", x, f * s["h"]))
    return {"h": h}, h


def mini_gru(p, s, x):
    z = sigmoid(p("Wz", x, s["h"]))
    h = (1 - z) * s["h"] + z * p("Wx", x)
    return {"h": h}, h


def cfn(p, s, x):
    f, i = sigmoid(p("Wf", x, s["h"])), sigmoid(p("Wi", x, s["h"]))
    h = f * np.tanh(s["h"]) + i * np.tanh(p("Wh", x))
    return {"h": h}, h


def lstm(p, s, x):
    y = p("W", x, s["h"])
    i, g, f, o = (y[..., k * M : (k + 1) * M] for k in range(4))
    c = sigmoid(f + 1) * s["c"] + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return {"c": c, "h": h}, h


def urlstm(p, s, x):
    y = p("W", x, s["h"])
    f, r, u, o = (y[..., k * M : (k + 1) * M] for k in range(4))
    f, r = sigmoid(f + p["bias"]), sigmoid(r - p["bias"])
    # The refine gate interpolates between f^2 and 1 - (1 - f)^2.
    g = (1 - r) * f**2 + r * (1 - (1 - f) ** 2)
    c = g * s["c"] + (1 - g) * np.tanh(u)
    h = sigmoid(o) * np.tanh(c)
    return {"c": c, "h": h}, h


def mini_lstm(p, s, x):
    h = sigmoid(p("Wf", x, s["h"])) * s["h"] + sigmoid(p("Wi", x, s["h"])) * p("Wx", x)
    return {"h": h}, h


def lru(p, s, x):
    decay = np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["theta_log"]))
    h = decay * s["h"] + np.exp(p["gamma_log"]) * (x @ (p["B_re"] + 1j * p["B_im"]))
    return {"h": h}, (h @ (p["C_re"] + 1j * p["C_im"])).real + p["D"] * x


def integrate_and_fire(recurrent, adaptive):
    def step(p, s, x):
        v = np.exp(-1 / 20) * s["v"] + p("W", x) - s["z"] + (p("Wrec", s["z"]) if recurrent else 0.0)
        if not adaptive:
            z = (v > 1).astype(float)
            return {"v": v, "z": z}, z
        a = np.exp(-1 / 200) * s["a"] + s["z"]
        z = (v > 1 + 0.17 * a).astype(float)
        return {"v": v, "a": a, "z": z}, z

    return step


def leaky(p, s, x):
    r = np.exp(-1 / 20) * s["r"] + p("W", x)
    return {"r": r}, r


def linear(p, s, x):
    return {}, p("W", x)


class Row(NamedTuple):
    make: Callable
    reference: Callable
    n_out: int = M
    parameters: int = 2  # leaves


class AffineMap(brainstate.nn.Module):
    """`Linear` under the name by which the references call it, with the state methods of a cell."""

    def __init__(self, n, m):
        super().__init__()
        self.W = nn.Linear(n, m)

    def init_state(self, batch_size=None, **kwargs): ...

    reset_state = init_state

    def update(self, x):
        return self.W(x)


CELLS = {
    "VanillaRNNCell": Row(nn.VanillaRNNCell, vanilla),
    "MinimalRNNCell": Row(nn.MinimalRNNCell, minimal, parameters=4),
    "GRUCell": Row(nn.GRUCell, gru, parameters=6),
    "MGUCell": Row(nn.MGUCell, mgu, parameters=4),
    "MiniGRU": Row(nn.MiniGRU, mini_gru, parameters=4),
    "CFNCell": Row(nn.CFNCell, cfn, parameters=6),
    "LSTMCell": Row(nn.LSTMCell, lstm),
    "URLSTMCell": Row(nn.URLSTMCell, urlstm),
    "MiniLSTM": Row(nn.MiniLSTM, mini_lstm, parameters=6),
    "LRUCell": Row(nn.LRUCell, lru, n_out=N, parameters=8),
    "LIF": Row(nn.LIF, integrate_and_fire(False, False)),
    "ALIF": Row(nn.ALIF, integrate_and_fire(False, True)),
    "RecurrentLIF": Row(nn.RecurrentLIF, integrate_and_fire(True, False), parameters=3),
    "RecurrentALIF": Row(nn.RecurrentALIF, integrate_and_fire(True, True), parameters=3),
    "LeakyReadout": Row(nn.LeakyReadout, leaky),
    "Linear": Row(AffineMap, linear),
}
every_cell = pytest.mark.parametrize("name", CELLS)


def inputs(*batch):
    return np.random.default_rng(1).normal(size=(T, *batch, N))


def hidden(cell):
    return {path[-1]: np.asarray(s.value) for path, s in cell.states(brainstate.HiddenState).items()}


def run(cell, xs):
    return np.stack([cell(x) for x in jnp.asarray(xs)])


def scan(cell, xs):
    """The same as one `lax.scan`, which refuses a state that changes shape or dtype."""
    return brainstate.transform.for_loop(cell, jnp.asarray(xs))


@every_cell
@pytest.mark.parametrize("batch", [(), (1,), (B,)], ids=["unbatched", "batch 1", "batch 3"])
def test_equals_its_equations(name, batch):
    row = CELLS[name]
    cell = row.make(N, M)
    cell.init_state(*batch)
    p, states, xs = Numbers(cell), hidden(cell), inputs(*batch)
    outputs = run(cell, xs)
    assert outputs.shape == (T, *batch, row.n_out) and outputs.dtype == np.float64

    expected = []
    for x in xs:
        states, y = row.reference(p, states, x)
        expected.append(y)
    np.testing.assert_allclose(outputs, np.stack(expected), rtol=1e-12, atol=1e-12)

    after = hidden(cell)
    assert after.keys() == states.keys()
    for key, value in states.items():
        assert after[key].shape == (*batch, M)
        np.testing.assert_allclose(after[key], value, rtol=1e-12, atol=1e-12, err_msg=key)
    if name in SPIKING:
        assert 0 < outputs.mean() < 1 and set(np.unique(outputs)) == {0.0, 1.0}


@every_cell
def test_backpropagation_reaches_every_parameter(name):
    row = CELLS[name]
    cell = row.make(N, M)
    cell.init_state(B)
    xs, weights = jnp.asarray(inputs(B)), jnp.asarray(np.random.default_rng(2).normal(size=row.n_out))
    params = cell.states(brainstate.ParamState)
    grads = brainstate.transform.grad(lambda: jnp.sum(scan(cell, xs) @ weights), params)()
    leaves = jax.tree_util.tree_leaves_with_path(dict(grads))
    assert len(leaves) == row.parameters
    for path, leaf in leaves:
        assert leaf.dtype == np.float64, path
        assert np.isfinite(leaf).all() and np.any(np.asarray(leaf) != 0), path


@every_cell
def test_batch_equals_its_samples(name):
    row = CELLS[name]
    cell, xs = row.make(N, M), inputs(B)
    cell.init_state(B)
    batched = run(cell, xs)
    samples = []
    for b in range(B):
        cell.init_state()
        samples.append(run(cell, xs[:, b]))
    np.testing.assert_allclose(batched, np.stack(samples, axis=1), rtol=1e-12, atol=1e-12)
    if name in SPIKING:
        assert batched.any()


@every_cell
@pytest.mark.parametrize("bits", [32, 64])
def test_states_keep_the_precision_of_the_parameters(name, bits):
    row = CELLS[name]
    with brainstate.environ.context(precision=bits):
        cell = row.make(N, M)
    # The states are made and run under another precision than the parameters.
    with brainstate.environ.context(precision=96 - bits):
        jax.config.update("jax_enable_x64", True)  # which precision 32 has switched off
        cell.init_state(B)
        before = {k: v.dtype for k, v in hidden(cell).items()}
        outputs = scan(cell, inputs(B).astype(f"float{bits}"))
    assert outputs.dtype == f"float{bits}"
    assert {k: v.dtype for k, v in hidden(cell).items()} == before
    kinds = {"LRUCell": f"complex{2 * bits}"}
    assert all(dtype == kinds.get(name, f"float{bits}") for dtype in before.values())


@every_cell
def test_reset_starts_over(name):
    row = CELLS[name]
    cell, xs = row.make(N, M), inputs(B)
    cell.init_state(B)
    first = run(cell, xs)
    cell.reset_state(B)
    np.testing.assert_array_equal(first, run(cell, xs))
    cell.reset_state()
    assert all(value.shape == (M,) for value in hidden(cell).values())


def test_traces_once():
    cell, traces = nn.GRUCell(N, M), []
    cell.init_state()

    @brainstate.transform.jit
    def step(x):
        traces.append(x)
        return cell(x)

    for x in jnp.asarray(inputs()):
        step(x)
    assert len(traces) == 1


def test_surrogate_is_a_triangle():
    x = jnp.linspace(-2.0, 2.0, 9)
    slope = jax.vmap(jax.grad(nn.spike), in_axes=(0, None))(x, 0.3)
    np.testing.assert_allclose(slope, 0.3 * np.maximum(0, 1 - np.abs(np.asarray(x))), atol=1e-15)
    np.testing.assert_array_equal(nn.spike(x), np.asarray(x) > 0)


def test_spelling_alias():
    assert nn.ValinaRNNCell is nn.VanillaRNNCell


def test_initial_values_may_be_numbers_arrays_or_functions():
    for start in (0.5, np.full(M, 0.5), lambda shape: jnp.full(shape, 0.5)):
        cell = nn.GRUCell(N, M, state_init=start, b_init=1.0)
        cell.init_state(B)
        np.testing.assert_array_equal(cell.h.value, np.full((B, M), 0.5))
        np.testing.assert_array_equal(cell.Wz.weight.value["bias"], np.ones(M))


def test_leading_feature_axes_are_kept():
    cell = nn.GRUCell((2, N), (2, M))
    cell.init_state(B)
    assert cell(jnp.ones((B, 2, N))).shape == (B, 2, M)


@pytest.mark.parametrize("units", [1, 2])
def test_uniform_gates_of_few_units_are_finite(units):
    np.testing.assert_array_equal(nn.URLSTMCell(N, units).bias.value, np.zeros(units))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.GRUCell(N, M, activation="tanhh"), "`activation` is 'tanhh'"),
        (lambda: nn.GRUCell((2, N), (3, M)), "`GRUCell` maps the last axis only"),
        (lambda: nn.LRUCell(N, M, r_min=0.9, r_max=0.5), "`LRUCell` needs 0 <= `r_min`"),
    ],
)
def test_errors_say_what_to_do(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["GRUCell", "LIF"])
def test_missing_brainstate_is_named(name):
    """Only a cell that is a brainstate module needs it."""
    code = f"import sys; sys.modules['brainstate'] = None; from etrax import nn; nn.pure.LIF(1, 2); nn.{name}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert f"needs brainstate, which is not installed: {install_advice('brainstate')}." in result.stderr


POSITIONAL = {
    name: ("w_init", "b_init", "state_init", "activation")
    for name in ("GRUCell", "MGUCell", "LSTMCell", "CFNCell", "MinimalRNNCell")
} | {
    "VanillaRNNCell": ("state_init", "w_init", "b_init", "activation"),
    "URLSTMCell": ("w_init", "state_init", "activation"),
    "MiniGRU": ("w_init", "b_init", "state_init"),
    "MiniLSTM": ("w_init", "b_init", "state_init"),
    "Linear": ("w_init", "b_init"),
}


@pytest.mark.parametrize("name", list(POSITIONAL))
def test_initialisers_by_position(name):
    """In the order of the layer of that name in `brainstate.nn`, if it has one."""
    given = {"w_init": 0.25, "b_init": 0.5, "state_init": 0.75, "activation": "sigmoid"}
    order = POSITIONAL[name]
    by_position = getattr(nn, name)(N, M, *(given[k] for k in order))
    by_name = getattr(nn, name)(N, M, **{k: given[k] for k in order})
    theirs = getattr(brainstate.nn, {"VanillaRNNCell": "ValinaRNNCell"}.get(name, name), None)
    if theirs is not None:
        taken = list(inspect.signature(theirs.__init__).parameters)[3:]
        assert tuple(taken[: len(order)]) == order
    for layer in (by_position, by_name):
        brainstate.nn.init_all_states(layer)
    if name != "URLSTMCell":  # its bias is random unless it is given
        for a, b in zip(by_position.states().values(), by_name.states().values(), strict=True):
            jax.tree.map(np.testing.assert_array_equal, a.value, b.value)
    x = jnp.ones(N)
    assert np.isfinite(by_position(x)).all()
    if name != "Linear":
        assert (by_position.states(brainstate.HiddenState)["h",].value != 0.75).any()
