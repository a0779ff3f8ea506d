"""Learning rules, one file each, and the learner that runs them. See README.md in this folder."""

from ._finite import NonFiniteError as NonFiniteError
from ._learner import Learner as Learner
from ._learner import LearnerState as LearnerState
