"""Kinds of trace by position, one file each, and the one transport that serves them all. See ../README.md."""

from ._by_position import Entries as Entries
from ._by_position import PositionTrace as PositionTrace
from ._by_position import Traces as Traces
from ._by_position import by_position_transport as by_position_transport
from ._chosen import chosen_plan as chosen_plan
from ._hop import Hopped as Hopped
from ._hop import hopped_with as hopped_with
from ._hop import possible_hops as possible_hops
from ._memoryless import memoryless_leaves as memoryless_leaves
from ._memoryless import memoryless_transport as memoryless_transport
from ._seen_through import accounted_by_states as accounted_by_states
from ._seen_through import seen_through_states as seen_through_states
from ._seen_through import shown_by_states as shown_by_states
from ._spread import SpreadOut as SpreadOut
from ._spread import spread_out as spread_out
from ._wider import wider_transport as wider_transport
