"""The compiler API for brainstate modules: the traced step, its groups, its relations, its perturbation."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from ._errors import ArgumentTypeError, CompilationError, NotSupportedError
from .analysis import Facts, analyse
from .analysis.graph import (
    ETraceGraph,
    HiddenGroup,
    HiddenParamOpRelation,
    HiddenPerturbation,
    ModuleInfo,
    build_graph,
    build_groups,
    build_relations,
    module_info_of,
    perturb,
)
from .frontends._bound import Bound
from .frontends._brainstate import bind_brainstate, is_brainstate_module
from .ir import Path

_THREAD = threading.local()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """One compile at a time on a thread; a failed one leaves nothing behind."""
    if getattr(_THREAD, "busy", False):
        raise NotSupportedError(
            "a model is being compiled on this thread, and its step compiles another one. Compile the inner model "
            "before, and let the step use what that gives."
        )
    _THREAD.busy = True
    try:
        yield
    finally:
        _THREAD.busy = False


def require_module(model: Any, what: str) -> None:
    """Raise (a `TypeError`) unless a model is a `brainstate.nn.Module`."""
    if not is_brainstate_module(model):
        raise ArgumentTypeError(
            f"`{what}` takes a `brainstate.nn.Module`, got {type(model).__name__}. For a step function or a module of "
            "another library use `etrax.compile(model, rule, ...)`, and read its `.graph`."
        )


def bind_module(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str) -> Bound:
    require_module(model, what)
    return bind_brainstate(model, args, kwargs)


def compile_with_facts(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], include_hidden_perturb: bool, what: str
) -> tuple[ETraceGraph, Facts]:
    """The graph, and the facts that it shows."""
    with compiling():
        bound = bind_module(model, args, kwargs, what)
        facts = analyse(bound.step)
        return build_graph(bound, facts, include_hidden_perturb), facts


def compile_etrace_graph(
    model: Any, *model_args: Any, include_hidden_perturb: bool = True, **model_kwargs: Any
) -> ETraceGraph:
    """Compile the step of a `brainstate.nn.Module` with initialised states; the states keep their values.

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


def extract_module_info(model: Any, *model_args: Any, **model_kwargs: Any) -> ModuleInfo:
    """The traced step of a module: its jaxpr, and which variable is which state."""
    with compiling():
        return module_info_of(bind_module(model, model_args, model_kwargs, "extract_module_info"))


def find_hidden_groups_from_minfo(minfo: ModuleInfo) -> tuple[tuple[HiddenGroup, ...], dict[Path, HiddenGroup]]:
    """The hidden groups of a traced step, and the group of each hidden state by path."""
    return build_groups(minfo, analyse(minfo.step))


def find_hidden_groups_from_module(
    model: Any, *model_args: Any, **model_kwargs: Any
) -> tuple[tuple[HiddenGroup, ...], dict[Path, HiddenGroup]]:
    """The hidden groups of a module, and the group of each hidden state by path."""
    return find_hidden_groups_from_minfo(extract_module_info(model, *model_args, **model_kwargs))


def find_hidden_param_op_relations_from_minfo(
    minfo: ModuleInfo, hidden_groups: tuple[HiddenGroup, ...] | None = None
) -> tuple[HiddenParamOpRelation, ...]:
    """The relations of a traced step, in program order; its groups are found again unless they are given."""
    facts = analyse(minfo.step)
    groups = build_groups(minfo, facts)[0] if hidden_groups is None else tuple(hidden_groups)
    if len(groups) != len(facts.groups):
        raise CompilationError(
            f"`hidden_groups` holds {len(groups)} groups, but this step has {len(facts.groups)}: pass those that "
            "`find_hidden_groups_from_minfo` gives for it."
        )
    return build_relations(minfo, facts, groups)


def find_hidden_param_op_relations_from_module(
    model: Any, *model_args: Any, **model_kwargs: Any
) -> tuple[HiddenParamOpRelation, ...]:
    """The relations of a module, in program order."""
    return find_hidden_param_op_relations_from_minfo(extract_module_info(model, *model_args, **model_kwargs))


def add_hidden_perturbation_from_minfo(minfo: ModuleInfo) -> HiddenPerturbation:
    """The step with a perturbation added to every hidden state."""
    return perturb(minfo)


def add_hidden_perturbation_in_module(model: Any, *model_args: Any, **model_kwargs: Any) -> HiddenPerturbation:
    """The step of a module with a perturbation added to every hidden state."""
    return perturb(extract_module_info(model, *model_args, **model_kwargs))
