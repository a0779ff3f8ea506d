"""How long a model with many states at a position takes to its first gradient, against BPTT by `jax.grad`.

python -m benchmarks.first_gradient [--rule d_rtrl] [--zoo] [part of a name]

BPTT is traced, compiled and run once, and so is the rule, analysis included; JAX's compilation cache is left out. The
example of an input that the analysis is given is cut out before. A model above the bar is measured twice more: the
median counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import etrax

BAR = 4  # times BPTT
BATCH, INPUTS, NEURONS, STEPS, WINDOW = 4, 3, 8, 20, 10


class Given(NamedTuple):
    """A step, its parameters, states, inputs and targets over all steps, and the loss of a step."""

    step: Callable[..., Any]
    params: Any
    hidden: Any
    inputs: tuple[Any, ...]
    targets: Any
    loss: Callable[[Any, Any], Array]


def _squares(output: Array, target: Array) -> Array:
    return jnp.mean((output - target) ** 2)


def _given(step: Callable[..., Any], params: dict[str, Array], hidden: Any) -> Given:
    rng = np.random.RandomState(1)
    inputs = jnp.asarray(rng.standard_normal((STEPS, BATCH, INPUTS)), jnp.float32)
    targets = jnp.asarray(rng.standard_normal((STEPS, BATCH, NEURONS)), jnp.float32)
    return Given(step, params, hidden, (inputs,), targets, _squares)


def _normal(*shape: int, scale: float = 0.3) -> Array:
    return jnp.asarray(scale * np.random.RandomState(0).standard_normal(shape), jnp.float32)


def delay_line(slots: int) -> Given:
    """Neurons that read what was pushed into a line of so many slots."""

    def step(p: dict[str, Array], state: dict[str, Array], x: Array) -> tuple[dict[str, Array], Array]:
        v = 0.9 * state["v"] + jnp.tanh(state["line"][..., -1]) + x @ p["w"]
        line = jnp.concatenate([jnp.tanh(v)[..., None], state["line"][..., :-1]], axis=-1)
        return {"v": v, "line": line}, v

    hidden = {"v": jnp.zeros((BATCH, NEURONS)), "line": jnp.zeros((BATCH, NEURONS, slots))}
    return _given(step, {"w": _normal(INPUTS, NEURONS)}, hidden)


def delays_apart(slots: int) -> Given:
    """The same line with one array for each slot."""

    def step(p: dict[str, Array], state: list[Array], x: Array) -> tuple[list[Array], Array]:
        v = 0.9 * state[0] + jnp.tanh(state[-1]) + x @ p["w"]
        return [v, jnp.tanh(state[0]), *state[1:-1]], v

    return _given(step, {"w": _normal(INPUTS, NEURONS)}, [jnp.zeros((BATCH, NEURONS)) for _ in range(slots + 1)])


def coupled(states: int) -> Given:
    """Neurons of so many states that all act on each other, in one array."""
    matrix = 0.5 * jnp.eye(states) + _normal(states, states, scale=0.3 / states**0.5)

    def step(p: dict[str, Array], h: Array, x: Array) -> tuple[Array, Array]:
        drive = x @ p["w"]
        h = jnp.tanh(h @ matrix + drive[..., None])
        return h, h[..., 0]

    return _given(step, {"w": _normal(INPUTS, NEURONS)}, jnp.zeros((BATCH, NEURONS, states)))


def coupled_apart(states: int) -> Given:
    """The same with one array for each state."""
    matrix = np.asarray(0.5 * jnp.eye(states) + _normal(states, states, scale=0.3 / states**0.5))

    def step(p: dict[str, Array], h: list[Array], x: Array) -> tuple[list[Array], Array]:
        drive = x @ p["w"]
        h = [jnp.tanh(sum(float(matrix[s, t]) * h[s] for s in range(states)) + drive) for t in range(states)]
        return h, h[0]

    return _given(step, {"w": _normal(INPUTS, NEURONS)}, [jnp.zeros((BATCH, NEURONS)) for _ in range(states)])


MODELS: dict[str, Callable[[], Given]] = {
    **{f"delay line of {n} slots": (lambda n=n: delay_line(n)) for n in (10, 30, 100)},
    **{f"{n} delays in arrays apart": (lambda n=n: delays_apart(n)) for n in (10, 30)},
    **{f"{n} coupled states": (lambda n=n: coupled(n)) for n in (4, 10, 16, 36)},
    **{f"{n} coupled states in arrays apart": (lambda n=n: coupled_apart(n)) for n in (4, 10, 16)},
}


def zoo() -> Iterator[tuple[str, Callable[[], Given]]]:
    """Every row of the zoo, in float64."""
    from tests.zoo import ZOO

    jax.config.update("jax_enable_x64", True)
    for entry in ZOO.values():

        def given(entry: Any = entry) -> Given:
            m = entry()
            return Given(m.step, m.params, m.hidden, m.make_inputs(STEPS, 0), m.make_target(STEPS, 1), m.loss)

        yield entry.name, given


def seconds(f: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(f())
    return time.perf_counter() - start


def bptt(m: Given) -> Any:
    def total(params: Any) -> Array:
        def body(state: Any, xs: Any) -> tuple[Any, Array]:
            state, out = m.step(params, state, *xs[0])
            return state, m.loss(out, xs[1])

        return jax.lax.scan(body, m.hidden, (m.inputs, m.targets))[1].mean()

    return jax.jit(jax.grad(total))(m.params)


def example_of(m: Given) -> tuple[Any, ...]:
    return jax.tree.map(lambda a: a[0], m.inputs)


def learned(m: Given, rule: Any, example: tuple[Any, ...]) -> Any:
    learner = etrax.compile(m.step, rule, *example, params=m.params, hidden=m.hidden)
    inputs = m.inputs[0] if len(m.inputs) == 1 else m.inputs
    return learner.value_and_grad(m.loss, window=WINDOW)(m.params, learner.init(), inputs, m.targets)


def measured(m: Given, rule: Any, example: tuple[Any, ...]) -> tuple[float, float]:
    """Seconds of BPTT and of a rule, with nothing compiled before."""
    jax.clear_caches()
    return seconds(lambda: bptt(m)), seconds(lambda: learned(m, rule, example))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rule", default="d_rtrl")
    parser.add_argument("--zoo", action="store_true")
    parser.add_argument("part", nargs="?", default="")
    asked = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    warm = delay_line(2)
    bptt(warm), learned(warm, asked.rule, example_of(warm))
    found = []
    for name, make in zoo() if asked.zoo else MODELS.items():
        if asked.part not in name:
            continue
        m = make()
        example = example_of(m)
        plain, rule = measured(m, asked.rule, example)
        if rule > BAR * plain:
            more = [measured(m, asked.rule, example) for _ in range(2)]
            plain, rule = sorted([(plain, rule), *more], key=lambda pair: pair[1] / pair[0])[1]
        found.append(rule / plain)
        print(f"{name:44} BPTT {plain:6.2f} s   {asked.rule} {rule:6.2f} s   {found[-1]:5.1f} x", flush=True)
    if found:
        over = sum(ratio > BAR for ratio in found)
        print(f"{len(found)} models: median {median(found):.1f} x, at most {max(found):.1f} x, {over} above {BAR} x")


if __name__ == "__main__":
    main()
