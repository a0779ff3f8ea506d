"""Time and memory of one gradient over a sequence, for a GRU: Etrax, `jax.grad` BPTT, a hand-written recursion.

    python benchmarks/gru.py BATCH HIDDEN TIME WINDOW

All rivals run interleaved in one process; the ratios are medians of rounds, so a noisy machine moves them together.
"""

from __future__ import annotations

import statistics
import sys
import time

import jax
import jax.numpy as jnp
from jax import lax

import etrax


def model(batch: int, hidden: int, time_steps: int):
    keys = jax.random.split(jax.random.key(0), 7)
    params = {
        n: jax.random.normal(k, (2 * hidden, hidden)) * 0.5 / jnp.sqrt(2.0 * hidden)
        for n, k in zip("zrn", keys, strict=False)
    }
    params["o"] = jax.random.normal(keys[3], (hidden, 10)) / jnp.sqrt(hidden)

    def step(p, h, x):
        xh = jnp.concatenate([x, h], -1)
        z, r = jax.nn.sigmoid(xh @ p["z"]), jax.nn.sigmoid(xh @ p["r"])
        n = jnp.tanh(jnp.concatenate([x, r * h], -1) @ p["n"])
        h = (1 - z) * h + z * n
        return h, h @ p["o"]

    xs = jax.random.normal(keys[4], (time_steps, batch, hidden))
    ys = jax.random.normal(keys[5], (time_steps, batch, 10))
    return step, params, jnp.zeros((batch, hidden)), xs, ys


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def bptt(step, hidden):
    def run(params, xs, ys):
        def total(p):
            def body(h, xy):
                h, out = step(p, h, xy[0])
                return h, loss(out, xy[1])

            return lax.scan(body, hidden, (xs, ys))[1].mean()

        return jax.grad(total)(params)

    return run


def per_step(batch: int, hidden: int):
    """The textbook D-RTRL recursion, written by hand for this cell: the whole trace read and written at every step."""

    def run(p, xs, ys):
        def body(carry, xy):
            h, e, g = carry
            x, y = xy

            def one(h, p):
                xh = jnp.concatenate([x, h], -1)
                z, r = jax.nn.sigmoid(xh @ p["z"]), jax.nn.sigmoid(xh @ p["r"])
                xrh = jnp.concatenate([x, r * h], -1)
                n = jnp.tanh(xrh @ p["n"])
                new = (1 - z) * h + z * n
                f = {"z": (n - h) * z * (1 - z), "n": z * (1 - n * n)}
                return loss(new @ p["o"], y), (new, {"z": xh, "n": xrh}, 1 - z, f)

            (gh, gp), (new, u, d, f) = jax.grad(one, (0, 1), has_aux=True)(h, p)
            g = {k: g[k] + gp[k] for k in g}
            for k in f:
                g[k] = g[k] + jnp.einsum("bio,bo->io", e[k], gh)
            e = {k: d[:, None] * e[k] + u[k][:, :, None] * f[k][:, None] for k in f}
            return (new, e, g), None

        e0 = {k: jnp.zeros((batch, 2 * hidden, hidden)) for k in "zn"}
        start = (jnp.zeros((batch, hidden)), e0, jax.tree.map(jnp.zeros_like, p))
        return lax.scan(body, start, (xs, ys))[0][2]

    return run


def rivals(batch: int, hidden: int, time_steps: int, window: int):
    step, params, h0, xs, ys = model(batch, hidden, time_steps)
    out = {"BPTT": jax.jit(bptt(step, h0)), "per step": jax.jit(per_step(batch, hidden))}
    for rule in ("tbptt", "d_rtrl", "pp_prop"):
        learner = etrax.compile(step, rule, xs[0], params=params, hidden=h0)
        f, state = learner.value_and_grad(loss, window=window), learner.init()
        out[rule] = jax.jit(lambda p, x, y, f=f, s=state: f(p, s, x, y)[0][1])
        if rule == "d_rtrl":
            one = learner.value_and_grad(loss, window=1)
            out["d_rtrl K=1"] = jax.jit(lambda p, x, y, f=one, s=state: f(p, s, x, y)[0][1])
    return out, (params, xs, ys)


def main() -> None:
    batch, hidden, time_steps, window = (int(a) for a in (sys.argv[1:5] or (16, 256, 1024, 64)))
    functions, args = rivals(batch, hidden, time_steps, window)
    compiled, compile_time, temp = {}, {}, {}
    for name, f in functions.items():
        start = time.perf_counter()
        compiled[name] = f.lower(*args).compile()
        compile_time[name] = time.perf_counter() - start
        temp[name] = compiled[name].memory_analysis().temp_size_in_bytes / 2**20
        jax.block_until_ready(compiled[name](*args))
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(int(sys.argv[5]) if len(sys.argv) > 5 else 5):
        for name, f in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(f(*args))
            times[name].append(time.perf_counter() - start)
    base = times["BPTT"]
    print(f"GRU batch {batch} hidden {hidden} T {time_steps} window {window}, float32")
    print(f"{'':12s} {'ms/step':>9s} {'x BPTT':>8s} {'(range)':>14s} {'temp MB':>9s} {'compile s':>10s}")
    for name, found in times.items():
        ratios = [a / b for a, b in zip(found, base, strict=True)]
        print(f"{name:12s} {statistics.median(found) / time_steps * 1e3:9.3f} {statistics.median(ratios):8.2f} "
              f"{min(ratios):6.2f}–{max(ratios):.2f} {temp[name]:12.1f} {compile_time[name]:10.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
