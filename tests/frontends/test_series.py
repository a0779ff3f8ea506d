"""Norms, adapters and embeddings of Flax and Equinox before projections: exact, and the gradient is that of BPTT."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax

B, I, H, V, T = 3, 4, 5, 7, 6


def gated(gate, value, h):
    keep = jax.nn.sigmoid(gate)
    return keep * h + (1 - keep) * jnp.tanh(value)


def of_flax(by_token):
    nnx = pytest.importorskip("flax.nnx")

    class Cell(nnx.Module):
        def __init__(self, rngs):
            self.norm, self.rms = nnx.LayerNorm(I, rngs=rngs), nnx.RMSNorm(I, rngs=rngs)
            self.gate, self.value = nnx.Linear(I, H, rngs=rngs), nnx.Linear(I, H, rngs=rngs)
            if by_token:
                self.table = nnx.Embed(V, I, rngs=rngs)
            else:
                self.adapter = nnx.LoRA(I, 2, H, rngs=rngs)

        def __call__(self, h, x):
            x = self.table(x) if by_token else x
            value = self.value(self.norm(x))
            h = gated(self.gate(self.rms(x)), value if by_token else value + self.adapter(x), h)
            return h, h

    return Cell(nnx.Rngs(0)), {}


def of_equinox(by_token):
    eqx = pytest.importorskip("equinox")
    keys = jax.random.split(jax.random.key(0), 4)

    class Cell(eqx.Module):
        table: eqx.nn.Embedding
        norm: eqx.nn.LayerNorm
        gate: eqx.nn.Linear
        value: eqx.nn.Linear

        def __init__(self):
            self.table, self.norm = eqx.nn.Embedding(V if by_token else 1, I, key=keys[0]), eqx.nn.LayerNorm(I)
            self.gate, self.value = eqx.nn.Linear(I, H, key=keys[1]), eqx.nn.Linear(I, H, key=keys[2])

        def __call__(self, h, x):
            x = self.norm(self.table(x) if by_token else x)
            h = gated(self.gate(x), self.value(x), h)
            return h, h

    return Cell(), {"call": lambda cell, h, x: jax.vmap(cell)(h, x)}


@pytest.mark.parametrize("by_token", [False, True], ids=["numbers", "tokens"])
@pytest.mark.parametrize("of", [of_flax, of_equinox], ids=["flax", "equinox"])
def test_exact(of, by_token):
    model, options = of(by_token)
    draw = np.random.RandomState(0)
    x = jnp.asarray(draw.randint(V, size=(T, B)) if by_token else draw.standard_normal((T, B, I)))
    targets = jnp.asarray(draw.standard_normal((T, B, H)))
    learner = etrax.compile(model, "d_rtrl", x[0], hidden=jnp.zeros((B, H)), **options)
    assert {str(v.kind) for v in learner.report.verdicts.values()} <= {"exact", "unused"}

    def loss(output, target):
        return ((output - target) ** 2).mean()

    table = etrax.testing.compare(learner, loss, learner.params, learner.hidden, x, targets, window=2)
    table.check()
