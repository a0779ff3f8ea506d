"""Recurrent cells and layers as ordinary brainstate modules."""

from ._base import Cell as Cell
from ._gated import CFNCell as CFNCell
from ._gated import GRUCell as GRUCell
from ._gated import MGUCell as MGUCell
from ._gated import MiniGRU as MiniGRU
from ._linear import Linear as Linear
from ._lru import LRUCell as LRUCell
from ._lstm import LSTMCell as LSTMCell
from ._lstm import MiniLSTM as MiniLSTM
from ._lstm import URLSTMCell as URLSTMCell
from ._readout import LeakyReadout as LeakyReadout
from ._rnn import MinimalRNNCell as MinimalRNNCell
from ._rnn import ValinaRNNCell as ValinaRNNCell
from ._rnn import VanillaRNNCell as VanillaRNNCell
from ._spiking import ALIF as ALIF
from ._spiking import LIF as LIF
from ._spiking import RecurrentALIF as RecurrentALIF
from ._spiking import RecurrentLIF as RecurrentLIF
from ._spiking import spike as spike
