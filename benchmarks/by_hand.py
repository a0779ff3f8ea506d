"""Online learners as a careful expert writes them for one cell: each trace is moved and read in one pass, no more.

    ε ← D ε + u ⊗ F        θ ← θ − η (∂ℓ_t/∂θ|direct + ∂ℓ_t/∂h_t · ε)

Each is exact: with parameters held, its gradients sum to those of BPTT. Beside them runs `learner.train(window=1)` with
SGD on the same cell, as a user would write it.

python -m benchmarks.by_hand             all cells, both ways, in turns
python -m benchmarks.by_hand mingru      those whose names begin so
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from benchmarks.rivals import Program, Rival
from benchmarks.workload import F32, PLAIN, Array, Ops, Tree, Workload, gaussian, loss, matrix, spike
from jax import lax

import etrax
from benchmarks import lru

RATE = 1e-3
# (parameters, rates, hidden states, traces, input, target) -> gradients, hidden states, traces and loss of one step
Advance = Callable[[Tree, Tree, Tree, Tree, Array, Array], tuple[Tree, Tree, Tree, Array]]


class Tight(NamedTuple):
    """A cell and its learner by hand: the traces before the first step, and one step of learning.

    `rates` are what the recurrence makes of its parameters alone (λ). They are carried from step to step: written where
    they are used, XLA computes them again for every element of a trace. Etrax runs beside it with `rule`.
    """

    workload: Workload
    traces: Tree
    advance: Advance
    rates: Callable[[Tree], Tree] = lambda params: {}
    rule: str = "d_rtrl"


def _loss_and_error(output: Array, target: Array) -> tuple[Array, Array]:
    """The loss of one step, and its derivative by the output."""
    error = output - target
    return jnp.mean(error**2), error * (2 / error.size)


def _unbatched(features: int, outputs: int) -> Callable[[int], tuple[Array, Array]]:
    def data(steps: int) -> tuple[Array, Array]:
        inputs, targets = gaussian(1, features, outputs)(steps)
        return inputs[:, 0], targets[:, 0]

    return data


def _weight(key: Array, units: int, features: int, weight_first: bool) -> Array:
    """Of a product W @ x, which has a row for each unit, or x @ W, which has a column."""
    w = matrix(key, features, units)
    return w.T if weight_first else w


class _Order(NamedTuple):
    """How a weight of (units, features) lies: W @ x, or transposed for x @ W."""

    weight_first: bool

    def product(self, w: Array, x: Array) -> Array:
        return w @ x if self.weight_first else x @ w

    def by_unit(self, a: Array) -> Array:
        return a[:, None] if self.weight_first else a

    def by_input(self, x: Array) -> Array:
        return x if self.weight_first else x[:, None]


def mingru(units: int, features: int, weight_first: bool, outputs: int = 8) -> Tight:
    """h' = (1 − z) h + z c with z = σ(W_z x + b_z), c = W_c x + b_c; y = h' W_out."""
    order, keys = _Order(weight_first), jax.random.split(jax.random.key(0), 3)
    weights = {k: _weight(key, units, features, weight_first) for k, key in zip(("wz", "wc"), keys[:2], strict=True)}
    biases = {k: jnp.zeros(units, F32) for k in ("bz", "bc")}
    params = {**weights, **biases, "out": _weight(keys[2], outputs, units, weight_first)}

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        z = jax.nn.sigmoid(order.product(p["wz"], x) + p["bz"])
        c = order.product(p["wc"], x) + p["bc"]
        h = (1 - z) * state["h"] + z * c
        return {"h": h}, order.product(p["out"], h)

    def advance(p: Tree, rates: Tree, state: Tree, e: Tree, x: Array, target: Array) -> tuple[Tree, Tree, Tree, Array]:
        z = jax.nn.sigmoid(order.product(p["wz"], x) + p["bz"])
        c = order.product(p["wc"], x) + p["bc"]
        old = state["h"]
        h, keep, onto = (1 - z) * old + z * c, 1 - z, {"z": (c - old) * z * (1 - z), "c": z}
        e = {
            **{
                f"w{k}": order.by_unit(keep) * e[f"w{k}"] + order.by_unit(f) * order.by_input(x)
                for k, f in onto.items()
            },
            **{f"b{k}": keep * e[f"b{k}"] + f for k, f in onto.items()},
        }
        value, error = _loss_and_error(order.product(p["out"], h), target)
        g = error @ p["out"] if weight_first else p["out"] @ error
        grads = {k: (order.by_unit(g) if k[0] == "w" else g) * e[k] for k in e}
        return {**grads, "out": order.by_unit(error) * order.by_input(h)}, {"h": h}, e, value

    workload = Workload(step, params, {"h": jnp.zeros(units, F32)}, _unbatched(features, outputs), 1, 0)
    return Tight(workload, jax.tree.map(jnp.zeros_like, {**weights, **biases}), advance)


def rtu(units: int, features: int, weight_first: bool, outputs: int = 8) -> Tight:
    """Recurrent trace units (Elelimy et al., 2024): a complex diagonal recurrence by its real and imaginary parts.

    h' = λ h + γ (W_r + i W_i) x, λ = exp(−exp ν + i exp θ), γ = √(1 − |λ|²), y = relu([Re h', Im h']) W_out.
    One complex trace serves both weights: ∂h/∂W_i = i ∂h/∂W_r.
    """
    order, keys = _Order(weight_first), jax.random.split(jax.random.key(0), 5)
    params = {
        "nu": jnp.log(-jnp.log(jax.random.uniform(keys[0], (units,), F32, 0.9, 0.999))),
        "theta": jnp.log(jax.random.uniform(keys[1], (units,), F32, 0.01, 3.0)),
        "w_re": _weight(keys[2], units, features, weight_first),
        "w_im": _weight(keys[3], units, features, weight_first),
        "out": _weight(keys[4], outputs, 2 * units, weight_first),
    }

    def recurrence(p: Tree) -> Tree:
        size, angle = jnp.exp(-jnp.exp(p["nu"])), jnp.exp(p["theta"])
        return {"re": size * jnp.cos(angle), "im": size * jnp.sin(angle), "gamma": jnp.sqrt(1 - size**2)}

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        a, b, gamma = recurrence(p).values()
        h_re = a * state["re"] - b * state["im"] + gamma * order.product(p["w_re"], x)
        h_im = b * state["re"] + a * state["im"] + gamma * order.product(p["w_im"], x)
        return {"re": h_re, "im": h_im}, order.product(p["out"], jax.nn.relu(jnp.concatenate([h_re, h_im])))

    def advance(p: Tree, rates: Tree, state: Tree, e: Tree, x: Array, target: Array) -> tuple[Tree, Tree, Tree, Array]:
        a, b, gamma = rates["re"], rates["im"], rates["gamma"]
        re, im = state["re"], state["im"]
        u_re, u_im = order.product(p["w_re"], x), order.product(p["w_im"], x)
        h_re, h_im = a * re - b * im + gamma * u_re, b * re + a * im + gamma * u_im

        # dλ/dν = −exp(ν) λ, dλ/dθ = i exp(θ) λ; dγ/dν = |λ|² exp(ν) / γ.
        decay, turn = -jnp.exp(p["nu"]), jnp.exp(p["theta"])
        d_gamma = -decay * (1 - gamma**2) / gamma
        turned_re, turned_im = a * re - b * im, b * re + a * im  # λ h

        def moved(name: str, more_re: Array, more_im: Array, keep: Sequence[Array]) -> Tree:
            old_re, old_im, (p_re, p_im) = e[f"{name}_re"], e[f"{name}_im"], keep
            new_re = p_re * old_re - p_im * old_im + more_re
            return {f"{name}_re": new_re, f"{name}_im": p_im * old_re + p_re * old_im + more_im}

        drive = order.by_unit(gamma) * order.by_input(x)
        e = {
            **moved("w", drive, jnp.zeros_like(drive), (order.by_unit(a), order.by_unit(b))),
            **moved("nu", decay * turned_re + d_gamma * u_re, decay * turned_im + d_gamma * u_im, (a, b)),
            **moved("theta", -turn * turned_im, turn * turned_re, (a, b)),
        }
        shown = jax.nn.relu(jnp.concatenate([h_re, h_im]))
        value, error = _loss_and_error(order.product(p["out"], shown), target)
        g = (error @ p["out"] if weight_first else p["out"] @ error) * (shown > 0)
        g_re, g_im = jnp.split(g, 2)
        w_re, w_im = order.by_unit(g_re), order.by_unit(g_im)
        grads = {
            "nu": g_re * e["nu_re"] + g_im * e["nu_im"],
            "theta": g_re * e["theta_re"] + g_im * e["theta_im"],
            "w_re": w_re * e["w_re"] + w_im * e["w_im"],
            "w_im": w_im * e["w_re"] - w_re * e["w_im"],
            "out": order.by_unit(error) * order.by_input(shown),
        }
        return grads, {"re": h_re, "im": h_im}, e, value

    small = {f"{k}_{part}": jnp.zeros(units, F32) for k in ("nu", "theta") for part in ("re", "im")}
    large = {f"w_{part}": jnp.zeros_like(params["w_re"]) for part in ("re", "im")}
    hidden = {"re": jnp.zeros(units, F32), "im": jnp.zeros(units, F32)}
    workload = Workload(step, params, hidden, _unbatched(features, outputs), 1, 0)
    return Tight(workload, {**small, **large}, advance, recurrence)


def lru_tight(batch: int, units: int, features: int = 64) -> Tight:
    """The linear recurrent unit of `lru.py`, whose real and imaginary input weights share one complex trace."""
    workload = lru.lru(batch, units, features)

    def recurrence(p: Tree) -> Tree:
        return {"lambda": jnp.exp(lax.complex(-jnp.exp(p["nu"]), jnp.exp(p["theta"]))), "gamma": jnp.exp(p["gamma"])}

    def advance(p: Tree, rates: Tree, state: Tree, e: Tree, x: Array, target: Array) -> tuple[Tree, Tree, Tree, Array]:
        lam, gamma = rates["lambda"], rates["gamma"]
        a, b, turned = lam.real, lam.imag, lam * state["h"]
        drive = gamma * lax.complex(x @ p["b_re"], x @ p["b_im"])
        h = turned + drive
        e = {
            "nu": lam * e["nu"] - jnp.exp(p["nu"]) * turned,
            "theta": lam * e["theta"] + 1j * jnp.exp(p["theta"]) * turned,
            "gamma": lam * e["gamma"] + drive,
            "re": a * e["re"] - b * e["im"] + gamma * x[:, :, None],
            "im": b * e["re"] + a * e["im"],
        }
        value, error = _loss_and_error(h.real @ p["c_re"] - h.imag @ p["c_im"] + x * p["d"], target)
        g_re, g_im = error @ p["c_re"].T, -error @ p["c_im"].T

        # A sum of samples, written out: a contraction of large traces takes longer.
        def over_samples(*pairs: tuple[Array, Array]) -> Array:
            return sum(g[i] * trace[i] for i in range(x.shape[0]) for g, trace in pairs)  # type: ignore[return-value]

        grads = {
            **{k: jnp.sum(g_re * e[k].real + g_im * e[k].imag, 0) for k in ("nu", "theta", "gamma")},
            "b_re": over_samples((g_re, e["re"]), (g_im, e["im"])),
            "b_im": over_samples((g_im, e["re"]), (-g_re, e["im"])),
            "c_re": h.real.T @ error,
            "c_im": -h.imag.T @ error,
            "d": jnp.sum(x * error, 0),
        }
        return grads, {"h": h}, e, value

    per_unit = {k: jnp.zeros((batch, units), jnp.complex64) for k in ("nu", "theta", "gamma")}
    per_weight = {k: jnp.zeros((batch, features, units), F32) for k in ("re", "im")}
    return Tight(workload, {**per_unit, **per_weight}, advance, recurrence)


def lif(units: int, features: int, outputs: int = 8, leak: float = 0.9) -> Tight:
    """v' = leak v (1 − z), z a spike before (not differentiated), + W x; y = z' W_out."""
    order, keys = _Order(True), jax.random.split(jax.random.key(0), 2)
    params = {"w": _weight(keys[0], units, features, True), "out": _weight(keys[1], outputs, units, True)}

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        v = leak * state["v"] * (1 - lax.stop_gradient(spike(state["v"] - 1))) + p["w"] @ x
        return {"v": v}, p["out"] @ spike(v - 1)

    def advance(p: Tree, rates: Tree, state: Tree, e: Tree, x: Array, target: Array) -> tuple[Tree, Tree, Tree, Array]:
        keep = jnp.where(state["v"] > 1, 0, leak).astype(state["v"].dtype)
        v = keep * state["v"] + p["w"] @ x
        z = (v > 1).astype(v.dtype)
        value, error = _loss_and_error(p["out"] @ z, target)
        g = (error @ p["out"]) * (0.3 * jnp.maximum(0, 1 - jnp.abs(v - 1)))
        e = {"w": keep[:, None] * e["w"] + x}
        grads = {"w": g[:, None] * e["w"], "out": order.by_unit(error) * order.by_input(z)}
        return grads, {"v": v}, e, value

    workload = Workload(step, params, {"v": jnp.zeros(units, F32)}, _unbatched(features, outputs), 1, 0)
    return Tight(workload, {"w": jnp.zeros_like(params["w"])}, advance)


def lif_shared_trace(units: int, features: int, outputs: int = 8, leak: float = 0.9) -> Tight:
    """v' = leak v + W x − z, z a spike before (not differentiated): all units have one trace of the inputs."""
    params = lif(units, features, outputs).workload.params

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        v = leak * state["v"] + p["w"] @ x - lax.stop_gradient(spike(state["v"] - 1))
        return {"v": v}, p["out"] @ spike(v - 1)

    def advance(p: Tree, rates: Tree, state: Tree, e: Tree, x: Array, target: Array) -> tuple[Tree, Tree, Tree, Array]:
        v = leak * state["v"] + p["w"] @ x - (state["v"] > 1)
        z = (v > 1).astype(v.dtype)
        value, error = _loss_and_error(p["out"] @ z, target)
        g = (error @ p["out"]) * (0.3 * jnp.maximum(0, 1 - jnp.abs(v - 1)))
        e = {"w": leak * e["w"] + x}
        return {"w": g[:, None] * e["w"], "out": error[:, None] * z}, {"v": v}, e, value

    workload = Workload(step, params, {"v": jnp.zeros(units, F32)}, _unbatched(features, outputs), 1, 0)
    return Tight(workload, {"w": jnp.zeros(features, F32)}, advance)


