"""The facts of a step as a graph of named tuples, open for inspection. See README.md in this folder."""

from ._blocks import blocks_from as blocks_from
from ._blocks import unit_cotangents as unit_cotangents
from ._build import build_graph as build_graph
from ._build import build_groups as build_groups
from ._build import build_relations as build_relations
from ._diagnostics import CompilationRecord as CompilationRecord
from ._diagnostics import CompilationWarning as CompilationWarning
from ._diagnostics import DiagnosticKind as DiagnosticKind
from ._diagnostics import DiagnosticLevel as DiagnosticLevel
from ._graph import ETraceGraph as ETraceGraph
from ._group import HiddenGroup as HiddenGroup
from ._layout import Layout as Layout
from ._layout import layout_of_group as layout_of_group
from ._module_info import ModuleInfo as ModuleInfo
from ._module_info import module_info_of as module_info_of
from ._perturb import HiddenPerturbation as HiddenPerturbation
from ._perturb import perturb as perturb
from ._relation import HiddenParamOpRelation as HiddenParamOpRelation
from ._stand_in import inspect as inspect
