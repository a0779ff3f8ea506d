"""MemoryChain: a bit is shown once, and asked for at the end of an episode of given length.

    python -m benchmarks.published.memory_chain                          into benchmarks/results/memory_chain.json
    python -m benchmarks.published.memory_chain --columns 16 --seeds 0   one column, one seed
    python -m benchmarks.published.memory_chain --page                   the table in docs/learning.md

Settings of the published table (Farr et al., 2026; fixed before any figure of ours was seen): the world of bsuite, as
gymnax has it (the time that is left, whether the bit is asked for, the bit at the first step; a reward of ±1 at the
end); a minGRU of 192 units over an MLP of 64; Q(λ) with λ 0.98 and γ 0.999; observations and rewards normalised online;
500,000 steps, ε from 1 to 0.01 over the first tenth. ObGD has α 1 and κ 2, Intentional η 0.1, AdaptiveQ η 4.6e-4. A
length counts as solved by a seed whose mean return over the last 200 episodes is above 0.5.

The MLP lies below the recurrence: it is exact under `d_rtrl(depth=…)`, and gets one step under `d_rtrl()`. The
effective step size is ‖update‖ / ‖δ z‖, the mean over the last tenth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from benchmarks.published import results

import etrax
from etrax import rl
from etrax.nn.pure import MinGRUCell

UNITS, WIDTH, STEPS, DISCOUNT, DECAY = 192, 64, 500_000, 0.999, 0.98
LENGTHS = ("16", "32", "64", "128", "256")
SOLVED, EPISODES = 0.5, 200


class Chain(NamedTuple):
    """The bit and the time of an episode."""

    bit: jax.Array
    time: jax.Array


class MemoryChain(NamedTuple):
    """The world, with `reset` and `step` as gymnax has them; an episode that ends begins again by itself."""

    length: int
    default_params: None = None

    def observe(self, state: Chain) -> jax.Array:
        asked = state.time == self.length - 1
        first = jnp.where(state.time == 0, 2.0 * state.bit - 1, 0)
        return jnp.stack([1 - state.time / self.length, asked.astype(float), first])

    def reset(self, key: jax.Array, params: None = None) -> tuple[jax.Array, Chain]:
        state = Chain(jax.random.randint(key, (), 0, 2), jnp.array(0))
        return self.observe(state), state

    def step(self, key: jax.Array, state: Chain, action: jax.Array, params: None = None) -> tuple:
        done = state.time == self.length - 1
        reward = jnp.where(done, jnp.where(action == state.bit, 1.0, -1.0), 0.0)
        fresh = self.reset(key)[1]
        after = Chain(*(jnp.where(done, a, b) for a, b in zip(fresh, Chain(state.bit, state.time + 1), strict=True)))
        return self.observe(after), after, reward, done, {}


CELL = MinGRUCell(WIDTH, UNITS)


def step(p: dict, h: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    below = jax.nn.leaky_relu(x @ p["below"] + p["b"])
    h, y = CELL.step(p["cell"], h, below)
    return h, y @ p["out"]


def start(key: jax.Array) -> dict:
    one, two, three = jax.random.split(key, 3)
    return {
        "below": jax.random.normal(one, (3, WIDTH)) / 3**0.5, "b": jnp.zeros(WIDTH), "cell": CELL.init(two),
        "out": jax.random.normal(three, (UNITS, 2)) / UNITS**0.5,
    }  # fmt: skip


class Row(NamedTuple):
    label: str
    rule: etrax.Rule
    step_size: Callable[[], Any]


def _adaptive() -> Any:
    return rl.adaptive_q(4.6e-4, decay=DISCOUNT * DECAY)


def _intentional() -> Any:
    return rl.intentional(0.1, decay=DISCOUNT * DECAY)


EXACT = etrax.d_rtrl(depth="200 MB")
ROWS = {
    "exact intentional": Row("`d_rtrl(depth=…)` (exact), Intentional", EXACT, _intentional),
    "exact adaptive": Row("`d_rtrl(depth=…)` (exact), AdaptiveQ", EXACT, _adaptive),
    "exact obgd": Row("`d_rtrl(depth=…)` (exact), ObGD", EXACT, rl.obgd),
    "d_rtrl intentional": Row("`d_rtrl`, Intentional", etrax.d_rtrl(), _intentional),
    "tbptt1 intentional": Row("`tbptt`, window 1, Intentional", etrax.tbptt(), _intentional),
    "tbptt1 adaptive": Row("`tbptt`, window 1, AdaptiveQ", etrax.tbptt(), _adaptive),
    "tbptt1 obgd": Row("`tbptt`, window 1, ObGD", etrax.tbptt(), rl.obgd),
}


def run(name: str, column: str, seeds: list[int], steps: int = STEPS) -> results.Run:
    row, world = ROWS[name], MemoryChain(int(column))
    learner = etrax.compile(step, row.rule, jnp.zeros(3), params=start(jax.random.key(0)), hidden=CELL.hidden())
    explore: Any = optax.linear_schedule(1.0, 0.01, steps // 10)
    agent = rl.q_learning(learner, row.step_size(), discount=DISCOUNT, trace_decay=DECAY, exploration=explore)
    observations, rewards = rl.normalise(), rl.scale_rewards(DISCOUNT)

    @jax.jit
    @jax.vmap
    def life(key: jax.Array) -> tuple[Any, Any]:
        state, lived = rl.live_in_gymnax(
            agent, world, steps, key, params=start(key), observations=observations, rewards=rewards
        )
        return state, (lived.reward, lived.done, lived.step_size)

    states, (reward, done, sizes) = life(jnp.stack([jax.random.key(seed) for seed in seeds]))
    ended = [np.asarray(r)[np.asarray(d)][-EPISODES:] for r, d in zip(reward, done, strict=True)]
    params = jax.tree.map(lambda a: a[0], states.params)
    return {
        "returns": [float(r.mean()) if r.size else 0.0 for r in ended], "steps": steps,
        "step_size": float(np.asarray(sizes)[:, -max(steps // 10, 1) :].mean()),
        "cosine": _cosine(learner, params, world),
    }  # fmt: skip


def _cosine(learner: etrax.Learner, params: Any, world: MemoryChain) -> list[float]:
    """Over one episode, of the error of the values of the right action at its end."""
    state, seen = Chain(jnp.array(1), jnp.array(0)), []
    for _ in range(world.length):
        seen.append(world.observe(state))
        state = state._replace(time=state.time + 1)
    at_end = jnp.arange(world.length) == world.length - 1
    meter = learner.meter(lambda q, ask: ask * (q[1] - 1) ** 2, 1, probes=16)
    key = jax.random.key(0)
    return results.interval(meter.measure(params, learner.init(params), jnp.stack(seen), at_end.astype(float), key=key))


def text(stored: results.Stored) -> str:
    lines = []
    for name in (name for name in ROWS if name in stored):
        runs = [stored[name].get(column) for column in LENGTHS]
        cells = [
            "" if run is None else f"{sum(r > SOLVED for r in run['returns'])} of {len(run['returns'])}" for run in runs
        ]
        some = [run for run in runs if run]
        sizes = ", ".join(f"{run['step_size']:.1e}" for run in some)
        steps = ", ".join(sorted({f"{run['steps']:,}" for run in some}))
        cosine = results.shown_interval(some[0]["cosine"])
        lines.append([ROWS[name].label, *cells, cosine, sizes, steps, results.minutes(some)])
    head = ["seeds that solved", *LENGTHS, "cosine", "effective step size", "steps", "minutes"]
    return results.table(head, lines)


def main() -> None:
    parser = results.arguments(__doc__, ROWS, LENGTHS)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    results.main("memory_chain", options, lambda row, column, seeds: run(row, column, seeds, options.steps), text)


if __name__ == "__main__":
    main()
