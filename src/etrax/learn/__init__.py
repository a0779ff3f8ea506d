"""The learner: a compiled model under a rule, as pure functions. See README.md in this folder."""

from ._artifact import Artifact as Artifact
from ._artifact import load as load
from ._artifact_file import ArtifactError as ArtifactError
from ._checks import Optimizer as Optimizer
from ._checks import check_opt_state as check_opt_state
from ._checks import check_optimizer as check_optimizer
from ._checks import check_trace_dtype as check_trace_dtype
from ._checks import check_window as check_window
from ._checks import told as told
from ._finite import NonFiniteError as NonFiniteError
from ._identity import Identity as Identity
from ._identity import check_accept as check_accept
from ._identity import describe_differences as describe_differences
from ._identity import digest_of_loss as digest_of_loss
from ._identity import digest_of_optimizer as digest_of_optimizer
from ._identity import identity_of as identity_of
from ._learner import Learner as Learner
from ._learner import check_learner as check_learner
from ._memory import default_budget as default_budget
from ._program import LearnerState as LearnerState
from ._program import check_like as check_like
from ._sequence import Losses as Losses
