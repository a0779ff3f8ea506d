"""What is checked of a model: rules and ways to run them, a few per model, all of them over many models."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import etrax

# A rule that uses the gradient of the loss equals BPTT when one window covers the sequence.
LOSS_GRADIENT = {
    "tbptt": "etrax.tbptt()", "d_rtrl": "etrax.d_rtrl()",
    "d_rtrl(fan_out)": "etrax.d_rtrl(fan_out=None)", "d_rtrl(depth)": 'etrax.d_rtrl(depth="10 MB")',
    "pp_prop": "etrax.pp_prop(0.9)", "e_prop": "etrax.e_prop()",
    "ostl": "etrax.ostl()", "snap(1)": "etrax.snap(1)", "snap(2)": "etrax.snap(2)", "rtrl": "etrax.rtrl()",
    "uoro": "etrax.uoro(0)", "kf_rtrl": "etrax.kf_rtrl(0)", "ottt": "etrax.ottt(0.9)", "rflo": "etrax.rflo(0.9)",
    "synthetic": "etrax.synthetic()",
    "partition": "etrax.partition({lambda path: ord(path[0][-1]) % 2 == 0: etrax.rtrl()}, etrax.d_rtrl())",
}  # fmt: skip
OTHER_SIGNAL = {
    "e_prop(0.5)": "etrax.e_prop(0.5)", "e_prop(random)": 'etrax.e_prop(feedback="random", key=0)',
    "three_factor": "etrax.three_factor()",
}  # fmt: skip
RULES = LOSS_GRADIENT | OTHER_SIGNAL
DRAWN = [name for name in RULES if name != "d_rtrl(depth)"]  # that one stands in for `d_rtrl` in some models
# The gradient of a batch is the sum over its samples: no noise that is shared, no signal that is the batch's own.
BY_SAMPLE = frozenset(
    [
        "tbptt",
        "d_rtrl",
        "d_rtrl(fan_out)",
        "d_rtrl(depth)",
        "pp_prop",
        "e_prop",
        "ostl",
        "snap(1)",
        "snap(2)",
        "rtrl",
        "ottt",
        "rflo",
    ]
)


def rule_of(name: str) -> Any:
    return eval(RULES[name], {"etrax": etrax})


# A run that must agree: fed in parts, sample by sample, step by step; with constants of the step that were changed in
# place after compiling; derivatives of what the learner computes; with a reset in the middle.
EXTRAS = ("", "pieces", "samples", "steps", "constants", "outer", "resets")
# Nothing of these outlives a reset: no key, no matrix that is learned.
FORGETTING = BY_SAMPLE | {"e_prop(0.5)", "e_prop(random)", "three_factor"}


class Case(NamedTuple):
    """One run: `mask` is "", "steps" or "samples"; `extra` one of `EXTRAS`."""

    rule: str
    window: int
    reduction: str = "sum"
    mask: str = ""
    extra: str = ""

    @property
    def whole(self) -> bool:
        return self.window >= 100


WHOLE = 100  # a window longer than any sequence


def draw_cases(seed: int, batched: bool, mutable: bool = False) -> list[Case]:
    """One run of most models, under `d_rtrl` or `rtrl` in half of them; two of some, with one loss for both.

    Few runs of many models find more than many runs of few. `mutable` says that the step reads arrays of numpy.
    """
    rng = random.Random(f"cases {seed}")
    masks = ["", "", "", "steps"] + (["samples"] if batched else [])
    mask, reduction = rng.choice(masks), rng.choice(("sum", "mean"))
    extra = rng.choice(("pieces", "steps", "samples" if batched else "pieces")) if rng.random() < 0.1 else ""
    if extra:  # both hold for sums
        mask, reduction = "", "sum"
    proven = rng.choice(("d_rtrl", "rtrl"))
    rules = [proven if rng.random() < 0.5 else rng.choice(DRAWN)]
    rules += [rng.choice(DRAWN)] if rng.random() < 0.1 else []
    cases = [Case(rule, rng.choice((1, 2)), reduction, mask) for rule in rules]
    if rng.random() < 0.2:
        cases[-1] = cases[-1]._replace(window=WHOLE)
    at = rng.randrange(len(cases))
    if extra == "pieces" or cases[at].rule in BY_SAMPLE:
        cases[at] = cases[at]._replace(extra=extra, window=1 if extra == "steps" else cases[at].window)
    own = random.Random(f"extra {seed}")  # by itself, so that other seeds give the cases that they gave
    if mutable or own.random() < 0.03:
        cases[-1] = cases[-1]._replace(extra="constants" if mutable else "outer")
    if cases[0].rule == "d_rtrl" and random.Random(f"depth {seed}").random() < 0.1:
        cases[0] = cases[0]._replace(rule="d_rtrl(depth)")
    restarts = random.Random(f"resets {seed}").random() < 0.05
    if restarts and not cases[-1].extra and not cases[-1].whole and cases[-1].rule in FORGETTING:
        cases[-1] = cases[-1]._replace(extra="resets", mask="", reduction="sum")
    return cases
