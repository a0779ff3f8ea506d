"""Facts that flow along the equations of a jaxpr: one interpreter, one file for each kind of fact."""

from ._differentiable import mark_moving as mark_moving
from ._linear import is_linear_backwards as is_linear_backwards
from ._numbering import Name as Name
from ._numbering import number_outputs as number_outputs
from ._offset import DATA as DATA
from ._offset import Mark as Mark
from ._offset import joined as joined
from ._offset import mark_of as mark_of
from ._offset import marks_through as marks_through
from ._propagate import UNKNOWN as UNKNOWN
from ._propagate import Problem as Problem
from ._propagate import Propagation as Propagation
from ._propagate import Value as Value
from ._propagate import folded as folded
from ._propagate import known as known
from ._structure import Even as Even
from ._structure import evenness as evenness
from ._structure import without_zeros as without_zeros
from ._transpose import NO_REVERSE as NO_REVERSE
from ._transpose import TRAINABLE as TRAINABLE
from ._transpose import pulled_back as pulled_back
from ._transpose import reach_through as reach_through
from ._transpose import refuse_while as refuse_while
