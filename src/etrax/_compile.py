"""`etrax.compile`: from a model and a rule to a learner."""

from __future__ import annotations

import warnings
from inspect import signature
from typing import Any

from . import learn
from ._compile_graph import compiling
from ._errors import CompilationError
from .analysis import analyse
from .analysis.graph import build_graph
from .frontends import bind
from .learn import Learner, Rule, RuleWarning
from .report import Report

RULES = {
    "tbptt": learn.tbptt, "d_rtrl": learn.d_rtrl, "pp_prop": learn.pp_prop, "rtrl": learn.rtrl, "e_prop": learn.e_prop,
    "rflo": learn.rflo, "three_factor": learn.three_factor, "uoro": learn.uoro, "ottt": learn.ottt,
    "ostl": learn.ostl, "snap": learn.snap, "partition": learn.partition, "synthetic": learn.synthetic,
}  # fmt: skip


def compile(
    model: Any, rule: Rule | str, *example_inputs: Any, params: Any = None, hidden: Any = None,
    batch_size: int | None = None, trace_dtype: Any = None, check_finite: bool = False,
    **front_end_options: Any,
) -> Learner:  # fmt: skip
    """Compile a one-step model into an online learner.

    `model` is a function `step(params, hidden, *inputs) -> (hidden, output)`, with `params=` and `hidden=` as arrays or
    `jax.ShapeDtypeStruct`, or a `brainstate.nn.Module`. `rule` is a rule or its name; `example_inputs` are those of one
    step. Traces are of type `trace_dtype`, by default that of the model and at least float32; `check_finite=True`
    watches for NaN and infinity and raises with the step and the parameter.

    >>> import etrax, jax.numpy as jnp
    >>> def step(params, h, x):
    ...     h = 0.9 * h + x @ params["w"]
    ...     return h, h
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params={"w": jnp.ones((3, 4))}, hidden=jnp.zeros(4))
    >>> str(learner.report.verdicts["w",].kind)
    'exact'
    """
    if isinstance(rule, str):
        rule = _by_name(rule)
    if not isinstance(rule, Rule):
        raise CompilationError(f"`rule` is a {type(rule).__name__}; pass a rule such as `etrax.d_rtrl()`, or its name.")
    with compiling():
        bound = bind(model, example_inputs, params=params, hidden=hidden, batch_size=batch_size, **front_end_options)
        facts = analyse(bound.step)
    for text in rule.warns(facts, None):
        warnings.warn(text, RuleWarning, stacklevel=2)
    return Learner(
        facts,
        rule,
        bound.params,
        merged(bound.hidden, bound.other),
        trace_dtype=trace_dtype,
        check_finite=check_finite,
        encode=bound.encode,
        decode=bound.decode_output,
        graph=lambda: build_graph(bound, facts, include_hidden_perturb=True),
        report=Report.of,
    )


def _by_name(name: str) -> Rule:
    if name not in RULES:
        raise CompilationError(f"there is no rule {name!r}; the rules are {', '.join(sorted(RULES))}.")
    needed = [p.name for p in signature(RULES[name]).parameters.values() if p.default is p.empty]
    if needed:
        shown = ", ".join(f"{n}=..." for n in needed)
        raise CompilationError(
            f"the rule {name!r} has no default for {', '.join(needed)}: pass `etrax.{name}({shown})`."
        )
    return RULES[name]()


def merged(hidden: Any, other: Any) -> Any:
    """Hidden and other states as one tree: dictionaries are merged by key."""
    if other is None or other == {}:
        return hidden
    if hidden is None or hidden == {}:
        return other
    return {
        k: merged(hidden.get(k), other.get(k)) if k in hidden and k in other else hidden.get(k, other.get(k))
        for k in {**hidden, **other}
    }
