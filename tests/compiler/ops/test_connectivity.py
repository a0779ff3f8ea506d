"""Products with a fixed connectivity in models: verdicts, and gradients against BPTT, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax

brainevent = pytest.importorskip("brainevent")
pytestmark = pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types")

I, H, T = 4, 70, 7  # more units than are carried as one
RNG = np.random.RandomState(0)
FAN_OUT = jnp.asarray(RNG.randint(0, H, (I, 20)), jnp.int32)
RECURRENT = jnp.asarray(RNG.randint(0, H, (H, 3)), jnp.int32)


def leaky(recurrent):
    """Events from outside through fixed connections of one weight, and of a weight a synapse; perhaps recurrent."""

    def step(params, h, x):
        into = brainevent.BinaryArray(x) @ brainevent.FixedNumPerPre((params["one"], FAN_OUT), shape=(I, H))
        each = brainevent.BinaryArray(x) @ brainevent.FixedNumPerPre((params["each"], FAN_OUT), shape=(I, H))
        new = jax.nn.sigmoid(params["leak"]) * h + jnp.tanh(into + 0.3 * each)
        if recurrent:
            matrix = brainevent.CSR((params["back"], RECURRENT.reshape(-1), 3 * jnp.arange(H + 1)), shape=(H, H))
            new = new + 0.1 * (h @ matrix)
        return new, new

    params = {"one": jnp.full(1, 0.3), "each": jnp.asarray(RNG.randn(I, 20)), "leak": jnp.asarray(RNG.randn(H))}
    return step, params | ({"back": jnp.full(1, 0.1)} if recurrent else {})


INPUTS = jnp.asarray(RNG.rand(T, I) < 0.5, float)
TARGETS = jnp.asarray(RNG.randn(T, H))


def loss(y, target):
    return jnp.mean((y - target) ** 2)


def bptt(step, params):
    """By `jax.grad` over `lax.scan`."""

    def total(params):
        _, ys = jax.lax.scan(lambda h, x: step(params, h, x), jnp.zeros(H), INPUTS)
        return jnp.mean(jax.vmap(loss)(ys, TARGETS))

    return jax.jit(jax.grad(total))(params)


@pytest.fixture(scope="module", params=[False, True], ids=["from outside", "recurrent"])
def learned(request):
    step, params = leaky(request.param)
    return request.param, params, etrax.compile(step, "d_rtrl", INPUTS[0], params=params, hidden=jnp.zeros(H)), step


def test_verdicts(learned):
    recurrent, params, learner, _ = learned
    kinds = {path[0]: v.kind for path, v in learner.report.verdicts.items()}
    assert kinds == dict.fromkeys(params, "approximate" if recurrent else "exact")


def test_gradients(learned):
    recurrent, params, learner, step = learned
    want = bptt(step, params)
    for window in (1, 3):
        (_, got), _ = learner.value_and_grad(loss, window=window)(params, learner.init(), INPUTS, TARGETS)
        for name in params:
            error = np.abs(np.asarray(got[name] - want[name])).max() / np.abs(np.asarray(want[name])).max()
            # What is not carried is small here, and is not nothing.
            assert error < 1e-11 if not recurrent else 1e-6 < error < 0.5, (name, error)


def test_a_missing_back_end_is_named(monkeypatch):
    """When the model is compiled: what cannot be computed, and what to install or set."""

    def no_kernel(eqn, values):
        raise ModuleNotFoundError("No module named 'numba'")

    few = FAN_OUT[:, :7]

    def step(params, h, x):
        h = 0.9 * h + brainevent.BinaryArray(x) @ brainevent.FixedNumPerPre((params, few), shape=(I, H))
        return h, h

    monkeypatch.setattr("etrax.compiler.ops._base.run_equation", no_kernel)
    with pytest.raises(etrax.CompilationError, match=r"`ell_binary_matvec`.*\n.*pip install numba"):
        etrax.compile(step, "d_rtrl", INPUTS[0], params=jnp.ones(1), hidden=jnp.zeros(H))
