"""Sequences to learn from, time-major: synthetic tasks, speech, images as streams, and spike encoders.

>>> from etrax import tasks
>>> train, test = tasks.split(tasks.copy(key=0, size=100), test=0.2, seed=0)
>>> train.inputs.shape, test.inputs.shape
((16, 80, 5), (16, 20, 5))
"""

from ._cognitive import delayed_match as delayed_match
from ._cognitive import evidence as evidence
from ._cognitive import short_evidence as short_evidence
from ._encoders import delta_spikes as delta_spikes
from ._encoders import latency_spikes as latency_spikes
from ._encoders import rate_spikes as rate_spikes
from ._images import fashion_mnist as fashion_mnist
from ._images import small_digits as small_digits
from ._memory import copy as copy
from ._memory import integrator as integrator
from ._shared import MissingDataError as MissingDataError
from ._speech import spoken_digits as spoken_digits
from ._task import Task as Task
from ._task import TaskError as TaskError
from ._task import labelled as labelled
from ._task import last_only as last_only
from ._task import split as split
from ._task import standardise as standardise
