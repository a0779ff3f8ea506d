"""Weight ops: facts per primitive family. See README.md in this folder."""

from . import _conv as _conv
from . import _events as _events
from . import _homogeneous as _homogeneous
from . import _lookup as _lookup
from . import _matmul_kernels as _matmul_kernels
from . import _sparse as _sparse
from ._aligned import ALIGNED as ALIGNED
from ._base import Columns as Columns
from ._base import Kernels as Kernels
from ._base import OpCall as OpCall
from ._base import OpRule as OpRule
from ._base import WithWeight as WithWeight
from ._base import call_of as call_of
from ._base import register_weight_op as register_weight_op
from ._base import rule_for as rule_for
from ._base import size as size
from ._base import sum_unrolled as sum_unrolled
from ._base import with_columns as with_columns
from ._matmul import Letters as Letters
from ._matmul import column_axes as column_axes
from ._matmul import data_axes as data_axes
from ._matmul import expand as expand
from ._matmul import letters_of as letters_of
