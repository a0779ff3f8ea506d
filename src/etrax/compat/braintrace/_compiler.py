"""The compiler functions with the peer's keywords, which steer its own rewrites and have no effect here."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ... import graph

_P = ParamSpec("_P")
_R = TypeVar("_R")

_NO_EFFECT = (
    "include_recurrent_mixing",
    "sparse_n",
    "snap_max_jacobian_elements",
    "control_flow",
    "include_output_bypass",
    "descended_scan_eqn_ids",
    "descended_hidden_paths",
)


def _accepting(function: Callable[_P, _R]) -> Callable[..., _R]:
    @wraps(function)
    def accepted(*args, **kwargs) -> _R:
        return function(*args, **{k: v for k, v in kwargs.items() if k not in _NO_EFFECT})

    return accepted


compile_etrace_graph = _accepting(graph.compile_etrace_graph)
extract_module_info = _accepting(graph.extract_module_info)
find_hidden_groups_from_minfo = _accepting(graph.find_hidden_groups_from_minfo)
find_hidden_groups_from_module = _accepting(graph.find_hidden_groups_from_module)
find_hidden_param_op_relations_from_minfo = _accepting(graph.find_hidden_param_op_relations_from_minfo)
find_hidden_param_op_relations_from_module = _accepting(graph.find_hidden_param_op_relations_from_module)
add_hidden_perturbation_from_minfo = _accepting(graph.add_hidden_perturbation_from_minfo)
add_hidden_perturbation_in_module = _accepting(graph.add_hidden_perturbation_in_module)
