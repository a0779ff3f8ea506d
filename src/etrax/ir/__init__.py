"""What a traced step is. See README.md in this folder."""

from ._bound import Bound as Bound
from ._bound import BoundState as BoundState
from ._bound import merged as merged
from ._check import check_step as check_step
from ._explain import describe as describe
from ._explain import explain as explain
from ._explain import explained as explained
from ._mapped import mapped as mapped
from ._numbering import number_outputs as number_outputs
from ._paths import Path as Path
from ._paths import format_path as format_path
from ._paths import leaves_with_paths as leaves_with_paths
from ._source import Source as Source
from ._source import source_of_eqn as source_of_eqn
from ._step import Leaf as Leaf
from ._step import Role as Role
from ._step import Step as Step
from ._trace import trace_step as trace_step
from ._types import LossFunction as LossFunction
from ._types import PyTree as PyTree
from ._types import TreeDef as TreeDef
from ._walk import Handler as Handler
from ._walk import Site as Site
from ._walk import equations as equations
from ._walk import inline as inline
from ._walk import interpret as interpret
