"""The compiler API: the facts of a step as a graph of named tuples, open for inspection. See README.md."""

from ._build import build_graph as build_graph
from ._compile import add_hidden_perturbation_from_minfo as add_hidden_perturbation_from_minfo
from ._compile import add_hidden_perturbation_in_module as add_hidden_perturbation_in_module
from ._compile import compile_etrace_graph as compile_etrace_graph
from ._compile import extract_module_info as extract_module_info
from ._compile import find_hidden_groups_from_minfo as find_hidden_groups_from_minfo
from ._compile import find_hidden_groups_from_module as find_hidden_groups_from_module
from ._compile import find_hidden_param_op_relations_from_minfo as find_hidden_param_op_relations_from_minfo
from ._compile import find_hidden_param_op_relations_from_module as find_hidden_param_op_relations_from_module
from ._describe import groups_of_weights as groups_of_weights
from ._describe import traced_leaves as traced_leaves
from ._diagnostics import CompilationRecord as CompilationRecord
from ._diagnostics import CompilationWarning as CompilationWarning
from ._diagnostics import DiagnosticKind as DiagnosticKind
from ._diagnostics import DiagnosticLevel as DiagnosticLevel
from ._executor import ETraceGraphExecutor as ETraceGraphExecutor
from ._graph import ETraceGraph as ETraceGraph
from ._group import HiddenGroup as HiddenGroup
from ._input_data import MultiStepData as MultiStepData
from ._input_data import SingleStepData as SingleStepData
from ._input_data import first_steps as first_steps
from ._jacobians import jacobians as jacobians
from ._jacobians import plan_jacobians as plan_jacobians
from ._module_info import ModuleInfo as ModuleInfo
from ._perturb import HiddenPerturbation as HiddenPerturbation
from ._relation import HiddenParamOpRelation as HiddenParamOpRelation
