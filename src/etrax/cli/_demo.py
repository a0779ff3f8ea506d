"""`etrax demo`: a network that learns while a stream runs by, in a terminal and in a few seconds."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from .._compile import compile as compile_learner
from .._errors import need

WORDS = (
    "A leaky network sees a stream of random numbers and has to say at every step whether their recent, fading sum is\n"
    "positive. It is updated after every single step: nothing is stored, and nothing runs backwards in time.\n"
)
BLOCKS, STEPS, BATCH = 12, 500, 4


def step(params: dict[str, jax.Array], h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    h = jax.nn.sigmoid(params["leak"]) * h + x @ params["w"]
    return h, jnp.tanh(h @ params["mix"]) @ params["out"]


def run(tell: Callable[[str], None]) -> dict[str, float]:
    """The loss at the end, by rule."""
    optax = need("optax", "`etrax demo`", "train")
    tell(WORDS)
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "w": jax.random.normal(keys[0], (1, 32)), "leak": jnp.zeros(32),
        "mix": jax.random.normal(keys[1], (32, 32)) * 0.2, "out": jax.random.normal(keys[2], (32,)) * 0.2,
    }  # fmt: skip
    xs = jax.random.normal(keys[3], (BLOCKS * STEPS, BATCH, 1))
    sums = jax.lax.scan(lambda s, x: (0.97 * s + x, 0.97 * s + x), jnp.zeros((BATCH, 1)), xs)[1]
    answers = (sums[..., 0] > 0).astype(jnp.float32)
    loss = lambda o, y: optax.sigmoid_binary_cross_entropy(o, y).mean()  # noqa: E731
    losses_at_end = {}
    for rule in ("tbptt", "d_rtrl"):
        learner = compile_learner(step, rule, xs[0], params=params, hidden=jnp.zeros((BATCH, 32)))
        optimizer = optax.adam(3e-3)
        train = learner.train(optimizer, loss, window=1)
        p, o, s, line, last = params, optimizer.init(params), learner.init(), [], 0.0
        for block in range(BLOCKS):
            part = slice(block * STEPS, (block + 1) * STEPS)
            p, o, s, losses = train(p, o, s, xs[part], answers[part])
            last = float(losses.mean())
            line.append(f"{last:.2f}")
        losses_at_end[rule] = last
        tell(f"{rule:>7}: loss over {BLOCKS * STEPS} steps  {' '.join(line)}")
    tell(
        "\n`tbptt` carries nothing from step to step and cannot know what made the sum; `d_rtrl` carries a trace\n"
        "whose size does not grow with the stream. On your own model: `etrax explain model.py:make`."
    )
    return losses_at_end
