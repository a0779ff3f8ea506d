"""Time and memory of trace + analysis + verdicts, each case in a process of its own.

    python benchmarks/analysis.py            all cases
    python benchmarks/analysis.py gru coba_brainpy   some

Bars: 2 s for the ordinary ones, 10 s and 4 GiB for the sparse network of 131,072 neurons.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

B, N, NNZ = 32, 131_072, 1 << 20
CASES: dict[str, Callable] = {}


def case(build: Callable) -> Callable:
    """A case builds (step, params, hidden, inputs) of shapes only; or, itself, what traces a step."""

    def prepared() -> Callable:
        found = build()
        return found if callable(found) else lambda: traced_step(*found)

    CASES[build.__name__] = prepared
    return build


def traced_step(step: Callable, params, hidden, inputs):
    from etrax.compiler.ir import trace_step

    def fn(params, hidden, other, *inputs):
        hidden, output = step(params, hidden, *inputs)
        return hidden, None, output

    return trace_step(fn, params, hidden, inputs)


def shape(*sizes: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


@case
def gru():
    """H 256, B 16."""
    n, i, b = 256, 128, 16

    def step(p, h, x):
        z, r = jnp.split(jax.nn.sigmoid(x @ p["wg"] + h @ p["ug"] + p["bg"]), 2, -1)
        h = z * h + (1 - z) * jnp.tanh(x @ p["wh"] + (r * h) @ p["uh"] + p["bh"])
        return h, h @ p["out"]

    params = {
        "wg": shape(i, 2 * n),
        "ug": shape(n, 2 * n),
        "bg": shape(2 * n),
        "wh": shape(i, n),
        "uh": shape(n, n),
        "bh": shape(n),
        "out": shape(n, 10),
    }
    return step, params, shape(b, n), (shape(b, i),)


@case
def stack_70():
    """Seventy leaky layers, H 64, B 8: the cost must stay about linear in equations."""
    n, b, depth = 64, 8, 70

    def step(p, states, x):
        new = []
        for (w, u, bias), h in zip(p["layers"], states, strict=True):
            x = 0.5 * h + 0.5 * jnp.tanh(x @ w + h @ u + bias)
            new.append(x)
        return tuple(new), x @ p["out"]

    params = {"layers": [(shape(n, n), shape(n, n), shape(n)) for _ in range(depth)], "out": shape(n, 4)}
    return step, params, tuple(shape(b, n) for _ in range(depth)), (shape(b, n),)


@case
def lstm_3():
    """Three layers, H 256, B 16."""
    n, b = 256, 16

    def step(p, states, x):
        new = []
        for layer, (h, c) in zip(p["layers"], states, strict=True):
            i, f, g, o = jnp.split(x @ layer["w"] + h @ layer["u"] + layer["b"], 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            x = jax.nn.sigmoid(o) * jnp.tanh(c)
            new.append((x, c))
        return new, x @ p["out"]

    layers = [{"w": shape(n, 4 * n), "u": shape(n, 4 * n), "b": shape(4 * n)} for _ in range(3)]
    return step, {"layers": layers, "out": shape(n, 10)}, [(shape(b, n), shape(b, n))] * 3, (shape(b, n),)


@jax.custom_vjp
def spike(v):
    return (v > 0).astype(v.dtype)


spike.defvjp(lambda v: (spike(v), v), lambda v, ct: (ct / (1 + jnp.abs(v)) ** 2,))


@case
def coba_brainpy():
    """E/I network of 3,200 + 800 LIFRef neurons of brainpy.state: Expon synapses, COBA currents, physical units."""
    import brainevent
    import brainpy.state as bp
    import brainstate
    import brainunit as u

    from etrax.frontends._brainstate import bind_brainstate

    brainevent.config.set_backend("cpu", "jax_raw")
    ne, ni, k = 3200, 800, 80

    def projection(source, tau, reversal, post):
        comm = brainstate.nn.EventFixedNumConn(source, ne + ni, k, jnp.ones((source, k)) * 0.6 * u.mS)
        syn, out = bp.Expon.desc(ne + ni, tau=tau * u.ms), bp.COBA.desc(E=reversal * u.mV)
        return bp.AlignPostProj(comm=comm, syn=syn, out=out, post=post)

    class Net(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            volts = {"V_rest": -60.0 * u.mV, "V_th": -50.0 * u.mV, "V_reset": -60.0 * u.mV}
            self.neurons = bp.LIFRef(ne + ni, R=1.0 * u.ohm, tau=20.0 * u.ms, tau_ref=5.0 * u.ms, **volts)
            self.e = projection(ne, 5.0, 0.0, self.neurons)
            self.i = projection(ni, 10.0, -80.0, self.neurons)

        def update(self, current):
            spikes = self.neurons.get_spike()
            self.e(spikes[:ne])
            self.i(spikes[ne:])
            self.neurons(current)
            return self.neurons.get_spike()

    brainstate.environ.set(dt=0.1 * u.ms, t=0.0 * u.ms)
    net = Net()
    brainstate.nn.init_all_states(net)
    return lambda: bind_brainstate(net, (20.0 * u.mA,)).step


def sparse_net(product: Callable, params: dict):
    """Recurrent LIF network of N neurons and NNZ synapses; `product(p, z)` maps (B, N) spikes to (B, N) currents."""

    def step(p, h, x):
        v, i = h
        z = spike(v - 1.0)
        i = 0.8 * i + product(p, z)
        v = 0.9 * v * (1 - z) + i + x * p["gain"]
        return (v, i), z.mean(-1)

    return step, {**params, "gain": shape(N)}, (shape(B, N), shape(B, N)), (shape(B, N),)


def connections():
    rng = np.random.RandomState(0)
    pre, post = np.sort(rng.randint(N, size=NNZ)), rng.randint(N, size=NNZ)
    return pre.astype(np.int32), post.astype(np.int32)


@case
def sparse_bcoo():
    """131,072 neurons, 2^20 synapses, B 32, as a BCOO product."""
    from jax.experimental.sparse import BCOO

    indices = np.stack(connections(), 1)
    return sparse_net(lambda p, z: z @ BCOO((p["w"], jnp.asarray(indices)), shape=(N, N)), {"w": shape(NNZ)})


@case
def sparse_segment_sum():
    """The same as gather, product, segment_sum."""
    pre, post = connections()
    return sparse_net(lambda p, z: jax.ops.segment_sum((z[:, pre] * p["w"]).T, post, N).T, {"w": shape(NNZ)})


@case
def sparse_csr():
    """The same as a brainevent CSR product."""
    import brainevent

    pre, post = connections()
    indptr = np.searchsorted(pre, np.arange(N + 1)).astype(np.int32)
    arrays = jnp.asarray(post), jnp.asarray(indptr)
    return sparse_net(lambda p, z: z @ brainevent.CSR((p["w"], *arrays), shape=(N, N)), {"w": shape(NNZ)})


def measure(name: str) -> dict:
    """Time the analysis of one case; run in a process of its own."""
    from etrax.compiler.analysis import analyse
    from etrax.compiler.ir import Role
    from etrax.rules._verdicts import by_position_verdict

    trace = CASES[name]()
    before, cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    times = [time.perf_counter()]
    traced = trace()
    times.append(time.perf_counter())
    facts = analyse(traced)
    times.append(time.perf_counter())
    kinds = [str(by_position_verdict(facts, i).kind) for i in range(len(traced.select(Role.PARAM)))]
    times.append(time.perf_counter())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spans = np.diff(times).tolist()
    return {
        "trace": spans[0],
        "analyse": spans[1],
        "verdicts": spans[2],
        "total": sum(spans),
        "cpu": time.process_time() - cpu,
        "before": before / 2**20,
        "peak": peak / 2**20,
        "equations": len(traced.jaxpr.eqns),
        "verdict": ", ".join(dict.fromkeys(kinds)),
    }


def main(names: list[str]) -> None:
    heads = {"case": 20, "eqns": 6, "trace s": 9, "analyse s": 11, "verdicts s": 12, "total s": 9, "CPU s": 8}
    heads |= {"RSS before": 12, "peak GiB": 10}
    print(*(f"{h:{'' if h == 'case' else '>'}{n}}" for h, n in heads.items()), " verdicts", sep="")
    for name in names or CASES:
        done = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True)
        if done.returncode:
            print(f"{name:20} {done.stderr.strip().splitlines()[-1]}")
            continue
        r = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{name:20}{r['equations']:6}{r['trace']:9.2f}{r['analyse']:11.2f}{r['verdicts']:12.2f}{r['total']:9.2f}{r['cpu']:8.2f}"
            f"{r['before']:12.2f}{r['peak']:10.2f}  {r['verdict']}"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main(sys.argv[1:])
