# ruff: noqa: E501  (prose and tables of a page)
"""docs/scaling.md from what `benchmarks/scaling.py` measured: how to use many devices, what travels, how far it goes."""

from __future__ import annotations

from typing import Any

NUMBER, INDEX = 4, 8  # bytes of a number, and of the row and column of a stored entry
LINK, MEMORY, FAN_IN, BATCH = (
    50e9,
    1.5e12,
    1000,
    1,
)  # bytes a second between devices and within one; the projection's net
ARRAYS = 7  # arrays of activity that travel, of a layer with recurrent connections
PASSES = 3  # entries are read forwards, backwards, and for the gradient

HEAD = """# Many devices

This page is written by `python -m benchmarks.scaling` from `benchmarks/results/scaling.json`.

```py
mesh = jax.make_mesh((2, 4), ("batch", "neuron"))
learner = etrax.compile(step, "pp_prop", x, params=params, hidden=hidden, mesh=mesh, shard="batch+neuron")
params = jax.device_put(params, learner.shardings.params)
state = learner.init()  # each part of the trace is made where it lives
print(learner.report)  # what a device holds, and what travels, in bytes
learner.memory(window=16).per_device
```

`shard` is `"batch"`, `"neuron"` or `"batch+neuron"`, or a dictionary from regular expressions over `/`-joined paths to
`PartitionSpec`s: `{"params/w_rec": P(None, "neuron"), "hidden/.*": P("batch", "neuron")}`. Everything else is as on one
device: `value_and_grad`, `train`, `step` and `Trainer` take and give whole arrays, which lie on the mesh.

The learner says how its arrays lie, and JAX partitions the program. A trace lies with its sample and its postsynaptic
position and is never sent; what travels is activity and gradients:

| cut | each step | each window |
|---|---|---|
| batch | nothing | one all-reduce of the gradients |
| neurons | presynaptic activity and its gradient, sums of the readout; what no recurrence needs (a layer that the next one reads, a readout) for all steps of a window at once | nothing for weights that are cut |
| both | the same within rows of the mesh | one all-reduce along the batch |

Every rule runs on every mesh. Traces of rules that are not by position (`rtrl`, `snap`, `uoro`, `kf_rtrl`) lie as the compiler
puts them, and what it sends for them can be as large as they are. `print(learner.report)` says how much of the trace a device
holds, and how many bytes it receives at each step and for each window, counted from the compiled program.

With `shard="neuron"`, a parameter is cut along the axis whose slices drive the neurons of one device each; a readout is cut
where its gradient is made. A sparse product (sums by segment, BCOO, CSR) is cut by row if its entries lie with their rows:
sorted by row, equally many for each device. `etrax.align_entries(rows, num_rows, parts)` gives that order, with padding where
rows differ.

Numbers are those of one device for any model and any cut. A cut that does not suit the model costs traffic instead: a weight
that is cut along its inputs, states that act on each other across devices, gates of one product that are split along one axis.

What is refused, by name and with a remedy: axes that the mesh does not divide, patterns that match nothing, arrays on other
devices, processes with different models.

## Many processes

```sh
srun --ntasks=8 python train.py              # train.py begins with jax.distributed.initialize()
python examples/two_processes.py             # two processes on this machine
```

Each process reads the samples of its own devices only (arrays may be memory-mapped files), the first one alone shows progress.
Checkpoints are written by all and can be restored on another number of devices or processes. If a process dies, JAX ends the
others after its heartbeat (`jax.distributed.initialize(heartbeat_timeout_seconds=...)`).
"""


def page(data: dict[str, Any]) -> str:
    parts = [HEAD.strip()]
    if "rows" in data:
        parts.append(_measured(data["rows"]))
    if "large" in data:
        parts.append(_large(data["large"]))
    return "\n\n".join([*parts, _projection()]) + "\n"


def size(n: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= scale:
            return f"{n / scale:.3g} {unit}"
    return f"{n:.0f} B"


def _measured(rows: dict[str, list[dict[str, Any]]]) -> str:
    first = rows["strong, neurons"][0]
    lines = [
        "## Measured",
        "",
        f"Leaky spiking units with {first['synapses'] // first['neurons']} sparse recurrent connections each "
        "(`benchmarks/scaling.py`), float32, virtual devices of one CPU with two cores. Bytes that travel are those that a "
        "device receives in one step, read from the compiled program; the gradients' all-reduce, once a call, is among them. "
        "Flops, trace and peak are those of one device. Time is for all devices on two cores together, so that it says what "
        "cutting costs, not what it gains; other work ran on the machine meanwhile, so that times are rough and too long.",
        "",
        "| scaling | devices | cut | neurons | batch | rule | travels per step | flops | trace | peak | ms per step |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, some in rows.items():
        for r in some:
            sent = r["travels"] if r["devices"] > 1 else {}
            moved = ", ".join(f"{kind} {size(n)}" for kind, n in sorted(sent.items())) or "nothing"
            lines.append(
                f"| {name} | {r['devices']} | {r['cut']} | {r['neurons']} | {r['batch']} | `{r['rule']}` | {moved} | "
                f"{r['flops']:.3g} | {size(r['trace'])} | {size(r['peak'])} | {r['milliseconds']:.3g} |"
            )
    return "\n".join(lines)


def _large(r: dict[str, Any]) -> str:
    return (
        f"## {r['neurons']:,} neurons\n\n"
        f"{r['neurons']:,} units with {r['synapses']:,} connections, trained online by `pp_prop` (K = 1, Adam) on a mesh of "
        f"{r['devices']} virtual devices: {r['steps']} updates in {r['seconds']:.0f} s after {r['compile']:.0f} s of "
        f"analysis; the loss fell from {r['first']:.3g} (mean of the first eighth) to {r['last']:.3g} (of the last). A device "
        f"holds {size(r['trace'])} of trace. `tests/mesh/test_scaling.py` does the same with fewer neurons."
    )


def _projection() -> str:
    lines = [
        "## Projection",
        "",
        "Not measured. From what is above: per step a device receives about "
        f"{ARRAYS} arrays of B·N numbers, whatever the number of connections; it reads S/n entries "
        f"({NUMBER} bytes a value, {INDEX} its row and column) {PASSES} times. Assumed: {FAN_IN} connections a neuron, batch "
        f"{BATCH}, float32, {LINK / 1e9:.0f} GB/s between devices, {MEMORY / 1e12:.1f} TB/s within one, no overlap of the two, "
        "no latency, no imbalance.",
        "",
        "| synapses | neurons | devices | entries per device | trace, `pp_prop` | trace, `d_rtrl` | travels per step | time of it | time of memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for synapses in (1e8, 1e9):
        for n in (8, 64):
            neurons = synapses / FAN_IN
            entries = synapses / n
            moved = BATCH * neurons * NUMBER * ARRAYS
            factored, whole = BATCH * NUMBER * neurons * (1 + 1 / n), BATCH * NUMBER * entries
            read = PASSES * entries * (NUMBER + INDEX)
            lines.append(
                f"| {synapses:.0e} | {neurons:.0e} | {n} | {size(entries * (NUMBER + INDEX))} | {size(factored)} | {size(whole)} | "
                f"{size(moved)} | {1e6 * moved / LINK:.3g} µs | {1e6 * read / MEMORY:.3g} µs |"
            )
    return "\n".join(lines)
