"""A T-maze, learned online by an actor and a critic: which cells and rules remember the cue of the beginning.

    python -m benchmarks.published.tmaze                            all rows; writes benchmarks/results/tmaze.json
    python -m benchmarks.published.tmaze --rows rtu --columns 10    one cell of the table
    python -m benchmarks.published.tmaze --page                     the table in docs/learning.md

Settings of the published table (sketched-rtrl; fixed before any figure of ours was seen): 64 units, 16 lanes that begin
again by themselves, 60,000, 100,000 and 150,000 steps for corridors of 10, 20 and 40; Adam 3e-4 and an update at every
step; γ 0.99; the loss −δ log π + ½ δ² − 0.01 H with δ of TD(0), the mean over lanes. Observations are one-hot of four
(either cue, corridor, junction); three actions; +4 for the turn of the cue, −0.4 for the other one, −0.1 for any other
step, and an end after 2N steps. The share of right turns is that of the last 400 episodes, looked at every 2,000 steps.
Runs are condensed in both ways of the source: the last five of these records, and those of the last fifth of the steps.
All rows have a linear readout for policy and value that starts as torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from benchmarks.published import results

import etrax
from etrax.nn.pure import MinGRUCell, RTUCell

UNITS, LANES, DISCOUNT, RATE, ENTROPY = 64, 16, 0.99, 3e-4, 0.01
STEPS = {"10": 60_000, "20": 100_000, "40": 150_000}
EVERY, EPISODES, MEASURED = 2000, 400, 200


class World(NamedTuple):
    """The place of each lane, its cue, and the steps since its episode began."""

    place: jax.Array
    cue: jax.Array
    time: jax.Array


def new_world(key: jax.Array) -> World:
    zeros = jnp.zeros(LANES, jnp.int32)
    return World(zeros, jax.random.randint(key, (LANES,), 0, 2), zeros)


def observe(world: World, length: int) -> jax.Array:
    at_end = jnp.where(world.place == length, 3, 2)
    return jax.nn.one_hot(jnp.where(world.place == 0, world.cue, at_end), 4)


def move(key: jax.Array, world: World, action: jax.Array, length: int) -> tuple[World, jax.Array, jax.Array, jax.Array]:
    """The next world, rewards, which episodes ended, and which of them by the right turn."""
    turned = (world.place == length) & (action > 0)
    right = turned & (action - 1 == world.cue)
    reward = jnp.where(right, 4.0, jnp.where(turned, -0.4, -0.1))
    place = world.place + ((world.place < length) & (action == 0))
    done = turned | (world.time + 1 >= 2 * length)
    moved = World(place, world.cue, world.time + 1)
    return World(*(jnp.where(done, a, b) for a, b in zip(new_world(key), moved, strict=True))), reward, done, right


class Model(NamedTuple):
    """`init(key)` gives parameters, `hidden` the state of all lanes, `step` one step of a cell and its readout."""

    init: Callable[[jax.Array], Any]
    hidden: Any
    step: Callable[[Any, Any, jax.Array], tuple[Any, tuple[jax.Array, jax.Array]]]


def with_readout(init: Callable, hidden: Any, step: Callable, features: int) -> Model:
    def start(key: jax.Array) -> dict:
        one, two, three = jax.random.split(key, 3)
        edge = features**-0.5
        out = jax.random.uniform(two, (features, 4), minval=-edge, maxval=edge)
        return {"cell": init(one), "out": out, "bias": jax.random.uniform(three, (4,), minval=-edge, maxval=edge)}

    def run(params: dict, h: Any, x: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        h, y = step(params["cell"], h, x)
        out = y @ params["out"] + params["bias"]
        return h, (out[..., :3], out[..., 3])

    return Model(start, hidden, run)


def tanh() -> Model:
    def init(key: jax.Array) -> dict:
        parts = jax.random.split(key)
        shapes = {"u": (4, UNITS), "w": (UNITS, UNITS)}
        edge = UNITS**-0.5
        pairs = zip(shapes.items(), parts, strict=True)
        return {name: jax.random.uniform(k, shape, minval=-edge, maxval=edge) for (name, shape), k in pairs} | {
            "b": jnp.zeros(UNITS)
        }

    def step(p: dict, h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(x @ p["u"] + h @ p["w"] + p["b"])
        return h, h

    return with_readout(init, jnp.zeros((LANES, UNITS)), step, UNITS)


def rtu() -> Model:
    """Radii between 0.9 and 0.999 and phases up to π/10, ReLU on the states."""
    cell = RTUCell(4, UNITS, activation=jax.nn.relu)

    def init(key: jax.Array) -> dict:
        rest, one, two = jax.random.split(key, 3)
        radius = jax.random.uniform(one, (UNITS,), minval=0.9, maxval=0.999)
        phase = jax.random.uniform(two, (UNITS,), minval=1e-3, maxval=np.pi / 10)
        return cell.init(rest) | {"nu_log": jnp.log(-jnp.log(radius)), "theta_log": jnp.log(phase)}

    return with_readout(init, cell.hidden(LANES), cell.step, 2 * UNITS)


def lru() -> Model:
    """The same start without ReLU: h' = λ h + √(1 − |λ|²) B x, read as [Re h, Im h]."""
    cell = RTUCell(4, UNITS, activation=lambda a: a, linear=True)
    return with_readout(lambda key: rtu().init(key)["cell"], cell.hidden(LANES), cell.step, 2 * UNITS)


