"""The compiler API: the traced step, its groups, its relations, its perturbation."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace

from .._errors import ArgumentTypeError, CompilationError
from ..compiler.analysis import Facts
from ..compiler.ir import Bound, Path, PyTree, format_path
from ..compiler.opened import with_elementwise_ops
from ..frontends import Values, bind, compiling, front_end_of, is_module, named_libraries
from ._build import build_graph, build_groups, build_relations
from ._diagnostics import CompilationWarning, DiagnosticLevel
from ._graph import ETraceGraph
from ._group import HiddenGroup
from ._module_info import ModuleInfo, module_info_of
from ._perturb import HiddenPerturbation, perturb
from ._relation import HiddenParamOpRelation
from ._stand_in import inspect, loops


def check_kind(model: object, params: object, hidden: object, what: str) -> None:
    """Raise (a `TypeError`) unless a model is of a kind that has a front end."""
    front_end = front_end_of(model)
    if front_end.takes_keywords:
        if params is not None or hidden is not None:
            raise ArgumentTypeError(
                f"`{what}` was given `params=` or `hidden=` for {front_end.kind}, which holds its own."
            )
    elif not is_module(model) and (not callable(model) or params is None):
        kind = f"{type(model).__name__}{' without `params=`' if callable(model) else ''}"
        raise ArgumentTypeError(
            f"`{what}` takes a module of {named_libraries()}, or a step function with its `params=` and "
            f"`hidden=`, got {kind}."
        )


def _require_info(minfo: object) -> None:
    if not isinstance(minfo, ModuleInfo):
        raise ArgumentTypeError(f"`minfo` is a {type(minfo).__name__}; pass what `etrax.extract_module_info` returns.")


def bind_model(model: object, args: tuple[object, ...], kwargs: Mapping[str, PyTree], what: str) -> Bound:
    """Bind a model: keywords are its own arguments if its front end takes them, else those of `compile`."""
    front_end = front_end_of(model)
    bound = front_end.bind(model, args, Values(keywords=kwargs)) if front_end.takes_keywords else None
    if bound is None:
        check_kind(model, kwargs.get("params"), kwargs.get("hidden"), what)
        bound = bind(model, args, **kwargs)
    return bound


def _as_analysed(bound: Bound) -> Bound:
    """A model with its step written as it is analysed."""
    return replace(bound, step=with_elementwise_ops(bound.step)[0])


def compile_with_facts(
    model: object, args: tuple[object, ...], kwargs: Mapping[str, object], include_hidden_perturb: bool, what: str
) -> tuple[ETraceGraph, Facts]:
    """The graph, and the facts that it shows."""
    with compiling(what):
        bound = bind_model(model, args, kwargs, what)
        facts = inspect(bound.step)
        # Facts hold the step as it is analysed, but not that of a model whose loops others stand in for.
        bound = _as_analysed(bound) if any(loops(bound.step)) else replace(bound, step=facts.step)
        graph = build_graph(bound, facts, include_hidden_perturb)
    messages = [r.message for r in graph.diagnostics if r.level is not DiagnosticLevel.INFO]
    for text in dict.fromkeys(messages):
        warnings.warn(text, CompilationWarning, stacklevel=3)  # at the line that called the public function
    return graph, facts


def compile_etrace_graph(
    model: object, *model_args: object, include_hidden_perturb: bool = True, **model_kwargs: object
) -> ETraceGraph:
    """Compile the step of a `brainstate.nn.Module` with initialised states; the states keep their values.

    A step function takes `params=` and `hidden=`, as in `etrax.compile`.

    >>> import brainstate, etrax.nn
    >>> cell = etrax.nn.GRUCell(3, 4)
    >>> _ = brainstate.nn.init_all_states(cell)
    >>> graph = compile_etrace_graph(cell, brainstate.random.randn(3))
    >>> len(graph.hidden_groups)
    1
    >>> [relation.leaf_path for relation in graph.hidden_param_op_relations][:2]
    [('Wz', 'weight', 'weight'), ('Wz', 'weight', 'bias')]
    >>> graph.explain(weight_path=('Wr', 'weight'))[0].kind.name
    'RELATION_EXCLUDED_WEIGHT_TO_WEIGHT'
    """
    return compile_with_facts(model, model_args, model_kwargs, include_hidden_perturb, "compile_etrace_graph")[0]


def extract_module_info(model: object, *model_args: object, **model_kwargs: object) -> ModuleInfo:
    """The traced step of a module: its jaxpr, and which variable is which state.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> values = {"params": jnp.ones((3, 4)), "hidden": jnp.zeros(4)}
    >>> etrax.extract_module_info(step, jnp.ones(3), **values).num_var_out
    1
    """
    return module_info_of(_as_analysed(bind_model(model, model_args, model_kwargs, "extract_module_info")))


def find_hidden_groups_from_minfo(minfo: ModuleInfo) -> tuple[tuple[HiddenGroup, ...], dict[Path, HiddenGroup]]:
    """The hidden groups of a traced step, and the group of each hidden state by path.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> values = {"params": jnp.ones((3, 4)), "hidden": jnp.zeros(4)}
    >>> groups, by_path = etrax.find_hidden_groups_from_minfo(etrax.extract_module_info(step, jnp.ones(3), **values))
    >>> len(groups), list(by_path)
    (1, [()])
    """
    _require_info(minfo)
    return build_groups(minfo.jaxpr, minfo.hidden_leaves, inspect(minfo.step))


def find_hidden_groups_from_module(
    model: object, *model_args: object, **model_kwargs: object
) -> tuple[tuple[HiddenGroup, ...], dict[Path, HiddenGroup]]:
    """The hidden groups of a module, and the group of each hidden state by path.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> values = {"params": jnp.ones((3, 4)), "hidden": jnp.zeros(4)}
    >>> groups, by_path = etrax.find_hidden_groups_from_module(step, jnp.ones(3), **values)
    >>> len(groups)
    1
    """
    return find_hidden_groups_from_minfo(extract_module_info(model, *model_args, **model_kwargs))


def find_hidden_param_op_relations_from_minfo(
    minfo: ModuleInfo, hid_path_to_group: Mapping[Path, HiddenGroup] | None = None
) -> tuple[HiddenParamOpRelation, ...]:
    """The relations of a traced step, in program order, to the groups that `find_hidden_groups_from_minfo` gives.

    >>> import brainstate, etrax.nn
    >>> cell = etrax.nn.GRUCell(3, 4)
    >>> _ = brainstate.nn.init_all_states(cell)
    >>> minfo = extract_module_info(cell, brainstate.random.randn(3))
    >>> _, hid_path_to_group = find_hidden_groups_from_minfo(minfo)
    >>> relations = find_hidden_param_op_relations_from_minfo(minfo=minfo, hid_path_to_group=hid_path_to_group)
    >>> relations[0].hidden_groups[0] is hid_path_to_group["h",]
    True
    """
    _require_info(minfo)
    facts = inspect(minfo.step)
    groups, by_path = build_groups(minfo.jaxpr, minfo.hidden_leaves, facts)
    if hid_path_to_group is not None:
        _check_groups(by_path, hid_path_to_group)
        by_index = {g.index: g for g in hid_path_to_group.values()}
        groups = tuple(by_index[g.index] for g in groups)
    return build_relations(minfo, facts, groups)


def _check_groups(expected: Mapping[Path, HiddenGroup], groups: Mapping[Path, HiddenGroup]) -> None:
    """The groups of a caller must be those of the step, which `expected` are."""
    remedy = "pass what `find_hidden_groups_from_minfo` gives for this `minfo`."
    for path, group in expected.items():
        if path not in groups:
            raise CompilationError(f"`hid_path_to_group` has no group for hidden state {format_path(path)}: {remedy}")
        if groups[path].index != group.index or list(groups[path].hidden_outvars) != list(group.hidden_outvars):
            raise CompilationError(
                f"`hid_path_to_group` has a group of another step at hidden state {format_path(path)}: {remedy}"
            )


def find_hidden_param_op_relations_from_module(
    model: object, *model_args: object, **model_kwargs: object
) -> tuple[HiddenParamOpRelation, ...]:
    """The relations of a module, in program order.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> values = {"params": jnp.ones((3, 4)), "hidden": jnp.zeros(4)}
    >>> [r.path for r in etrax.find_hidden_param_op_relations_from_module(step, jnp.ones(3), **values)]
    [()]
    """
    return find_hidden_param_op_relations_from_minfo(extract_module_info(model, *model_args, **model_kwargs))


def add_hidden_perturbation_from_minfo(minfo: ModuleInfo) -> HiddenPerturbation:
    """The step with a perturbation added to every hidden state.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> values = {"params": jnp.ones((3, 4)), "hidden": jnp.zeros(4)}
    >>> info = etrax.extract_module_info(step, jnp.ones(3), **values)
    >>> len(etrax.add_hidden_perturbation_from_minfo(info).perturb_vars)
    1
    """
    _require_info(minfo)
    return perturb(minfo)


def add_hidden_perturbation_in_module(model: object, *model_args: object, **model_kwargs: object) -> HiddenPerturbation:
    """The step of a module with a perturbation added to every hidden state.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> values = {"params": jnp.ones((3, 4)), "hidden": jnp.zeros(4)}
    >>> len(etrax.add_hidden_perturbation_in_module(step, jnp.ones(3), **values).perturb_vars)
    1
    """
    return perturb(extract_module_info(model, *model_args, **model_kwargs))
