"""The learner: a compiled model under a rule, as pure functions. See README.md in this folder."""

from ._checks import Optimizer as Optimizer
from ._finite import NonFiniteError as NonFiniteError
from ._learner import Learner as Learner
from ._program import LearnerState as LearnerState
