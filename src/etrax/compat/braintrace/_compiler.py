"""The compiler functions with the peer's keywords, which steer its own rewrites and warn that they do nothing here."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ... import graph
from ._knobs import KNOBS, check_order, warn_without_effect

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _accepting(function: Callable[_P, _R]) -> Callable[..., _R]:
    @wraps(function)
    def accepted(*args, **kwargs) -> _R:
        check_order(kwargs.get("sparse_n"), kwargs.get("include_recurrent_mixing", False))
        warn_without_effect(function.__name__, **{k: v for k, v in kwargs.items() if k in KNOBS})
        return function(*args, **{k: v for k, v in kwargs.items() if k not in KNOBS})

    return accepted


@_accepting
@wraps(graph.compile_etrace_graph)
def compile_etrace_graph(*args, include_output_bypass: bool = True, **kwargs) -> graph.ETraceGraph:
    compiled = graph.compile_etrace_graph(*args, **kwargs)
    if include_output_bypass or compiled.hidden_perturb is None:
        return compiled
    return compiled._replace(hidden_perturb=compiled.hidden_perturb._replace(bypass=None))


@_accepting
@wraps(graph.add_hidden_perturbation_from_minfo)
def add_hidden_perturbation_from_minfo(
    minfo: graph.ModuleInfo, *, include_output_bypass: bool = True
) -> graph.HiddenPerturbation:
    found = graph.add_hidden_perturbation_from_minfo(minfo)
    return found if include_output_bypass else found._replace(bypass=None)


extract_module_info = _accepting(graph.extract_module_info)
find_hidden_groups_from_minfo = _accepting(graph.find_hidden_groups_from_minfo)
find_hidden_groups_from_module = _accepting(graph.find_hidden_groups_from_module)
find_hidden_param_op_relations_from_minfo = _accepting(graph.find_hidden_param_op_relations_from_minfo)
find_hidden_param_op_relations_from_module = _accepting(graph.find_hidden_param_op_relations_from_module)
add_hidden_perturbation_in_module = _accepting(graph.add_hidden_perturbation_in_module)