def dense_rtrl(gated: bool, batch: int, units: int, features: int, outputs: int = 8) -> Tight:
    """Recurrent weights, as most published code has them: Jacobians of a step by `jax.jacrev`, J ← D J + F.

    h' = tanh(W x + U h + b), or a GRU that resets after the product.
    """
    keys, gates = jax.random.split(jax.random.key(0), 3), 3 if gated else 1
    params = {
        "w": matrix(keys[0], features, gates * units), "u": matrix(keys[1], units, gates * units),
        "b": jnp.zeros(gates * units, F32), "out": matrix(keys[2], units, outputs),
    }  # fmt: skip

    def cell(p: Tree, h: Array, x: Array) -> Array:
        driven, recurrent = x @ p["w"] + p["b"], h @ p["u"]
        if not gated:
            return jnp.tanh(driven + recurrent)
        r, z = jnp.split(jax.nn.sigmoid((driven + recurrent)[..., : 2 * units]), 2, -1)
        n = jnp.tanh(driven[..., 2 * units :] + r * recurrent[..., 2 * units :])
        return (1 - z) * n + z * h

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        h = cell(p, state["h"], x)
        return {"h": h}, h @ p["out"]

    def advance(p: Tree, rates: Tree, state: Tree, e: Tree, x: Array, target: Array) -> tuple[Tree, Tree, Tree, Array]:
        inner = {k: p[k] for k in e}
        immediate, d = jax.vmap(jax.jacrev(cell, (0, 1)), (None, 0, 0))(inner, state["h"], x)
        e = {k: jnp.einsum("bij,bj...->bi...", d, e[k]) + immediate[k] for k in e}
        h = cell(inner, state["h"], x)
        value, error = _loss_and_error(h @ p["out"], target)
        g = error @ p["out"].T
        grads = {k: jnp.einsum("bi,bi...->...", g, e[k]) for k in e}
        return {**grads, "out": h.T @ error}, {"h": h}, e, value

    hidden = {"h": jnp.zeros((batch, units), F32)}
    workload = Workload(step, params, hidden, gaussian(batch, features, outputs), batch, 0)
    influence = {k: jnp.zeros((batch, units, *params[k].shape), F32) for k in ("w", "u", "b")}
    return Tight(workload, influence, advance, rule="rtrl")


