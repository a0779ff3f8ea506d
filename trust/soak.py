"""`make soak`: long streams with an update at every step. A run replaces that of its rule and type in the results.

A leaky network learns online, window 1, from a stream that never ends. Each run must keep its memory, stay finite, and
carry the trace that it should: at several places of the stream the last steps are repeated in float64 from an empty
trace, over the parameters and states that the run had. The leak makes the trace forget what was before them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import etrax

INPUTS, UNITS, LEAK = 3, 8, 0.9
RECENT = 400  # steps that are repeated: LEAK ** RECENT is 5e-19
PLACES = 10  # of the stream at which the trace is checked
RESULTS = Path(__file__).parent / "results"
RULES: dict[str, Callable[[], Any]] = {
    "d_rtrl": etrax.d_rtrl,
    "pp_prop": partial(etrax.pp_prop, 0.9),
    "e_prop": etrax.e_prop,
    "e_prop, filtered": partial(etrax.e_prop, 0.8),
    "ottt": partial(etrax.ottt, 0.9),
    "rflo": partial(etrax.rflo, 0.9),
}


@dataclass
class Soak:
    """One run. `grown` is what the resident set gained in its second half, `trace_error` relative to the trace.

    The first half is left to the allocator, which takes megabytes for itself in the first run of a process; `sizes` are
    eleven readings from the beginning to the end. Whatever is lost with every step is lost in both halves.
    """

    rule: str
    dtype: str
    steps: int
    seconds: float
    first_loss: float
    last_loss: float
    resident: int
    grown: int
    sizes: list[int]
    finite: bool
    trace_error: float
    allowed_error: float
    wrong: list[str]


def _step(params: Any, h: Any, x: Any) -> tuple[Any, Any]:
    h = LEAK * h + (1 - LEAK) * jnp.tanh(x @ params["w"] + h @ params["u"] + params["b"])
    return h, h @ params["out"]


def _loss(output: Any, target: Any) -> Any:
    return jnp.mean((output - target) ** 2)


def _learner(rule: str, dtype: Any) -> Any:
    rng = np.random.default_rng(0)
    shapes = {"w": (INPUTS, UNITS), "u": (UNITS, UNITS), "b": (UNITS,), "out": (UNITS, 1)}
    params = {k: jnp.asarray(rng.standard_normal(s) / s[0] ** 0.5, dtype) for k, s in shapes.items()}
    hidden = jnp.zeros((1, UNITS), dtype)
    return etrax.compile(_step, RULES[rule](), jnp.zeros((1, INPUTS), dtype), params=params, hidden=hidden)


@partial(jax.jit, static_argnums=(1, 2))
def _data(number: Any, steps: int, dtype: Any) -> tuple[Any, Any]:
    """Inputs of constant sign, as `pp_prop` needs them, and what is to be learned: a mean of the last ones."""
    xs = jax.random.uniform(jax.random.fold_in(jax.random.key(0), number), (steps, 1, INPUTS), jnp.float32)
    ys = sum(jnp.roll(xs[:, :, :1], k, 0) for k in range(4)) / 4
    return xs.astype(dtype), ys.astype(dtype)


class Stream:
    """A learner on its way, in the given type."""

    def __init__(self, rule: str, dtype: Any):
        self.rule, self.dtype, self.learner = rule, dtype, _learner(rule, dtype)
        optimizer = optax.sgd(0.01)
        self.train = self.learner.train(optimizer, _loss, window=1)
        self.params, self.state = self.learner.params, self.learner.init()
        self.opt_state = optimizer.init(self.params)
        self.chunks, self.steps = 0, 0
        self.wide = _learner(rule, jnp.float64)
        self.move = jax.jit(self.wide.step)

    def go(self, steps: int) -> np.ndarray:
        """Learn for so many steps; the losses."""
        xs, ys = _data(self.chunks, steps, self.dtype)
        return self._learn(xs, ys)

    def _learn(self, xs: Any, ys: Any) -> np.ndarray:
        found = self.train(self.params, self.opt_state, self.state, xs, ys)
        self.params, self.opt_state, self.state, losses = found
        self.chunks, self.steps = self.chunks + 1, self.steps + xs.shape[0]
        return np.asarray(losses, np.float64)

    def recent(self, steps: int) -> list[Any]:
        """Go step by step; the parameters, state and input of each step as it began."""
        xs, ys = _data(self.chunks, steps, self.dtype)
        seen = []
        for t in range(steps):
            seen.append((self.params, self.state.hidden, xs[t]))
            self._learn(xs[t : t + 1], ys[t : t + 1])
        return seen


def trace_error(stream: Stream) -> float:
    """The carried trace against that of the last steps, repeated in float64 from an empty one."""
    seen = stream.recent(RECENT)
    state = stream.wide.init()
    for params, hidden, x in seen:
        params, hidden, x = jax.tree.map(lambda a: a.astype(jnp.float64), (params, hidden, x))
        state, _ = stream.move(params, state._replace(hidden=hidden), x)
    worst = 0.0
    for carried, again in zip(jax.tree.leaves(stream.state.trace), jax.tree.leaves(state.trace), strict=True):
        if jnp.issubdtype(again.dtype, jnp.floating):  # counts of steps are not forgotten
            error = np.max(np.abs(np.asarray(carried, np.float64) - np.asarray(again)))
            worst = max(worst, float(error / max(np.max(np.abs(again)), 1e-30)))
    return worst


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def allowed(dtype: Any) -> float:
    """One rounding of the type per step, for as many steps as the leak keeps."""
    return float(jnp.finfo(dtype).eps) / (1 - LEAK)


def soak(rule: str, dtype: Any, steps: int, chunk: int) -> Soak:
    began, stream = time.perf_counter(), Stream(rule, dtype)
    first = last = stream.go(chunk)
    finite, errors, sizes = bool(np.isfinite(first).all()), [trace_error(stream)], [resident()]
    every = max(steps // PLACES, chunk)
    while stream.steps < steps:
        last = stream.go(chunk)
        finite = finite and bool(np.isfinite(last).all())
        sizes.append(resident())
        if stream.steps // every > len(errors) - 1:
            errors.append(trace_error(stream))
    errors.append(trace_error(stream))
    finite = finite and all(bool(jnp.isfinite(a).all()) for a in jax.tree.leaves((stream.params, stream.state.trace)))
    settled = sizes[len(sizes) // 2 :]
    shown = [sizes[round(i * (len(sizes) - 1) / 10)] for i in range(11)]
    found = Soak(
        rule, jnp.dtype(dtype).name, stream.steps, round(time.perf_counter() - began, 1), float(first[:1000].mean()),
        float(last.mean()), settled[-1], settled[-1] - settled[0], shown, finite, max(errors), allowed(dtype), [],
    )  # fmt: skip
    found.wrong += [] if finite else ["a number is not finite"]
    found.wrong += [] if found.trace_error <= found.allowed_error else ["the trace is not the recomputed one"]
    found.wrong += [] if found.grown <= max(0.01 * settled[0], 4 << 20) else ["memory grows"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--chunk", type=int, default=100_000)
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--types", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--out", type=Path, default=RESULTS / "soak.json")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)  # for what is recomputed; the streams keep their own types
    heads = f"{'rule':18}{'type':10}{'steps':>12}{'µs/step':>9}{'loss':>18}{'grown':>10}{'trace error':>14}"
    print(f"{heads}{'allowed':>10}", flush=True)
    held = json.loads(options.out.read_text(encoding="utf-8"))["runs"] if options.out.exists() else []
    found = {(run["rule"], run["dtype"]): run for run in held}
    wrong = False
    for name in options.types:
        for rule in options.rules:
            run = soak(rule, jnp.dtype(name), options.steps, options.chunk)
            wrong = wrong or bool(run.wrong)
            found[rule, name] = asdict(run)
            print(_row(run), flush=True)
            options.out.parent.mkdir(exist_ok=True)
            options.out.write_text(json.dumps({"runs": list(found.values())}, indent=2) + "\n", encoding="utf-8")
    return 1 if wrong else 0


def _row(r: Soak) -> str:
    speed, loss = 1e6 * r.seconds / r.steps, f"{r.first_loss:.4f} → {r.last_loss:.4f}"
    text = f"{r.rule:18}{r.dtype:10}{r.steps:12,}{speed:9.1f}{loss:>18}{r.grown / 2**20:7.1f} MB"
    return f"{text}{r.trace_error:14.1e}{r.allowed_error:10.1e}  {'; '.join(r.wrong) or 'ok'}"


if __name__ == "__main__":
    raise SystemExit(main())
