"""Jacobian-sparsity patterns of a linear program (a transposed step). See README.md in `analysis`."""

from ._dep import Cause as Cause
from ._dep import Dep as Dep
from ._dep import Partition as Partition
from ._dep import coarsen as coarsen
from ._dep import components as components
from ._dep import first_seen as first_seen
from ._dep import identity as identity
from ._dep import look_up as look_up
from ._propagate import UNKNOWN as UNKNOWN
from ._propagate import Problem as Problem
from ._propagate import propagate as propagate
from ._table import Precision as Precision
