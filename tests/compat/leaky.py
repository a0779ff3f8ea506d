"""A model whose gradients are known, for tests of braintrace's learners."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

brainstate = pytest.importorskip("brainstate")
pytest.importorskip("braintools")

B, I, H, T = 2, 3, 4, 6
XS = jnp.asarray(np.random.RandomState(0).standard_normal((T, B, I)))


class Leaky(brainstate.nn.Module):
    """Leaky units: the influence of the input weight is known in closed form, and D-RTRL is exact."""

    def __init__(self, leak=0.8):
        super().__init__()
        self.leak = leak
        self.w = brainstate.ParamState(jnp.asarray(np.random.RandomState(1).standard_normal((I, H))))
        self.out = brainstate.ParamState(jnp.asarray(np.random.RandomState(2).standard_normal((H, 2))))

    def init_state(self, batch_size=None):
        self.h = brainstate.HiddenState(jnp.zeros((H,) if batch_size is None else (batch_size, H)))

    def reset_state(self, batch_size=None):
        self.h.value = jnp.zeros((H,) if batch_size is None else (batch_size, H))

    def update(self, x):
        self.h.value = self.leak * self.h.value + x @ self.w.value
        return jnp.tanh(self.h.value) @ self.out.value


def bptt(xs):
    """Gradients of the sum of squared outputs over a sequence, by reverse mode through all of it."""
    net = Leaky()

    def loss(params):
        def step(h, x):
            h = net.leak * h + x @ params["w",]
            return h, (jnp.tanh(h) @ params["out",]) ** 2

        return jax.lax.scan(step, jnp.zeros((*xs.shape[1:-1], H)), xs)[1].sum()

    return jax.grad(loss)({("w",): net.w.value, ("out",): net.out.value})


def assert_close(found, want):
    assert set(found) == set(want)
    for path in want:
        np.testing.assert_allclose(found[path], want[path], rtol=1e-10, atol=1e-12)
