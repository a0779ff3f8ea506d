"""Gradients of Etrax and of braintrace on the same models, number by number, and a judge for each disagreement.

    python -m benchmarks.agreement docs/agreement.md      # needs etrax[compare]

One section per version of braintrace: run it in an environment of each, and the section of that version is replaced.
The judge of rules that follow the gradient is BPTT, which finite differences confirm on smooth models. A filter κ has
no gradient to be held against: its judge is Σ_t s_t · ε̄_t by dense Jacobians.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from benchmarks.agreement_models import MODELS, B, I, Model, O, T, Tree  # noqa: E402

import etrax  # noqa: E402

KAPPA = 0.9
# Ours, theirs and its options, and whether BPTT is the judge.
RULES: dict[str, tuple[etrax.Rule, str, dict[str, Any], bool]] = {
    "d_rtrl / D_RTRL": (etrax.d_rtrl(fan_out=0), "D_RTRL", {}, True),  # braintrace has no traces over pairs
    "pp_prop / pp_prop": (etrax.pp_prop(0.9), "pp_prop", {"decay_or_rank": 0.9}, True),
    "e_prop(0.9) / EProp": (etrax.e_prop(KAPPA), "EProp", {"kappa_filter_decay": KAPPA}, False),
    "ostl / OSTLRecurrent": (etrax.ostl(), "OSTLRecurrent", {}, True),
    "snap(2) / SnAp": (etrax.snap(2), "SnAp", {"n": 2}, True),
}
SAME = 1e-9


class Row(NamedTuple):
    """Relative differences; `theirs` is None with a message where it did not run."""

    model: str
    param: str
    rule: str
    apart: float
    theirs: float
    ours: float
    verdict: str
    message: str = ""


def product(x: Any, w: Any) -> Any:
    return x @ w


def half_square(output: Any, target: Any) -> Any:
    return 0.5 * ((output - target) ** 2).sum()


def data() -> tuple[Any, Any]:
    rng = np.random.RandomState(0)
    return jnp.asarray(rng.standard_normal((T, B, I))), jnp.asarray(rng.standard_normal((T, B, O)))


def total_loss(model: Model, params: Tree) -> Any:
    hidden, total = model.hidden, 0.0
    for x, target in zip(*data(), strict=True):
        hidden = model.advance(product, params, hidden, x)
        total += half_square(model.read(params, hidden), target)
    return total


def bptt(model: Model) -> Tree:
    return jax.jit(jax.grad(lambda p: total_loss(model, p)))(model.params)


def finite_differences(model: Model, size: float = 1e-6) -> Tree:
    value, found = jax.jit(lambda p: total_loss(model, p)), {}
    for key, a in model.params.items():
        ends = [
            [value(model.params | {key: a.at[at].add(sign * size)}) for sign in (1, -1)] for at in np.ndindex(a.shape)
        ]
        found[key] = jnp.asarray([(up - down) / (2 * size) for up, down in ends]).reshape(a.shape)
    return found


def filtered(model: Model) -> Tree:
    """Σ_t s_t · ε̄_t: products pass no gradient to their data; without a trace, the gradient of each step alone."""

    def cut(x: Any, w: Any) -> Any:
        return jax.lax.stop_gradient(x) @ w

    jacobian = jax.jit(jax.jacrev(lambda p, s, x: model.advance(cut, p, s, x), argnums=(0, 1)))
    own = jax.jit(jax.grad(lambda p, s, t: half_square(model.read(p, s), t), argnums=(0, 1)))
    alone = jax.jit(jax.grad(lambda p, s, x, t: half_square(model.read(p, model.advance(product, p, s, x)), t)))
    hidden, names, leaves = model.hidden, list(model.params), list(model.hidden)
    trace = {s: {k: jnp.zeros((*model.hidden[s].shape, *model.params[k].shape)) for k in names} for s in leaves}
    sums, grads = trace, {k: jnp.zeros_like(a) for k, a in model.params.items()}
    steps, reaches = {k: jnp.zeros_like(a) for k, a in model.params.items()}, dict.fromkeys(names, False)
    for x, target in zip(*data(), strict=True):
        by = jacobian(model.params, hidden, x)
        trace = {
            s: {k: by[s][0][k] + sum(jnp.tensordot(by[s][1][r], trace[r][k], 2) for r in leaves) for k in names}
            for s in leaves
        }
        sums = jax.tree.map(lambda a, b: KAPPA * a + b, sums, trace)
        steps = jax.tree.map(jnp.add, steps, alone(model.params, hidden, x, target))
        hidden = model.advance(product, model.params, hidden, x)
        direct, signal = own(model.params, hidden, target)
        for k in names:
            reaches[k] = reaches[k] or any(bool(jnp.any(by[s][0][k])) for s in leaves)
            grads[k] = grads[k] + direct[k] + sum(jnp.tensordot(signal[s], sums[s][k], 2) for s in leaves)
    return {k: g if reaches[k] else steps[k] for k, g in grads.items()}


def ours(model: Model, rule: etrax.Rule) -> tuple[Tree, etrax.Learner]:
    def step(p: Tree, s: Tree, x: Any) -> tuple[Tree, Any]:
        new = model.advance(product, p, s, x)
        return new, model.read(p, new)

    x, target = data()
    learner = etrax.compile(step, rule, x[0], params=model.params, hidden=model.hidden)
    run = learner.value_and_grad(half_square, window=1, reduction="sum")
    return run(model.params, learner.init(), x, target)[0][1], learner


def theirs(model: Model, rule: str, options: dict[str, Any]) -> Tree:
    import brainstate
    import braintrace

    class Net(brainstate.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = {k: brainstate.ParamState(v) for k, v in model.params.items()}

        def init_state(self, *_: Any, **__: Any) -> None:
            self.states = {k: brainstate.HiddenState(v) for k, v in model.hidden.items()}

        def update(self, x: Any) -> Any:
            values = {k: s.value for k, s in self.weights.items()}
            new = model.advance(braintrace.matmul, values, {k: s.value for k, s in self.states.items()}, x)
            for k, s in self.states.items():
                s.value = new[k]
            return model.read(values, new)

    x, target = data()
    learner = braintrace.compile(Net(), getattr(braintrace, rule), x[0], batch_size=B, **options)
    found = learner.etrace_grad(x, target, step_fn=lambda x, t: half_square(learner(x), t), reduction="sum")
    return {path[-1]: value for path, value in found.items()}


def error(a: Any, b: Any) -> float:
    a, b = np.asarray(a), np.asarray(b)
    size = np.linalg.norm(b)
    return float(np.linalg.norm(a - b) / size) if size else float(np.linalg.norm(a))


def rows() -> Iterator[Row]:
    for name, model in MODELS.items():
        judges: dict[bool, Tree] = {True: bptt(model), False: filtered(model)}
        for label, (rule, peer, options, follows) in RULES.items():
            own, learner = ours(model, rule)
            try:
                other, message = theirs(model, peer, options), ""
            except Exception as problem:  # whatever it raises is what its user would see
                other, message = {}, f"{type(problem).__name__}: {str(problem).splitlines()[0][:80]}"
            judge = judges[follows]
            for k, g in own.items():
                away = [error(other[k], v) for v in (g, judge[k])] if k in other else [np.nan, np.nan]
                missing = message or ("" if k in other else "no gradient")
                verdict = str(learner.report.verdicts[k,].kind)
                yield Row(name, k, label, away[0], away[1], error(g, judge[k]), verdict, missing)
        print(name, "done", file=sys.stderr, flush=True)


def section(found: list[Row], differences: float, title: str) -> str:
    agreed = [r for r in found if r.apart < SAME]
    exact = [r for r in found if r.verdict == "exact"]
    worst = max((r.ours for r in exact), default=0.0)
    lines = [
        f"## {title}", "",
        f"{len(found)} gradients (a model, a parameter, a rule): {len(agreed)} are the same to {SAME:g}. "
        f"Of ours, {len(exact)} are called exact, and the largest error among them is {worst:.0e}. "
        f"Finite differences and BPTT of smooth models differ by at most {differences:.0e}.", "",
        "| rules | model | parameter | apart | error, braintrace | error, Etrax | Etrax says |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in sorted(found, key=lambda r: list(RULES).index(r.rule)):
        if not r.apart < SAME:
            shown = [r.message] * 2 if r.message else [_number(r.apart), _number(r.theirs)]
            model, mine = r.model.replace("|", "\\|"), _number(r.ours)
            lines.append(f"| {r.rule} | {model} | `{r.param}` | {shown[0]} | {shown[1]} | {mine} | {r.verdict} |")
    same: dict[str, list[str]] = {}
    for r in agreed:
        same.setdefault(r.rule, []).append(f"{r.model} `{r.param}`".replace("|", "\\|"))
    lines += ["", "The same in both:", ""] + [f"- {rule}: {'; '.join(names)}" for rule, names in same.items()]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return "0" if value < SAME else f"{value:.2g}"


HEAD = """# Agreement with braintrace

