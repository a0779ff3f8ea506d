"""Products of blocks that are made of parameters are computed once per call, not once per window.

They are written inside the loop over windows, whose compiler takes out what does not change: this is held here.
"""

import re

import jax
import jax.numpy as jnp

import etrax
from etrax.runtime.blocks import POWERS

I, H, K, WINDOWS = 3, 5, 8, 4


def program(step):
    params = {"w": jnp.ones((I, H)), "a": jnp.ones(H), "angle": jnp.ones(H)}
    hidden = jnp.zeros((2, H), complex)
    learner = etrax.compile(step, "d_rtrl", jnp.ones((2, I)), params=params, hidden=hidden)
    run = learner.value_and_grad(lambda o, t: (o**2).mean(), window=K)
    x = jnp.ones((K * WINDOWS, 2, I))
    return jax.jit(run).lower(params, learner.init(), x, None).compile().as_text()


def computations(text):
    """Name → its lines; what others call are computations of their own."""
    found, name = {}, None
    for line in text.splitlines():
        head = re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        name = head[1] if head else name
        found.setdefault(name, []).append(line)
    return found


def inside_loops(text):
    """The lines of all loops, and of what these call."""
    known = computations(text)
    todo = re.findall(r"body=%?([\w.\-]+)", text)
    seen = set()
    while todo:
        name = todo.pop()
        if name not in seen and name in known:
            seen.add(name)
            todo += re.findall(r"(?:calls|body|condition|to_apply)=%?([\w.\-]+)", "\n".join(known[name]))
    return [line for name in seen for line in known[name]]


def lru(p, h, x):
    h = jnp.exp(-jnp.exp(p["a"]) + 1j * p["angle"]) * h + x @ p["w"]
    return h, h.real


def work(lines):
    return [line for line in lines if POWERS in line and re.search(r" (multiply|concatenate|dot|subtract)\(", line)]


def test_powers_are_taken_out_of_the_loop():
    text = program(lru)
    assert work(text.splitlines())
    assert not work(inside_loops(text))
