"""The learner: a compiled model under a rule, as pure functions. See README.md in this folder."""

from ._finite import NonFiniteError as NonFiniteError
from ._learner import Learner as Learner
from ._program import LearnerState as LearnerState