def gradient_of(tight: Tight, params: Tree, inputs: Array, targets: Array) -> Tree:
    """The mean gradient over a sequence with parameters held, by the learner by hand."""
    rates = tight.rates(params)

    def body(carry: tuple[Tree, Tree, Tree], xy: tuple[Array, Array]) -> tuple[tuple[Tree, Tree, Tree], None]:
        hidden, traces, total = carry
        grads, hidden, traces, _ = tight.advance(params, rates, hidden, traces, *xy)
        return (hidden, traces, jax.tree.map(jnp.add, total, grads)), None

    start = (tight.workload.hidden, tight.traces, jax.tree.map(jnp.zeros_like, params))
    total = lax.scan(body, start, (inputs, targets))[0][2]
    return jax.tree.map(lambda g: g / len(inputs), total)


def trained(tight: Tight, params: Tree, inputs: Array, targets: Array) -> Tree:
    """The parameters after an update at every step, by the learner by hand."""

    def body(carry: tuple[Tree, ...], xy: tuple[Array, Array]) -> tuple[tuple[Tree, ...], Array]:
        params, rates, hidden, traces = carry
        grads, hidden, traces, value = tight.advance(params, rates, hidden, traces, *xy)
        params = jax.tree.map(lambda p, g: p - RATE * g, params, grads)
        return (params, tight.rates(params), hidden, traces), value

    start = (params, tight.rates(params), tight.workload.hidden, tight.traces)
    return lax.scan(body, start, (inputs, targets))[0][0]


