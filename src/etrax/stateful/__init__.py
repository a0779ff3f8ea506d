"""A module that learns online in its own style: states inside, gradients by the library's own transformation."""

from ._brainstate import Stateful as Stateful
from ._brainstate import brainstate_loop as brainstate_loop
from ._online import with_batch_size as with_batch_size
from ._sequences import SequenceDriver as SequenceDriver
from ._sequences import Sequences as Sequences
