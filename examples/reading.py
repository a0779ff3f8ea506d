"""A character model that learns while it reads: one pass over a text, an update every few characters, nothing stored.

    python examples/reading.py [FILE]

Its recurrence is gated and diagonal, so under `d_rtrl` the gradient of every character that was ever read arrives,
exactly, in a memory that does not depend on the length of the text.
"""

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import etrax

SYMBOLS = 96  # printable ASCII, and one for all others


def step(params, h, symbol):
    """How much is kept and what is added depend on the symbol; the readout sees the memory and the symbol."""
    keep = jax.nn.sigmoid(params["gate"][symbol])
    h = keep * h + (1 - keep) * params["value"][symbol]
    return h, jax.nn.gelu(h @ params["mix"] + params["now"][symbol]) @ params["out"]


def init(key, width):
    keys = jax.random.split(key, 4)
    return {
        "gate": jnp.tile(jnp.linspace(-2, 4, width), (SYMBOLS, 1)),  # memories from short to long
        "value": jax.random.normal(keys[0], (SYMBOLS, width)),
        "mix": jax.random.normal(keys[1], (width, 2 * width)) / width**0.5,
        "now": jax.random.normal(keys[2], (SYMBOLS, 2 * width)),
        "out": jax.random.normal(keys[3], (2 * width, SYMBOLS)) * 0.1,
    }


def loss(logits, following):
    return optax.softmax_cross_entropy_with_integer_labels(logits, following)


def read(text):
    """Numbers of symbols."""
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32) - 32
    return np.where((codes >= 0) & (codes < SYMBOLS - 1), codes, SYMBOLS - 1)


def main(source=None, width=128, window=16, symbols=None, parts=10, file="reading.png"):
    import matplotlib.pyplot as plt

    text = read(Path(source or argparse.__file__).read_text(encoding="utf-8"))[:symbols]  # by default, Python
    params = init(jax.random.key(0), width)
    learner = etrax.compile(step, "d_rtrl", jnp.asarray(text[0]), params=params, hidden=jnp.zeros(width))
    print(repr(learner))
    adam = optax.adam(2e-3)
    train = learner.train(adam, loss, window=window)
    opt_state, state, bits = adam.init(params), learner.init(), []
    size = (len(text) - 1) // parts
    for k in range(parts):
        now, following = text[k * size : (k + 1) * size], text[k * size + 1 : (k + 1) * size + 1]
        params, opt_state, state, losses = train(params, opt_state, state, now, following)
        bits.append(float(losses.mean() / np.log(2)))
        print(f"{(k + 1) * size:>8,} symbols read: {bits[-1]:.2f} bits a symbol, before each was learned from")
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(np.arange(1, parts + 1) * size, bits, marker="o")
    axes.set(xlabel="symbols read", ylabel="bits a symbol", title="learning while reading")
    figure.savefig(file, dpi=150)
    return bits


if __name__ == "__main__":
    main(*sys.argv[1:2])
