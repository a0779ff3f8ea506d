"""Numbers: window credit, Jacobian blocks, transport. Pure functions that run under jit. See README.md."""

from ._dense import dense_bytes as dense_bytes
from ._dense import dense_transport as dense_transport
from ._diagonal import carried_relations as carried_relations
from ._diagonal import diagonal_bytes as diagonal_bytes
from ._diagonal import diagonal_transport as diagonal_transport
from ._factored import bytes_of as bytes_of
from ._factored import factored_transport as factored_transport
from ._feedback import feedback_source as feedback_source
from ._feedback import sample_of_position as sample_of_position
from ._filtered import filtered_transport as filtered_transport
from ._leaky import leaky_transport as leaky_transport
from ._presynaptic import presynaptic_transport as presynaptic_transport
from ._rank_one import rank_one_transport as rank_one_transport
from ._signals import guided_transport as guided_transport
from ._source import Moment as Moment
from ._source import Source as Source
from ._transport import Trace as Trace
from ._transport import Transport as Transport
from ._transport import WindowData as WindowData
from ._weights import Weights as Weights
from ._weights import weights as weights
from ._window import WindowResult as WindowResult
from ._window import evolve as evolve
from ._window import live_sites as live_sites
from ._window import param_grads as param_grads
from ._window import run_window as run_window
