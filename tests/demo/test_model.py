"""The network of the demo against a plain NumPy simulation of its equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demo import model


@pytest.mark.parametrize(("v", "slope"), [(-2.0, 0.0), (-0.5, 0.25), (0.25, 0.375), (1.0, 0.0)])
def test_spike_and_its_slope(v, slope):
    assert float(model.spike(jnp.asarray(v))) == (v > 0)
    assert float(jax.grad(model.spike)(jnp.asarray(v))) == pytest.approx(slope)


def test_step_is_the_simulation():
    rng = np.random.default_rng(0)
    params = {
        "w_in": rng.standard_normal((3, 5)), "w_rec": rng.standard_normal((5, 5)), "b": rng.standard_normal(5),
        "w_out": rng.standard_normal((5, 2)), "b_out": rng.standard_normal(2),
    }  # fmt: skip
    xs = rng.uniform(0, 2, (20, 4, 3))
    hidden = {k: jnp.zeros((4, 5), jnp.float64) for k in "vazs"}
    v, a, z, s = (np.zeros((4, 5)) for _ in range(4))
    spikes = 0
    for x in xs:
        hidden, output = model.step(params, hidden, x)
        v = 0.9 * v + x @ params["w_in"] + z @ params["w_rec"] + params["b"] - z
        a = 0.97 * a + z
        z = np.where(v > 1 + 0.2 * a, 1.0, 0.0)
        s = 0.95 * s + z
        spikes += z.sum()
        np.testing.assert_allclose(output, s @ params["w_out"] + params["b_out"], rtol=1e-12)
        np.testing.assert_array_equal(hidden["z"], z)
    assert 0 < spikes < 20 * 4 * 5


def test_start_values():
    params = model.weights(jax.random.key(0), inputs=400, neurons=100, classes=10)
    assert {k: a.shape for k, a in params.items()} == {
        "w_in": (400, 100), "w_rec": (100, 100), "b": (100,), "w_out": (100, 10), "b_out": (10,),
    }  # fmt: skip
    assert float(params["w_in"].std()) == pytest.approx(400**-0.5, rel=0.05)
    state = model.silence(8, 100)
    assert {a.dtype for a in jax.tree.leaves((params, state))} == {jnp.dtype("float32")}
    assert set(state) == set("vazs") and not any(a.any() for a in state.values())


def test_the_command_line_explains_it(capsys):
    """What the end of the demo tells people to type."""
    from etrax.cli import main

    assert main(["explain", model.__file__ + ":make"]) == 0
    assert "'w_rec' (100×100)" in capsys.readouterr().out