def by_hand(make: Callable[[], Tight]) -> Rival:
    def build(workload: Workload, inputs: Array, targets: Array) -> Program:
        tight, args = make(), (workload.params, inputs, targets)
        program = jax.jit(partial(trained, tight)).lower(*args).compile()
        nbytes = sum(a.nbytes for a in tight.traces.values())
        return Program(program, program, args, nbytes, lambda params: None)

    return Rival("by hand", build, 1)


def online(rule: str = "d_rtrl") -> Rival:
    """Etrax, with an update at every step."""

    def build(workload: Workload, inputs: Array, targets: Array) -> Program:
        step = partial(workload.step, PLAIN)
        learner = etrax.compile(step, rule, inputs[0], params=workload.params, hidden=workload.hidden)
        optimizer = optax.sgd(RATE)
        train = learner.train(optimizer, loss, window=1)

        def run(params: Any, inputs: Array, targets: Array) -> Any:
            return train(params, optimizer.init(params), learner.init(), inputs, targets)[0]

        args = (workload.params, inputs, targets)
        program = jax.jit(run).lower(*args).compile()
        nbytes = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(jax.eval_shape(learner.init).trace))
        return Program(program, program, args, nbytes, lambda params: None)

    return Rival(f"etrax {rule} online", build, 1)


