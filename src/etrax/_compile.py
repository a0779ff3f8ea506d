"""`etrax.compile`: from a model and a rule to a learner."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from ._compat import shape_struct
from ._errors import CompilationError
from .compiler.analysis import analyse, with_rows_apart
from .compiler.ir import Path, PyTree, Role, Step, format_path
from .compiler.opened import with_data_first
from .frontends import bind, check_operations, compiling
from .learn import Learner, Model, checked_options, resolved, with_guarded_constants
from .rules import Rule, RuleWarning, as_rule, check_budget
from .runtime import kernels_of


def compile(
    model: object, rule: Rule | str, *example_inputs: PyTree, params: PyTree = None, hidden: PyTree = None,
    batch_size: int | None = None, trace_dtype: Any = None, check_finite: bool = False,
    memory_budget: float | str | None = None, mesh: Mesh | None = None,
    shard: str | Mapping[str, PartitionSpec] | None = None, **front_end_options: Any,
) -> Learner:  # fmt: skip
    """Compile a one-step model into an online learner.

    - `model`: a function `step(params, hidden, *inputs) -> (hidden, output)`, or a module of brainstate, Flax or
      Equinox.
    - `rule`: a rule, such as `etrax.d_rtrl()`, or its name.
    - `example_inputs`: the inputs of one step. Only their structure, shapes and types count.
    - `params`: the parameters of a function, or the variables of a Linen module; arrays or `jax.ShapeDtypeStruct`.
      Other modules bring their own.
    - `hidden`: the initial hidden state of a function, or of a module that takes its state as an argument.
    - `batch_size`: creates the states of a brainstate module for a batch of this size.
    - `trace_dtype`: the type of the traces; by default that of the model, and at least float32.
    - `check_finite`: watches for NaN and infinity, and raises an error that names the step and the parameter.
    - `memory_budget`: bytes, or a text such as "2 GB"; a rule whose trace would take more is refused.
    - `mesh`: the devices to run on, if there are several.
    - `shard`: how parameters, states and inputs are divided among the devices: "batch", "neuron" or "batch+neuron", or
      patterns over `/`-joined paths, `{"params/w": P(None, "neuron"), "hidden/.*": P("batch", "neuron")}`. Traces are
      placed with their samples and positions.
    - `front_end_options`: `call=lambda module, hidden, *inputs: (hidden, output)`, for a Flax or Equinox module that is
      not called in the usual way.

    >>> import etrax, jax.numpy as jnp
    >>> def step(params, h, x):
    ...     h = 0.9 * h + x @ params["w"]
    ...     return h, h
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params={"w": jnp.ones((3, 4))}, hidden=jnp.zeros(4))
    >>> str(learner.report.verdicts["w",].kind)
    'exact'
    """
    options = checked_options(
        trace_dtype=trace_dtype, check_finite=check_finite, memory_budget=memory_budget, mesh=mesh, shard=shard
    )
    rule = as_rule(rule)
    values = {"params": params, "hidden": hidden, "batch_size": batch_size, **front_end_options}
    analysed = analyse_model(model, example_inputs, values)
    facts = analysed.facts
    check_operations(facts.step, {facts.sites[j].call.primitive for j in kernels_of(facts)})
    for path in integer_parameters(facts.step):
        warnings.warn(
            f"parameter {format_path(path, 'params')} holds whole numbers, which have no gradient: it will not learn. "
            "If it is to, pass it as floating-point numbers; if not, close over it.",
            RuleWarning,
            stacklevel=2,
        )
    rule = resolved(analysed, rule, options)
    facts = rule.facts_for(facts)
    for text in rule.warns(facts, None):
        warnings.warn(text, RuleWarning, stacklevel=2)
    if options.memory_budget is not None:
        check_budget(facts, rule, options.memory_budget, options.trace_dtype)
    return Learner(analysed, rule, options)


def analyse_model(model: object, example_inputs: tuple[PyTree, ...], values: Mapping[str, Any]) -> Model:
    """Bind a model to example inputs and analyse its step. `values` are what its front end takes besides."""
    with compiling():
        bound = bind(model, example_inputs, **values)
        bound = replace(bound, step=with_guarded_constants(bound.step))
        facts = with_rows_apart(analyse(with_data_first(bound.step)))
        bound = replace(bound, step=facts.step)

    def at_batch(batch: int) -> Model:
        hidden, size = values["hidden"], values["batch_size"]
        other = {
            "hidden": None if hidden is None else with_batch(hidden, bound.step, batch),
            "batch_size": None if size is None else batch,
        }
        return analyse_model(model, with_batch(example_inputs, bound.step, batch), {**values, **other})

    return Model(facts, bound, at_batch)


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
        struct = shape_struct(a)
        return jax.ShapeDtypeStruct((batch, *struct.shape[1:]), struct.dtype)

    return jax.tree.map(one, tree)
