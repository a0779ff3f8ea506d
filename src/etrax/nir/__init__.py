"""Graphs of the Neuromorphic Intermediate Representation (NIR): read into a step, train online, write back."""

from ..nn.surrogate import spike_with as spike_with
from ._files import read as read
from ._files import write as write
from ._simulator import Simulator as Simulator
from ._step import Step as Step