def min_gru() -> Model:
    """Gates that read the input alone and begin nearly closed: a bias of −3."""
    cell = MinGRUCell(4, UNITS)

    def init(key: jax.Array) -> dict:
        params = cell.init(key)
        return params | {"b_z": params["b_z"] - 3}

    return with_readout(init, cell.hidden(LANES), cell.step, UNITS)


class Row(NamedTuple):
    label: str
    model: Callable[[], Model]
    rule: etrax.Rule


ROWS = {
    "rtu": Row("RTU, `d_rtrl` (exact)", rtu, etrax.d_rtrl()),
    "lru": Row("LRU, `d_rtrl` (exact)", lru, etrax.d_rtrl()),
    "min_gru": Row("minGRU, `d_rtrl` (exact)", min_gru, etrax.d_rtrl()),
    "snap": Row("tanh, `snap(1)`", tanh, etrax.snap(1)),
    "d_rtrl": Row("tanh, `d_rtrl`", tanh, etrax.d_rtrl()),
    "rtu_tbptt1": Row("RTU, `tbptt`, window 1", rtu, etrax.tbptt()),
    "min_gru_tbptt1": Row("minGRU, `tbptt`, window 1", min_gru, etrax.tbptt()),
}


def loss_fn(output: tuple[jax.Array, jax.Array], target: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Its gradient is that of −δ log π + ½ δ² − 0.01 H, where the value after the step is not learned from."""
    (logits, value), (action, error) = output, target
    log_policy = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log_policy, action[:, None], -1)[:, 0]
    entropy = -(jnp.exp(log_policy) * log_policy).sum(-1)
    return (-error * (chosen + value) - ENTROPY * entropy).mean()


class Life(NamedTuple):
    params: Any
    opt_state: Any
    state: etrax.LearnerState
    world: World
    fresh: jax.Array


def prepared(row: Row, length: int) -> tuple[etrax.Learner, Callable[[jax.Array], Life], Callable]:
    """The learner, how a life begins, and one step of it."""
    model, adam = row.model(), optax.adam(RATE)
    learner = etrax.compile(
        model.step, row.rule, jnp.zeros((LANES, 4)), params=model.init(jax.random.key(0)), hidden=model.hidden
    )
    gradient = learner.value_and_grad(loss_fn, 1, "sum")

    def begin(key: jax.Array) -> Life:
        params = model.init(key)
        world = new_world(jax.random.fold_in(key, 1))
        return Life(params, adam.init(params), learner.init(params, lanes=True), world, jnp.zeros(LANES, bool))

    def live(life: Life, key: jax.Array) -> tuple[Life, tuple]:
        choose, now = jax.random.split(key)
        x = observe(life.world, length)
        old = jax.tree.map(
            lambda a, h: jnp.where(life.fresh.reshape(-1, *[1] * (h.ndim - 1)), a, h), model.hidden, life.state.hidden
        )
        h, (logits, value) = model.step(life.params, old, x)
        action = jax.random.categorical(choose, logits)
        world, reward, done, right = move(now, life.world, action, length)
        _, (_, after) = model.step(life.params, h, observe(world, length))
        error = reward + jnp.where(done, 0, DISCOUNT * after) - value
        data = x, (action, error), life.fresh
        one = jax.tree.map(lambda a: a[None], data)
        (_, grads), state = gradient(life.params, life.state, one[0], one[1], None, one[2])
        updates, opt_state = adam.update(grads, life.opt_state, life.params)
        return Life(optax.apply_updates(life.params, updates), opt_state, state, world, done), (done, right, data)

    return learner, begin, live


def records(done: np.ndarray, right: np.ndarray) -> list[float]:
    """Every 2,000 steps, the share of right turns in the last 400 episodes: of one seed, (steps, lanes)."""
    rows = []
    for end in range(EVERY, len(done) + 1, EVERY):
        ended = right[:end][done[:end]][-EPISODES:]
        rows.append(round(float(ended.mean()), 4) if ended.size else 0.0)
    return rows


def run(name: str, column: str, seeds: list[int], steps: int | None = None) -> results.Run:
    """All seeds at once; the cosine over the last 200 steps of the first."""
    row, steps = ROWS[name], steps or STEPS[column]
    learner, begin, live = prepared(row, int(column))
    keys = [jax.random.key(seed) for seed in seeds]

    @partial(jax.jit, static_argnums=1)
    @partial(jax.vmap, in_axes=(0, None, 0))
    def pieces(life: Life, count: int, key: jax.Array) -> tuple[Life, tuple]:
        life, (done, right, _) = jax.lax.scan(live, life, jax.random.split(key, count))
        return life, (done, right)

    lives, rows = jax.vmap(begin)(jnp.stack(keys)), []
    for n in range(0, steps, EVERY):
        now = jnp.stack([jax.random.fold_in(key, 2 + n) for key in keys])
        lives, seen = pieces(lives, min(EVERY, steps - n), now)
        rows.append([np.asarray(a) for a in seen])
    done, right = (np.concatenate(part, 1) for part in zip(*rows, strict=True))
    first = jax.tree.map(lambda a: a[0], lives)
    _, (_, _, (xs, targets, reset)) = jax.lax.scan(live, first, jax.random.split(keys[0], MEASURED))
    meter = learner.meter(loss_fn, 1, probes=16)
    reading = meter.measure(first.params, first.state, xs, targets, None, reset, key=keys[0])
    shares = [records(*pair) for pair in zip(done, right, strict=True)]
    return {"records": shares, "steps": steps, "cosine": results.interval(reading)}


def condensed(run: results.Run) -> tuple[list[float], list[float]]:
    """By seed: the mean of the last five records, and of those in the last fifth."""
    last = max(len(run["records"][0]) // 5, 1)
    return tuple([float(np.mean(rows[-n:])) for rows in run["records"]] for n in (5, last))  # type: ignore[return-value]


PUBLISHED = {
    "RTU": (".994 (.994 ± .002)", ".811 (.831 ± .070)", ".609 (.555 ± .315)"),
    "LRU": (".909 (.912 ± .050)", ".496 (.523 ± .152)", ".082 (.052 ± .011)"),
    "exact RTRL": (".901 (.908 ± .043)", ".636 (.659 ± .157)", ".496 (.503 ± .004)"),
    "SnAp-1": (".582 (.551 ± .123)", ".498 (.498 ± .018)", ".492 (.495 ± .001)"),
    "TBPTT": (".713 (.712 ± .184)", ".272 (.314 ± .240)", ".166 (.111 ± .182)"),
}


def text(stored: results.Stored) -> str:
    lines = [[f"*{name}, published*", *cells, "", "", ""] for name, cells in PUBLISHED.items()]
    for name in (name for name in ROWS if name in stored):
        cells = [_cell(stored[name].get(column)) for column in STEPS]
        runs = list(stored[name].values())
        counts = " and ".join(sorted({str(len(run["seeds"])) for run in runs}))
        lines.append(
            [ROWS[name].label, *cells, results.shown_interval(runs[0]["cosine"]), counts, results.minutes(runs)]
        )
    return results.table(["", *(f"corridor {n}" for n in STEPS), "cosine", "seeds", "minutes"], lines)


def _cell(run: results.Run | None) -> str:
    if run is None:
        return ""
    five, fifth = condensed(run)
    return f"{results.spread([float(np.mean(five))], 3)} ({results.spread(fifth, 3)})"


if __name__ == "__main__":
    results.main("tmaze", results.arguments(__doc__, ROWS, STEPS).parse_args(), run, text)