Written by `python -m benchmarks.agreement docs/agreement.md`, one section per version of braintrace. Float64, {T}
steps, a gradient at every step (window 1; braintrace in its default mode). Errors are relative, against BPTT; for
`e_prop(0.9)`, which is no gradient, against Σ_t s_t · ε̄_t by dense Jacobians. Products that drive states are
braintrace's own op there and `@` here; everything else is plain JAX in both, readouts too.

Rules of one name need not be the same rule: inside a window Etrax is exact, so one step of the recurrence through
weights counts in `d_rtrl`, `pp_prop`, `ostl` and `snap`, and does not in braintrace. `uoro` is random: it is held
against a second implementation with the same signs in `tests/rules/test_papers.py`, with the other rules.
"""


def write(path: Path, title: str, text: str) -> None:
    """Replace the section of this title, or add it."""
    before = path.read_text() if path.exists() else ""
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", before, re.M | re.S))
    sections[title] = text.split("\n", 1)[1]
    body = "\n".join(f"## {name}\n\n{rest.strip()}\n" for name, rest in sorted(sections.items()))
    path.write_text(HEAD.replace("{T}", str(T)) + "\n" + body)


def main(out: Callable[[str], object] = print) -> None:
    import brainstate

    brainstate.environ.set(precision=64)  # its import has set another
    title = f"braintrace {version('braintrace')}, jax {version('jax')}"
    smooth = [m for m in MODELS.values() if m.smooth]
    pairs = [(finite_differences(m), bptt(m)) for m in smooth]
    found = list(rows())
    text = section(found, max(error(a[k], b[k]) for a, b in pairs for k in b), title)
    if len(sys.argv) > 1:
        write(Path(sys.argv[1]), title, text)
    out(text)
    wrong = [r for r in found if r.verdict == "exact" and not r.ours < SAME]
    if wrong:
        raise SystemExit(f"called exact, and not: {wrong}")


if __name__ == "__main__":
    main()
