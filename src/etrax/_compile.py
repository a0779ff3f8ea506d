"""`etrax.compile`: from a model and a rule to a learner."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from . import rules
from ._arguments import check_flag, format_bytes, parse_bytes
from ._compat import is_live, shape_struct
from ._errors import ArgumentError, CompilationError
from ._sums import warn_of_wrong_sums
from .analysis import Facts, analyse
from .engine import planned
from .frontends import bind, check_kernels, compiling
from .graph import build_graph
from .ir import Bound, Path, PyTree, Role, Step, format_path
from .learn import Learner, check_mesh, check_trace_dtype, with_guarded_constants
from .report import Report
from .rules import Rule, RuleWarning, as_rule


def compile(
    model: object, rule: Rule | str, *example_inputs: PyTree, params: PyTree = None, hidden: PyTree = None,
    batch_size: int | None = None, trace_dtype: Any = None, check_finite: bool = False,
    memory_budget: float | str | None = None, mesh: Mesh | None = None,
    shard: str | Mapping[str, PartitionSpec] | None = None, **front_end_options: Any,
) -> Learner:  # fmt: skip
    """Compile a one-step model into an online learner.

    `model` is a function `step(params, hidden, *inputs) -> (hidden, output)`, with `params=` and `hidden=` as arrays or
    `jax.ShapeDtypeStruct`, or a module of brainstate, Flax or Equinox, which holds its parameters. A module of Flax or
    Equinox takes `hidden=` if its state is an argument of its, and `call=lambda module, hidden, *inputs: (hidden,
    output)` if it is called in a way of its own. `rule` is a rule or its name; `example_inputs` are those of one
    step. Traces are of type `trace_dtype`, by default that of the model and at least float32; `check_finite=True`
    watches for NaN and infinity and raises with the step and the parameter. A rule whose trace would pass
    `memory_budget` (bytes, or a text such as "2 GB") is refused.

    With a `mesh` of devices, `shard` says how parameters, states and inputs of one step are cut over it: "batch",
    "neuron" or "batch+neuron", or patterns over `/`-joined paths, `{"params/w": P(None, "neuron"), "hidden/.*":
    P("batch", "neuron")}`. Traces are placed with their samples and positions (docs/scaling.md).

    >>> import etrax, jax.numpy as jnp
    >>> def step(params, h, x):
    ...     h = 0.9 * h + x @ params["w"]
    ...     return h, h
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params={"w": jnp.ones((3, 4))}, hidden=jnp.zeros(4))
    >>> str(learner.report.verdicts["w",].kind)
    'exact'
    """
    trace_dtype, budget = check_trace_dtype(trace_dtype), parse_bytes("memory_budget", memory_budget)
    check_flag("check_finite", check_finite)
    check_mesh(mesh, shard)
    if mesh is not None and check_finite:
        raise ArgumentError("`check_finite=True` runs on one device: find the step there, without `mesh`.")
    rule = as_rule(rule)
    warn_of_wrong_sums()
    with compiling():
        bound = bind(model, example_inputs, params=params, hidden=hidden, batch_size=batch_size, **front_end_options)
        bound = replace(bound, step=with_guarded_constants(bound.step))
        facts = analyse(bound.step)
    check_kernels(facts.step, {facts.sites[j].call.primitive for j in planned(facts)})
    for path in integer_parameters(facts.step):
        warnings.warn(
            f"parameter {format_path(path, 'params')} holds whole numbers, which have no gradient: it will not learn. "
            "If it is to, pass it as floating-point numbers; if not, close over it.",
            RuleWarning,
            stacklevel=2,
        )
    for text in rule.warns(facts, None):
        warnings.warn(text, RuleWarning, stacklevel=2)
    if budget is not None:
        _check_budget(facts, rule, budget, trace_dtype)

    def at_batch(batch: int) -> Learner:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuleWarning)
            return compile(
                model, rule, *with_batch(example_inputs, bound.step, batch), params=params, trace_dtype=trace_dtype,
                hidden=None if hidden is None else with_batch(hidden, bound.step, batch),
                batch_size=None if batch_size is None else batch, mesh=mesh, shard=shard, **front_end_options,
            )  # fmt: skip

    return Learner(
        facts,
        rule,
        _initial(bound),
        trace_dtype=trace_dtype,
        check_finite=check_finite,
        memory_budget=budget,
        at_batch=at_batch,
        mesh=mesh,
        shard=shard,
        bound=bound,
        graph=lambda: build_graph(bound, facts, include_hidden_perturb=True),
        report=Report.of,
    )


def _initial(bound: Bound) -> Callable[[], tuple[PyTree, PyTree]]:
    """Parameters and states as they are at this moment; those of a trace that has ended since are read again."""
    kept: list[tuple[PyTree, PyTree]] = []

    def initial() -> tuple[PyTree, PyTree]:
        if not kept or not is_live(kept):
            params, hidden, other = bound.read()
            # Copies: who changes an array or a dictionary in place afterwards does not change the learner.
            kept[:] = [jax.tree.map(_own, (params, bound.join(hidden, other)))]
        return kept[0]

    initial()
    return initial


def _own(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def integer_parameters(step: Step) -> list[Path]:
    """Parameters that have no gradient whatever the rule: whole numbers and booleans."""
    return [leaf.path for leaf in step.select(Role.PARAM) if getattr(leaf.aval.dtype, "kind", "") in tuple("biu")]


def with_batch(tree: PyTree, step: Step, batch: int) -> PyTree:
    """Shapes of a tree with another first axis, in place of the one that all states and inputs share."""
    leaves = [*step.select(Role.HIDDEN), *step.select(Role.INPUT)]
    first = {leaf.aval.shape[:1] for leaf in leaves}
    if len(first) != 1 or first == {()}:
        raise CompilationError(
            "another batch size needs a model whose states and inputs all have the batch as their first axis."
        )

    def one(a: PyTree) -> PyTree:
        found = shape_struct(a)
        return jax.ShapeDtypeStruct((batch, *found.shape[1:]), found.dtype)

    return jax.tree.map(one, tree)


def _check_budget(facts: Facts, rule: Rule, budget: float, trace_dtype: Any) -> None:
    """Refuse a rule whose trace alone passes the budget, and name those whose trace does not."""
    needed = rule.size(facts, trace_dtype)
    if needed <= budget:
        return
    others = (rules.tbptt(), rules.pp_prop(), rules.d_rtrl(), rules.d_rtrl(fan_out=0), rules.ottt(0.9), rules.rflo(0.9))
    sizes = {str(r): r.size(facts, trace_dtype) for r in others}
    fitting = [f"{name} ({format_bytes(n)})" for name, n in sorted(sizes.items(), key=lambda kv: -kv[1]) if n <= budget]
    raise CompilationError(
        f"the trace of {rule} takes {format_bytes(needed)}, more than `memory_budget` ({format_bytes(budget)}). These "
        f"would fit: {', '.join(fitting)}. Or use a smaller batch, or `trace_dtype=jnp.bfloat16` for half of it."
    )
