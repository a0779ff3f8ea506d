"""A trainer for whole data sets: epochs, shuffling, progress, metrics, early stop, interrupt and resume.

Nothing here is needed to learn: `learner.train` and `learner.value_and_grad` are the core, this is a loop around them.
"""

from ._batch import projected as projected
from ._data import Dataset as Dataset
from ._data import pad as pad
from ._metrics import accuracy as accuracy
from ._metrics import step_accuracy as step_accuracy
from ._neurobench import neurobench as neurobench
from ._packed import packed as packed
from ._records import DataError as DataError
from ._records import Diverged as Diverged
from ._records import Epoch as Epoch
from ._records import Interrupted as Interrupted
from ._records import Result as Result
from ._save import Saving as Saving
from ._save import restore as restore
from ._save import save as save
from ._stored import CheckpointError as CheckpointError
from ._trainer import Trainer as Trainer
