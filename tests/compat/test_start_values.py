"""Cells and layers start as braintrace's do: number by number where it is installed, by their moments everywhere."""

from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

brainstate = pytest.importorskip("brainstate")
unit = pytest.importorskip("brainunit")
pytest.importorskip("braintools")
from etrax._install import install_command  # noqa: E402
from etrax.compat import braintrace  # noqa: E402

I, H = 60, 50
ARGUMENTS: dict[str, tuple] = {
    **dict.fromkeys(
        ("ValinaRNNCell", "GRUCell", "MGUCell", "LSTMCell", "URLSTMCell", "MinimalRNNCell", "MiniGRU", "MiniLSTM",
         "CFNCell", "LRUCell", "Linear", "ScaledWSLinear", "SignedWLinear", "LeakyRateReadout", "Embedding"),
        (I, H),
    ),
    "GroupedLinear": (3, I, H),
    "LoRA": (I, 5, H),
    "Conv1d": ((8, 12), 20, 3),
    "Conv2d": ((8, 8, 12), 20, 3),
    "Conv3d": ((4, 4, 4, 12), 20, 3),
}  # fmt: skip
INPUTS = {
    "Embedding": jnp.arange(4),
    "GroupedLinear": jnp.ones((4, 3, I)),
    "Conv1d": jnp.ones((4, 8, 12)),
    "Conv2d": jnp.ones((4, 8, 8, 12)),
    "Conv3d": jnp.ones((4, 4, 4, 4, 12)),
}
# Deviations of matrices whose entries are drawn one by one; `orthogonal` ones have orthonormal rows or columns.
ORTHOGONAL = ("GRUCell", "MGUCell", "CFNCell", "MinimalRNNCell", "MiniGRU", "MiniLSTM")
XAVIER = ("ValinaRNNCell", "LSTMCell", "URLSTMCell")


def made(nn, name: str, seed: int):
    brainstate.random.seed(seed)
    with brainstate.environ.context(dt=1.0 * unit.ms):
        module = getattr(nn, name)(*ARGUMENTS[name])
        brainstate.nn.init_all_states(module, batch_size=4)
        x = INPUTS.get(name, jnp.asarray(np.random.RandomState(0).standard_normal((4, I))))
        start = {path: state.value for path, state in module.states().items()}
        return start, module(x)


@pytest.mark.skipif(
    find_spec("braintrace") is None, reason=f"braintrace is not installed: {install_command('compare')}"
)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_seed_gives_the_weights_and_the_output_of_braintrace(name):
    import braintrace as peer

    (theirs, y_theirs), (ours, y_ours) = (made(nn, name, 3) for nn in (peer.nn, braintrace.nn))
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves((ours, y_ours)), jax.tree.leaves((theirs, y_theirs)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def matrices(name: str) -> list[np.ndarray]:
    leaves = jax.tree.leaves(made(braintrace.nn, name, 0)[0])
    return [np.asarray(leaf) for leaf in leaves if leaf.ndim == 2 and 4 not in leaf.shape]


@pytest.mark.parametrize("name", ORTHOGONAL)
def test_matrices_of_these_cells_are_orthogonal(name):
    found = matrices(name)
    assert found
    for w in found:
        wide = w if w.shape[0] < w.shape[1] else w.T
        np.testing.assert_allclose(wide @ wide.T, np.eye(len(wide)), atol=1e-4)


@pytest.mark.parametrize("name", XAVIER)
def test_matrices_of_these_cells_have_the_deviation_of_xavier(name):
    found = matrices(name)
    assert found
    for w in found:
        assert abs(w.mean()) < 0.01
        assert w.std() == pytest.approx((2 / sum(w.shape)) ** 0.5, rel=0.05)


def test_the_linear_recurrent_unit_starts_on_its_ring_with_products_of_variance_one():
    """x W has variance one for x of variance one; |λ|² is uniform on the ring, and e^γ = √(1 − |λ|²)."""
    brainstate.random.seed(0)
    cell = braintrace.nn.LRUCell(80, 2000, r_min=0.4, r_max=0.9, max_phase=1.5)
    for name, inputs in (("B_re", 80), ("B_im", 80), ("C_re", 2000), ("C_im", 2000)):
        w = getattr(cell, name).weight.value["weight"]
        assert w.shape[0] == inputs
        assert abs(w.mean()) < 0.01 * inputs**-0.5
        assert w.std() == pytest.approx(inputs**-0.5, rel=0.02)
    squared = np.exp(-2 * np.exp(cell.nu_log.value))
    np.testing.assert_allclose(np.quantile(squared, [0, 0.5, 1]), [0.16, (0.16 + 0.81) / 2, 0.81], atol=0.02)
    np.testing.assert_allclose(np.exp(2 * cell.gamma_log.value), 1 - squared, rtol=1e-4)
    phase = np.exp(cell.theta_log.value)
    assert phase.min() > 0 and phase.max() < 1.5
    assert phase.mean() == pytest.approx(0.75, rel=0.05)
    assert float(cell.D.value.std()) == pytest.approx(1, rel=0.2)
