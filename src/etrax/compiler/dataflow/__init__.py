"""Facts that flow along the equations of a jaxpr: one interpreter, one file for each kind of fact."""

from ._dependence import UNKNOWN as UNKNOWN
from ._dependence import Dependence as Dependence
from ._dependence import Problem as Problem
from ._dependence import Value as Value
from ._differentiable import mark_moving as mark_moving
from ._linear import is_linear_backwards as is_linear_backwards
from ._numbering import Name as Name
from ._numbering import number_outputs as number_outputs
from ._offset import DATA as DATA
from ._offset import Mark as Mark
from ._offset import Offset as Offset
from ._offset import sum_of_marks as sum_of_marks
from ._solver import Domain as Domain
from ._solver import Note as Note
from ._solver import Solver as Solver
from ._structure import Even as Even
from ._structure import evenness as evenness
from ._structure import without_zeros as without_zeros
from ._transpose import NO_REVERSE as NO_REVERSE
from ._transpose import TRAINABLE as TRAINABLE
from ._transpose import propagate as propagate
from ._transpose import pulled_back as pulled_back
from ._transpose import reach_through as reach_through
from ._transpose import refuse_while as refuse_while
