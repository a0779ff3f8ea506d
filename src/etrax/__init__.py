"""Etrax turns any one-step JAX model into an online learner."""

from __future__ import annotations

from ._compile import compile as compile
from ._errors import ArgumentError as ArgumentError
from ._errors import ArgumentTypeError as ArgumentTypeError
from ._errors import ArtifactError as ArtifactError
from ._errors import CompilationError as CompilationError
from ._errors import EtraxError as EtraxError
from ._errors import MissingPackageError as MissingPackageError
from ._errors import NotSupportedError as NotSupportedError
from ._sums import avoid_wrong_sums as _avoid_wrong_sums
from ._version import __version__ as __version__
from .compiler.ops import OpRule as OpRule
from .compiler.ops import register_weight_op as register_weight_op
from .compiler.primitives import Primitive as Primitive
from .compiler.primitives import register_primitive as register_primitive
from .frontends import write_back as write_back
from .graph import CompilationRecord as CompilationRecord
from .graph import CompilationWarning as CompilationWarning
from .graph import DiagnosticKind as DiagnosticKind
from .graph import DiagnosticLevel as DiagnosticLevel
from .graph import ETraceGraph as ETraceGraph
from .graph import ETraceGraphExecutor as ETraceGraphExecutor
from .graph import HiddenGroup as HiddenGroup
from .graph import HiddenParamOpRelation as HiddenParamOpRelation
from .graph import HiddenPerturbation as HiddenPerturbation
from .graph import ModuleInfo as ModuleInfo
from .graph import MultiStepData as MultiStepData
from .graph import SingleStepData as SingleStepData
from .graph import add_hidden_perturbation_from_minfo as add_hidden_perturbation_from_minfo
from .graph import add_hidden_perturbation_in_module as add_hidden_perturbation_in_module
from .graph import compile_etrace_graph as compile_etrace_graph
from .graph import extract_module_info as extract_module_info
from .graph import find_hidden_groups_from_minfo as find_hidden_groups_from_minfo
from .graph import find_hidden_groups_from_module as find_hidden_groups_from_module
from .graph import find_hidden_param_op_relations_from_minfo as find_hidden_param_op_relations_from_minfo
from .graph import find_hidden_param_op_relations_from_module as find_hidden_param_op_relations_from_module
from .learn import Learner as Learner
from .learn import LearnerState as LearnerState
from .learn import NonFiniteError as NonFiniteError
from .report import Report as Report
from .rules import Rule as Rule
from .rules import RuleWarning as RuleWarning
from .rules import directional as directional
from .rules import frozen as frozen
from .rules.registered import *  # noqa: F403

_avoid_wrong_sums()

# Imported when first used: most need packages that the core does not. By name, the module that holds it.
_ON_USE = {name: f".{name}" for name in ("meter", "nir", "nn", "rl", "tasks", "testing", "train", "viz")}
_ON_USE |= {
    "Stateful": ".stateful",
    "Trainer": ".train",
    "save": ".train",
    "restore": ".train",
    "compare_rules": ".testing",
    "Artifact": ".artifact",
    "load": ".artifact",
    "align_entries": ".mesh",
}


def __getattr__(name: str) -> object:
    if name not in _ON_USE:
        raise AttributeError(f"module 'etrax' has no attribute {name!r}")
    import importlib

    module = importlib.import_module(_ON_USE[name], __name__)
    return module if _ON_USE[name] == f".{name}" else getattr(module, name)


def __dir__() -> list[str]:
    """What users need: public names, those that are imported on use, and no folder of the inside."""
    inside = {"annotations", "artifact", "compiler", "frontends", "graph", "learn", "mesh", "runtime", "stateful"}
    return sorted({name for name in globals() if not name.startswith("_")} - inside | set(_ON_USE) | {"__version__"})
