"""The public names of braintrace on top of Etrax: `import etrax.compat.braintrace as braintrace`.

What is different is in docs/migration.md: mostly gradients that were zero or wrong there.
"""

from __future__ import annotations

from ..._errors import CompilationError as CompilationError
from ..._errors import MissingPackageError as _MissingPackageError
from ..._errors import NotSupportedError as NotSupportedError
from ..._install import install_advice as _install_advice

try:
    import brainstate as _brainstate  # noqa: F401
except ModuleNotFoundError as _error:
    if _error.name != "brainstate":
        raise
    raise _MissingPackageError(
        f"`etrax.compat.braintrace` needs brainstate, which is not installed: {_install_advice('brainstate')}."
    ) from _error

from ...graph import CompilationRecord as CompilationRecord
from ...graph import DiagnosticKind as DiagnosticKind
from ...graph import DiagnosticLevel as DiagnosticLevel
from ...graph import ETraceGraph as ETraceGraph
from ...graph import HiddenGroup as HiddenGroup
from ...graph import HiddenParamOpRelation as HiddenParamOpRelation
from ...graph import HiddenPerturbation as HiddenPerturbation
from ...graph import ModuleInfo as ModuleInfo
from ...graph import MultiStepData as MultiStepData
from ...graph import SingleStepData as SingleStepData
from . import nn as nn
from ._algorithm import EligibilityTrace as EligibilityTrace
from ._algorithm import ETraceAlgorithm as ETraceAlgorithm
from ._algorithm import ETraceVjpAlgorithm as ETraceVjpAlgorithm
from ._algorithm import SequenceDriverMixin as SequenceDriverMixin
from ._compile import compile as compile
from ._compiler import ETraceGraphExecutor as ETraceGraphExecutor
from ._compiler import ETraceVjpGraphExecutor as ETraceVjpGraphExecutor
from ._compiler import add_hidden_perturbation_from_minfo as add_hidden_perturbation_from_minfo
from ._compiler import add_hidden_perturbation_in_module as add_hidden_perturbation_in_module
from ._compiler import compile_etrace_graph as compile_etrace_graph
from ._compiler import extract_module_info as extract_module_info
from ._compiler import find_hidden_groups_from_minfo as find_hidden_groups_from_minfo
from ._compiler import find_hidden_groups_from_module as find_hidden_groups_from_module
from ._compiler import find_hidden_param_op_relations_from_minfo as find_hidden_param_op_relations_from_minfo
from ._compiler import find_hidden_param_op_relations_from_module as find_hidden_param_op_relations_from_module
from ._config import ControlFlowPolicy as ControlFlowPolicy
from ._config import ETraceConfig as ETraceConfig
from ._diagnostics import CompilationReport as CompilationReport
from ._dni import DNI as DNI
from ._dni import SyntheticGradient as SyntheticGradient
from ._dni import train_synthetic_gradient as train_synthetic_gradient
from ._legacy import INSTEAD as _INSTEAD
from ._ops import conv as conv
from ._ops import einsum as einsum
from ._ops import element_wise as element_wise
from ._ops import embedding as embedding
from ._ops import grouped_matmul as grouped_matmul
from ._ops import lora_matmul as lora_matmul
from ._ops import matmul as matmul
from ._ops import sparse_matmul as sparse_matmul
from ._presets import D_RTRL as D_RTRL
from ._presets import ES_D_RTRL as ES_D_RTRL
from ._presets import UORO as UORO
from ._presets import EProp as EProp
from ._presets import IODimVjpAlgorithm as IODimVjpAlgorithm
from ._presets import OSTLFeedforward as OSTLFeedforward
from ._presets import OSTLRecurrent as OSTLRecurrent
from ._presets import ParamDimVjpAlgorithm as ParamDimVjpAlgorithm
from ._presets import RandomProjectionVjpAlgorithm as RandomProjectionVjpAlgorithm
from ._presets import SnAp as SnAp
from ._presets import ThreeFactor as ThreeFactor
from ._presets import pp_prop as pp_prop
from ._primitive import ETPPrimitive as ETPPrimitive
from ._primitive import register_primitive as register_primitive
from ._tools import FixedRandomFeedback as FixedRandomFeedback
from ._tools import GradExpon as GradExpon
from ._tools import KappaFilter as KappaFilter
from ._vmap import ETraceVmap as ETraceVmap

# The version whose names these are.
__version__ = "0.2.8"
__version_info__ = (0, 2, 8)

__all__ = sorted(
    {name for name in globals() if not name.startswith("_") and name != "annotations"}
    | {"__version__", "__version_info__"}
)


def __getattr__(name: str) -> object:
    if name not in _INSTEAD:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib
    import warnings

    warnings.warn(f"`{name}` is deprecated: use {_INSTEAD[name]}.", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module("._legacy", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_INSTEAD])