def gradient_by_hand(make: Callable[[], Tight]) -> Rival:
    """The gradient of a sequence with parameters held."""

    def build(workload: Workload, inputs: Array, targets: Array) -> Program:
        tight, args = make(), (workload.params, inputs, targets)
        program = jax.jit(partial(gradient_of, tight)).lower(*args).compile()
        return Program(program, program, args, sum(a.nbytes for a in tight.traces.values()), lambda grads: grads)

    return Rival("gradient by hand", build, 1)


class Cell(NamedTuple):
    """A cell of one size, and what Etrax takes at most of the time of its learner by hand."""

    name: str
    bar: float
    sizes: dict[str, int]
    make: Callable[[], Tight]


def _cells(
    gated: Sequence[tuple[int, int]], complex_sizes: Sequence[tuple[int, int]], linear: tuple[int, int],
    spiking: Sequence[tuple[int, int]], recurrent: tuple[int, int],
) -> list[Cell]:  # fmt: skip
    units, features = linear
    return [
        *(
            Cell(f"mingru {order}", 1.15, {"H": h, "D": d}, partial(mingru, h, d, first))
            for order, first in (("W @ x", True), ("x @ W", False))
            for h, d in gated
        ),
        *(Cell("rtu W @ x", 1.2, {"H": h, "D": d}, partial(rtu, h, d, True)) for h, d in complex_sizes),
        *(
            Cell("lru", 1.2, {"B": b, "H": units, "D": features}, partial(lru_tight, b, units, features))
            for b in (1, 16)
        ),
        *(Cell("lif", 1.0, {"H": h, "D": d}, partial(lif, h, d)) for h, d in spiking),
        *(Cell("lif shared trace", 1.0, {"H": h, "D": d}, partial(lif_shared_trace, h, d)) for h, d in spiking),
        *(
            Cell(
                f"dense {name}",
                0.8,
                {"B": b, "H": recurrent[0], "D": recurrent[1]},
                partial(dense_rtrl, gated, b, *recurrent),
            )
            for name, gated, b in (("gru", True, 1), ("rnn", False, 4))
        ),
    ]


