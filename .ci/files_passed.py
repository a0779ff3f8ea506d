"""How many files of the package a call passes through: `python .ci/files_passed.py [--list]`.

Someone who follows `etrax.compile`, or the first gradient, from beginning to end has to open so many files. Counted on
a GRU cell under `d_rtrl`: every file of which a function runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

import etrax

PACKAGE = Path(etrax.__file__).resolve().parent


def gru(params, h, x):
    both = jnp.concatenate([x, h], -1)
    z, r = jnp.split(jax.nn.sigmoid(both @ params["gates"] + params["gate_bias"]), 2, -1)
    candidate = jnp.tanh(jnp.concatenate([x, r * h], -1) @ params["candidate"] + params["bias"])
    h = (1 - z) * h + z * candidate
    return h, h @ params["readout"]


def files_of(call: Callable[[], object]) -> list[str]:
    """The files of the package of which a function runs in a call."""
    names = set()

    def note(frame, event, _):
        if event == "call":
            names.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    paths = (Path(name).resolve() for name in names)
    return sorted(str(path.relative_to(PACKAGE)) for path in paths if path.is_relative_to(PACKAGE))


def count() -> tuple[list[str], list[str]]:
    """The files that compiling passes, and those that the first gradient does."""
    shapes = {"gates": (7, 8), "gate_bias": (8,), "candidate": (7, 4), "bias": (4,), "readout": (4, 2)}
    params = {name: jnp.full(shape, 0.1) for name, shape in shapes.items()}
    hidden, inputs, targets = jnp.zeros((2, 4)), jnp.ones((6, 2, 3)), jnp.zeros((6, 2, 2))
    learners = []
    compiling = files_of(lambda: learners.append(etrax.compile(gru, "d_rtrl", inputs[0], params=params, hidden=hidden)))
    (learner,) = learners

    def loss(output, target):
        return ((output - target) ** 2).mean()

    def gradient():
        learner.value_and_grad(loss, window=3)(learner.params, learner.init(), inputs, targets)

    return compiling, files_of(gradient)


if __name__ == "__main__":
    compiling, gradient = count()
    print(f"compile passes {len(compiling)} files, the first gradient {len(gradient)}")
    if "--list" in sys.argv:
        print("\ncompile:", *compiling, "\ngradient:", *gradient, sep="\n  ")
