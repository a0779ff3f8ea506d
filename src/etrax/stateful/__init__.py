"""A module that learns online in its own style: states inside, gradients by the library's own transformation."""

from ._brainstate import BrainstateLoop as BrainstateLoop
from ._brainstate import Stateful as Stateful
from ._sequences import Sequences as Sequences