CELLS = _cells([(64, 32), (128, 64), (256, 128)], [(64, 32), (256, 128)], (192, 64), [(128, 64), (512, 256)], (32, 16))
SMALL_CELLS = _cells([(8, 4)], [(8, 4)], (8, 4), [(8, 4)], (8, 4))


def main(names: Sequence[str], turns: int = 60, steps: int = 100) -> None:
    for cell in CELLS:
        name = f"{cell.name} {'×'.join(map(str, cell.sizes.values()))}"
        if names and not name.startswith(tuple(names)):
            continue
        workload, rule = cell.make().workload, cell.make().rule
        programs = [rival.build(workload, *workload.data(steps)) for rival in (online(rule), by_hand(cell.make))]
        times: list[list[float]] = [[], []]
        for _ in range(turns):
            for program, seconds in zip(programs, times, strict=True):
                start = time.perf_counter()
                program.run()
                seconds.append((time.perf_counter() - start) / steps)
        ours, theirs = (1e6 * min(seconds) for seconds in times)
        middle = median(a / b for a, b in zip(*times, strict=True))
        print(f"{name:28} {ours:8.1f} µs, by hand {theirs:8.1f} µs: ", end="")
        print(f"least {ours / theirs:5.2f}, median {middle:5.2f}, bar {cell.bar}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
