"""Whether a trace that is carried in part is better than none: cosines with BPTT on a set of models.

    python -m benchmarks.half_carried            # windows of 1, 2 and 4 of 24 steps

One weight op has a trace to one state and reaches another by a path that no trace follows. `kept` carries the trace,
`left out` does not: the gradient is then that of `tbptt`. The last column is what the rules do (analysis/_carried.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from benchmarks.half_carried_models import MODELS, B, Build, I  # noqa: E402

import etrax  # noqa: E402
from etrax.compiler.analysis import Facts, StateNode  # noqa: E402
from etrax.compiler.analysis._carried import partly_carried  # noqa: E402
from etrax.compiler.ir import Role  # noqa: E402
from etrax.rules._verdicts import by_position_verdict  # noqa: E402
from etrax.runtime import Transport, plan_of, plan_probes, reduced_view  # noqa: E402
from etrax.runtime.traces import by_position_transport  # noqa: E402

T, SEEDS, WINDOWS = 24, 16, (1, 2, 4)


def half_square(output: Any, target: Any) -> Any:
    return 0.5 * ((output - target) ** 2).sum()


def weights(rng: np.random.RandomState, *shape: int) -> Any:
    return jnp.asarray(rng.standard_normal(shape) / np.sqrt(shape[0]))


def draws(build: Build) -> tuple[Callable[..., Any], Any, Any, Any, Any]:
    """A model's step and state; parameters, inputs and targets of every seed, the targets by other parameters."""
    found = []
    for seed in range(SEEDS):
        rng = np.random.RandomState(seed)
        draw = partial(weights, rng)
        (step, params, hidden), (_, teacher, _) = build(draw), build(draw)
        x = jnp.asarray(rng.standard_normal((T, B, I)))
        found.append((params, x, jax.lax.scan(partial(step, teacher), hidden, x)[1]))
    return step, hidden, *(jax.tree.map(lambda *a: jnp.stack(a), *many) for many in zip(*found, strict=True))


def _kept(facts: Facts, sites: Any = None, trace_dtype: Any = None) -> Transport:
    """D-RTRL with every trace that it can carry."""
    live = [any(StateNode(i) in facts.live for i in g.leaves) for g in facts.groups]
    relations = [r for r in facts.relations if r.representable and live[r.group]]
    return by_position_transport(plan_of(plan_probes(reduced_view(facts), relations), trace_dtype))


RULES = {"kept": etrax.Rule("kept", _kept, by_position_verdict), "left out": etrax.tbptt()}


def cosine(a: Any, b: Any) -> Any:
    return (a * b).sum() / jnp.sqrt((a**2).sum() * (b**2).sum())


def cosines(build: Build, windows: tuple[int, ...]) -> tuple[Facts, dict[int, list[Any]]]:
    """Per window: cosines over seeds with the trace, without it."""
    step, hidden, *data = draws(build)
    params = jax.tree.map(lambda a: a[0], data[0])
    learners = [etrax.compile(step, r, data[1][0, 0], params=params, hidden=hidden) for r in RULES.values()]

    @jax.jit
    @jax.vmap
    def run(params: Any, x: Any, target: Any) -> Any:
        def loss(p: Any) -> Any:
            return half_square(jax.lax.scan(partial(step, p), hidden, x)[1], target)

        want = jax.grad(loss)(params)["w"]
        found = {}
        for K in windows:
            runs = [(ln.value_and_grad(half_square, window=K, reduction="sum"), ln) for ln in learners]
            found[K] = [cosine(f(params, ln.init(params, hidden), x, target)[0][1]["w"], want) for f, ln in runs]
        return found

    return learners[0].facts, run(*data)


def is_left_out(facts: Facts) -> bool:
    """Whether the rules leave the trace of `w` out."""
    w = [leaf.path for leaf in facts.step.select(Role.PARAM)].index(("w",))
    return any(w in facts.sites[half.relation.site].params for half in partly_carried(facts))


def main(names: list[str]) -> None:
    print(
        f"{'cosine with BPTT, mean over seeds':42}" + "".join(f"{f'K={K}: kept':>12}{'left out':>10}" for K in WINDOWS)
    )
    rows: list[tuple[bool, np.ndarray]] = []
    for name, build in MODELS.items():
        if names and name not in names:
            continue
        facts, found = cosines(build, WINDOWS)
        table = np.asarray([[np.mean(c) for c in found[K]] for K in WINDOWS])
        rows.append((is_left_out(facts), table))
        shown = "".join(f"{kept:+12.2f}{out:+10.2f}" for kept, out in table)
        print(f"{name:42}{shown}   the rules {'leave it out' if rows[-1][0] else 'keep it'}", flush=True)
    chosen = np.asarray([table[:, int(out)] for out, table in rows])
    every = np.asarray([table for _, table in rows])
    for what, many in (("all kept", every[..., 0]), ("all left out", every[..., 1]), ("as the rules do", chosen)):
        print(f"{what:42}mean {many.mean(0).round(2)}  worst {many.min(0).round(2)}")


if __name__ == "__main__":
    main(sys.argv[1:])
