"""The cases: which workload, of what size, who runs. `quick` for a look, `default` for the bars, `full` for all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from benchmarks.harness import Case
from benchmarks.recursion import per_step
from benchmarks.rivals import Rival, bptt, checkpointed, forward, ours
from benchmarks.workload import Workload

import etrax
from benchmarks import by_hand, conv_spiking, gated, lru, peer, selective, sparse, spiking, stacks, structured

theirs = peer.theirs
PP = {"decay_or_rank": 0.9}


def case(
    family: str, make: Callable[[], Workload], steps: int, rivals: list[Rival], sweep: str = "", **sizes: int
) -> Case:
    """A case named by its family and sizes."""
    sizes = {**sizes, "T": steps}
    shown = " ".join(f"{k}{v}" for k, v in sizes.items())
    return Case(f"{family} {shown}", make, steps, tuple(rivals), sizes, sweep)


def _both(k: int, few: int, steps: int | None = None, rules: tuple[str, ...] = ("D_RTRL", "pp_prop")) -> list[Rival]:
    """braintrace as it comes, on few steps, and windowed, on `steps`."""
    options = {"D_RTRL": {}, "pp_prop": PP}
    return [theirs(r, w, s, **options[r]) for r in rules for w, s in ((None, few), (k, steps))]


def _pair(k: int) -> list[Rival]:
    return [ours("d_rtrl", k), ours("pp_prop", k)]


def gru_cases(b: int, h: int, steps: int, k: int, few: int) -> Case:
    half = ours("d_rtrl", k, label="d_rtrl bfloat16", trace_dtype=jnp.bfloat16)
    rivals = [bptt(), checkpointed(steps), per_step(few), ours("tbptt", k), *_pair(k), half, *_both(k, few)]
    return case("gru", partial(gated.gru, b, h), steps, rivals, B=b, H=h)


def window_case(b: int, h: int, steps: int, k: int) -> Case:
    """One rule in windows of several lengths, beside BPTT alone: who allocates much disturbs whoever comes next."""
    rivals = [bptt(), ours("tbptt", k), *(ours("d_rtrl", n) for n in (4, 8, k))]
    return case("windows gru", partial(gated.gru, b, h), steps, rivals, B=b, H=h)


def online_case(b: int, h: int, steps: int) -> Case:
    """Rules with a counterpart, a gradient at every step."""
    key, published = jax.random.key(0), etrax.pp_prop(0.9, credit="state")
    # Their rule gives the reset gate and the readout no gradient; beside it, ours without these two does the same work.
    alike = etrax.partition({"r": etrax.frozen(), "out": etrax.frozen()}, default=published)
    rivals = [
        bptt(), forward(), per_step(),
        ours("d_rtrl", 1), theirs("D_RTRL"),
        ours("pp_prop", 1), theirs("pp_prop", **PP),
        ours(published, 1, label="pp_prop as published"), ours(alike, 1, label="pp_prop as published, z and n"),
        ours(etrax.e_prop(0.9), 1), theirs("EProp", kappa_filter_decay=0.9),
        ours(etrax.e_prop(feedback="random", key=0), 1, label="e_prop random"),
        theirs("EProp", label="EProp random", feedback="random", random_feedback_key=key),
        ours("three_factor", 1), theirs("ThreeFactor", modulator=1.0),
    ]  # fmt: skip
    return case("online gru", partial(gated.gru, b, h), steps, rivals, B=b, H=h)


def costly_case(b: int, h: int, steps: int) -> Case:
    """Rules that look at every pair of units; UORO in windows of two steps, the least that braintrace takes."""
    rivals = [bptt(), ours("ostl", 1), theirs("OSTLRecurrent"), ours(etrax.uoro(0), 2), theirs("UORO", 2)]
    return case("costly gru", partial(gated.gru, b, h), steps, rivals, B=b, H=h)


def workload_cases(size: str) -> list[Case]:
    """The families besides the GRU."""
    small = size == "quick"
    n, m = (32, 2) if small else (512, 3)
    few, t = (8, 32) if small else (32, 500)
    b = 4 if small else 32
    peers = [theirs("D_RTRL", 10, 20), theirs("pp_prop", None, few, **PP), theirs("pp_prop", 10, 20, **PP)]
    online = [ours("pp_prop", k) for k in (5, 10, 20)]
    whole = [ours("d_rtrl", k) for k in ((10,) if small else (10, 50))]
    spikes = [bptt(), checkpointed(t), ours("tbptt", 10), *online, *whole, *peers]
    found = [
        case("alif", partial(spiking.alif, b, n, m), t, spikes, B=b, H=n),
        case("lif", partial(spiking.lif, b, n, m), 50 if small else 100, [bptt(), *_pair(10), *peers[1:]], B=b, H=n),
    ]
    h, t = (32, 64) if small else (256, 512)
    found.append(
        case(
            "lstm", partial(gated.lstm, 16, h), t, [bptt(), ours("tbptt", 32), *_pair(32), *_both(32, 8, 64)], B=16, H=h
        )
    )
    h, t = (32, 256) if small else (512, 4096)
    rivals = [bptt(), checkpointed(t), *_pair(64), *_both(64, 2 * few)]
    found.append(case("lru", partial(lru.lru, 8, h), t, rivals, B=8, H=h))
    d, t = (16, 64) if small else (64, 256)
    rivals = [bptt(), ours("tbptt", 64), ours("d_rtrl", 16), ours("d_rtrl", 64)]
    found.append(case("selective", partial(selective.selective, 4, d), t, rivals, B=4, D=d))
    side, t = (8, 20) if small else (32, 100)
    rivals = [bptt(), *_pair(10), *_both(10, few // 4, 20)]
    found.append(case("conv lif", partial(conv_spiking.conv_lif, 8, side), t, rivals, B=8, side=side))
    e, i = (96, 32) if small else (768, 256)
    rivals = [bptt(), *_pair(10), *_both(10, few // 4, 20)]
    found.append(case("coba", partial(sparse.coba, 16, e, i), t, rivals, B=16, N=e + i))
    return found


def stack_cases(size: str) -> list[Case]:
    """Layers whose products can be made for all steps of a window at once; with many rows that no longer pays."""
    n, t, k = (16, 32, 8) if size == "quick" else (512, 256, 64)
    found = []
    for b in (1, 4) if size == "quick" else (1, 4, 32, 128):
        rivals = [bptt(), ours("tbptt", k), ours("pp_prop", k)]
        found.append(case("stack lif", partial(stacks.lif_stack, b, n), t, rivals, B=b, H=n))
    rivals = [bptt(), ours("tbptt", k), ours("d_rtrl", k)]
    without = ours(etrax.d_rtrl(hops=0), k, label="d_rtrl no hop")
    found.append(case("wide lif", partial(stacks.lif_stack, 4, 2 * n), t, [*rivals, without], B=4, H=2 * n))
    found.append(case("stack lru", partial(stacks.lru_stack, 4, n // 2), t, rivals, B=4, H=n // 2))
    found.append(case("layers lru", partial(lru.lru_layers, 4, n // 2), 16 * t, rivals, B=4, N=n // 2))
    return found


def structure_cases(size: str) -> list[Case]:
    """Blocks that do not change in time, or are equal for all neurons; a layer one hop below a leaky readout; a task
    whose credit reaches beyond the window."""
    small = size == "quick"
    n, t, k, few = (16, 32, 8, 4) if small else (256, 4096, 64, 10)
    found = []
    for b in (1, 4) if small else (1, 4, 16):
        found.append(case("time-invariant", partial(lru.lru, b, n), t, [bptt(), ours("tbptt", k), *_pair(k)], B=b, N=n))
    rivals = [bptt(), ours("tbptt", k // 4), ours("d_rtrl", k // 4)]
    found.append(case("recall", partial(lru.recall, 4, n), 32 if small else 256, rivals, B=4, N=n))
    long = 5 * few
    for b in (1, 4) if small else (1, 32):
        plain = [ours(etrax.d_rtrl(hops=0), w, label="d_rtrl no hop") for w in (few, long)]
        rivals = [bptt(), ours("tbptt", few), *plain, ours("d_rtrl", few), ours("d_rtrl", long)]
        found.append(case("readout lif", partial(stacks.lif_readout, b, 2 * n), 50 * few, rivals, B=b, H=2 * n))
    return found


def published_cases(size: str) -> list[Case]:
    """Layers as they are published, whose traces are small because of what is proved of them."""
    small = size == "quick"
    n, t, k = (8, 32, 8) if small else (64, 256, 64)
    usual = [bptt(), ours("tbptt", k), ours("d_rtrl", k)]
    found = [
        case("mamba", partial(structured.mamba, 4, n), t, usual, B=4, D=n),
        case("deltanet", partial(structured.gated_deltanet, 4, n, n // 4, n // 2), t, usual, B=4, D=n),
        case("embedded mingru", partial(structured.embedded_mingru, 4, 4 * n, n // 2, n), t, usual, B=4, H=n),
    ]
    k = 8 if small else 50
    for b in (1,) if small else (1, 32):
        make = partial(structured.leaky_readouts, b, 2 * n, 4 * n)
        rivals = [bptt(), ours("tbptt", k), ours("d_rtrl", k)]
        found.append(case("leaky readouts", make, 10 * k, rivals, B=b, H=4 * n))
    k = 8 if small else 64
    deep = ours(etrax.d_rtrl(depth="1 GB"), k, label="d_rtrl depth")
    layers = partial(structured.gated_lru_layers, 1, n)
    found.append(case("deep lru", layers, 2 * k, [bptt(), ours("d_rtrl", k), deep, ours("rtrl", k)], B=1, N=n))
    b, h, t = (4, 16, 64) if small else (16, 256, 1024)
    # Half as many steps between checkpoints as there are checkpoints: a step records more than its states.
    long = ours("tbptt", t, label="tbptt remat", remat=round(t**0.5) // 2)
    found.append(case("one window gru", partial(gated.gru, b, h), t, [bptt(), long], B=b, H=h))
    return found


def large_case(b: int, neurons: int, steps: int, few: int) -> Case:
    """The sparse network, too large for BPTT to be asked."""
    rivals = [ours("pp_prop", 1), ours("pp_prop", 5), ours("d_rtrl", 1, few), *_both(5, few, None, ("pp_prop",))]
    make = partial(sparse.sparse_lif, b, neurons, 8 * neurons)
    return case("sparse lif", make, steps, rivals, B=b, N=neurons, synapses=8 * neurons)


def growth_cases(size: str) -> list[Case]:
    """One size varied at a time, for the plots and the bars on growth."""
    found, small, full = [], size == "quick", size == "full"
    h, b, t = (16, 4, 64) if small else (256, 16, 256)
    units = 16 if small else 64
    for steps in (64, 128) if small else (128, 1024, 65536):
        rivals = [bptt(), checkpointed(steps), *_pair(64)]
        grown = case("grow T", partial(gated.gru, 1, units), steps, rivals, "T", B=1, H=units)
        found.append(grown._replace(turns=1 if steps > 10_000 else 3))
    for units in (8, 16) if small else (64, 256, 512) + (1024,) * full:
        found.append(case("grow H", partial(gated.gru, b, units), t // 2, [bptt(), *_pair(32)], "H", B=b, H=units))
    for batch in (1, 4) if small else (1, 64, 256):
        found.append(case("grow B", partial(gated.gru, batch, h), t // 2, [bptt(), *_pair(32)], "B", B=batch, H=h))
    windows = (1, 8) if small else (1, 4, 16, 64, 256)
    rivals = [bptt(), *(r for k in windows for r in _pair(k))]
    found.append(case("grow K", partial(gated.gru, b, h), t, rivals, "K", B=b, H=h))
    for n in (128, 256) if small else (4096, 16384, 65536, 262144):
        make = partial(sparse.sparse_lif, 4, n, 8 * n)
        found.append(case("grow synapses", make, 10, [bptt(), *_pair(5)], "synapses", B=4, N=n, synapses=8 * n))
    return [c._replace(budget=2.0) for c in found]


def by_hand_cases(size: str) -> list[Case]:
    """An update at every step, beside learners that were written by hand for one cell."""
    steps, cells = (16, by_hand.SMALL_CELLS) if size == "quick" else (500, by_hand.CELLS)
    tiny = partial(by_hand.lru_tight, 2, 10, 2)
    rivals = [by_hand.gradient_by_hand(tiny), bptt(), *(ours("d_rtrl", k) for k in (1, 10, 100))]
    whole = case("tiny lru", lambda: tiny().workload, 100, rivals, B=2, N=10)
    online = [
        case(f"by hand {cell.name}", lambda cell=cell: cell.make().workload, steps,
             [by_hand.by_hand(cell.make), by_hand.online(cell.make().rule)], **cell.sizes)
        for cell in cells
    ]  # fmt: skip
    return [c._replace(turns=9, budget=2.0) for c in (whole, *online)]


def full_cases() -> list[Case]:
    """Sizes that the default leaves out."""
    found = [gru_cases(b, h, 256, 64, 16) for h in (64, 1024) for b in (1, 16, 128)]
    for b in (1, 128):
        for make, name in ((spiking.lif, "lif"), (spiking.alif, "alif")):
            for t in (50, 1000 if b == 1 else 200):
                found.append(case(name, partial(make, b), t, [bptt(), *_pair(10), *_both(10, 10)], B=b, H=512))
    return found


def suite(size: str = "default") -> list[Case]:
    """All cases of a size: `quick`, `default` or `full`."""
    if size == "quick":
        found = [gru_cases(4, 16, 64, 8, 16), gru_cases(1, 16, 64, 8, 16), online_case(4, 16, 16)]
        found.append(window_case(4, 16, 64, 16))
        found += [costly_case(4, 8, 8), large_case(2, 256, 10, 5), *by_hand_cases(size)]
        found += [*workload_cases(size), *stack_cases(size), *structure_cases(size), *growth_cases(size)]
        found += published_cases(size)
    else:
        found = [gru_cases(16, 256, 1024, 64, 64), gru_cases(1, 256, 1024, 64, 64), online_case(16, 256, 32)]
        found.append(window_case(16, 256, 1024, 64))
        found += [costly_case(16, 64, 8), *by_hand_cases(size)]
        found += [*workload_cases(size), *stack_cases(size), *structure_cases(size), *growth_cases(size)]
        found += published_cases(size)
        found += [large_case(32, 131_072, 30, 10) if size == "full" else large_case(32, 131_072, 10, 5)]
        found += full_cases() if size == "full" else []
    if peer.present():
        return found
    return [c._replace(rivals=tuple(r for r in c.rivals if not r.name.startswith("braintrace"))) for c in found]
