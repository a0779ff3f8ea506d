"""How many parameters of published recurrent layers are exact under a rule, and whether that is true.

    python -m benchmarks.verdicts                # all models under `d_rtrl`
    python -m benchmarks.verdicts Mamba mLSTM    # those whose names begin so, with each parameter's reason

For each model the verdicts are counted, and the gradient at window 1 of 8 steps is compared with BPTT in float64: the
largest relative error of what is called exact, and the lowest cosine of the rest, beside that of no trace at all.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from typing import Any

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from benchmarks.verdict_models import MODELS, TOKENS, B, I  # noqa: E402

import etrax  # noqa: E402

T = 8
KINDS = ("exact", "approximate", "truncated", "unused")


def half_square(output: Any, target: Any) -> Any:
    return 0.5 * ((output - target) ** 2).sum()


def drawn(name: str) -> tuple[Any, Any, Any, Any, Any]:
    """A model's step, parameters and states, and a sequence of inputs and targets."""
    rng = np.random.RandomState(len(name))
    step, params, hidden = MODELS[name](lambda *shape: jnp.asarray(0.6 * rng.standard_normal(shape)))
    x = rng.randint(TOKENS[name], size=(T, B)) if name in TOKENS else rng.standard_normal((T, B, I))
    _, output = jax.eval_shape(step, params, hidden, jnp.asarray(x[0]))
    return step, params, hidden, jnp.asarray(x), jnp.asarray(rng.standard_normal((T, *output.shape)))


def gradient(step: Any, params: Any, hidden: Any, x: Any, target: Any) -> Any:
    """BPTT over the whole sequence, by `jax.grad` alone."""

    def loss(p: Any) -> Any:
        return half_square(jax.lax.scan(partial(step, p), hidden, x)[1], target)

    return jax.grad(loss)(params)


def error_and_cosine(a: Any, b: Any) -> tuple[float, float]:
    norms = float(jnp.linalg.norm(a)) * float(jnp.linalg.norm(b))
    return float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)), float((a * b).sum()) / norms if norms else 0.0


def judged(name: str, reasons: bool) -> Counter[str]:
    """Count the verdicts of a model's parameters, and print them beside what the numbers say."""
    step, params, hidden, x, target = drawn(name)
    true = gradient(step, params, hidden, x, target)
    rows: dict[str, dict[str, tuple[float, float]]] = {}
    for rule in ("d_rtrl", "tbptt"):
        learner = etrax.compile(step, rule, x[0], params=params, hidden=hidden)
        run = learner.value_and_grad(half_square, window=1, reduction="sum")
        grads = run(params, learner.init(params, hidden), x, target)[0][1]
        rows[rule] = {k: error_and_cosine(grads[k], true[k]) for k in params}
        if rule == "d_rtrl":
            verdicts = {k: learner.report.verdicts[(k,)] for k in params}
            nbytes = sum(a.nbytes for a in jax.tree.leaves(learner.init(params, hidden).trace))
    counts = Counter(str(v.kind) for v in verdicts.values())
    exact = [rows["d_rtrl"][k][0] for k, v in verdicts.items() if v.kind == "exact"]
    rest = [k for k, v in verdicts.items() if v.kind in ("approximate", "truncated")]
    worst = min(rest, key=lambda k: rows["d_rtrl"][k][1], default=None)
    note = "" if worst is None else f"{worst} {rows['d_rtrl'][worst][1]:+.2f} ({rows['tbptt'][worst][1]:+.2f})"
    shown = "".join(f"{counts[k]:7}" for k in KINDS)
    print(f"{name:38}{shown}{max(exact, default=0.0):9.0e}{nbytes / 1024:8.1f}  {note}", flush=True)
    for k, v in verdicts.items() if reasons else ():
        error, cosine = rows["d_rtrl"][k]
        print(f"    {k:10} {v.kind:12} error {error:.0e} cosine {cosine:+.3f}: {v.reason}")
    return counts


def main(names: list[str]) -> None:
    print(f"{'':38}" + "".join(f"{k[:6]:>7}" for k in KINDS) + f"{'error':>9}{'KiB':>8}  lowest cosine (no trace)")
    total: Counter[str] = Counter()
    for name in MODELS:
        if not names or any(name.startswith(n) for n in names):
            total += judged(name, reasons=bool(names))
    print(f"{'all':38}" + "".join(f"{total[k]:7}" for k in KINDS) + f"   of {sum(total.values())}")


if __name__ == "__main__":
    main(sys.argv[1:])
