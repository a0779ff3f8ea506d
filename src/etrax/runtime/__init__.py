"""Numbers under `jit`: window, weights, Jacobian blocks, layouts. Rules are built of these. See README.md.

The algebra of blocks is in `blocks`, the kinds of trace are in `traces`.
"""

from . import _site_math as site_math  # noqa: F401
from ._before_reset import cleared_influence as cleared_influence
from ._before_reset import lanes_of_samples as lanes_of_samples
from ._before_reset import zero_where as zero_where
from ._count import LAST_STEP as LAST_STEP
from ._count import count_on as count_on
from ._layout import Gather as Gather
from ._layout import Layout as Layout
from ._layout import gather_of as gather_of
from ._layout import layout_of as layout_of
from ._layout import layout_with as layout_with
from ._ops import kernels_of as kernels_of
from ._ops import with_kernels as with_kernels
from ._past import Past as Past
from ._past import past_transport as past_transport
from ._plan import Plan as Plan
from ._plan import carried_relations as carried_relations
from ._plan import plan_of as plan_of
from ._probes import Probes as Probes
from ._probes import differentiable as differentiable
from ._probes import linked as linked
from ._probes import plan_probes as plan_probes
from ._probes import probes_of as probes_of
from ._pulls import Probe as Probe
from ._pulls import Pulls as Pulls
from ._readers import OverProbes as OverProbes
from ._readers import plain_algebra as plain_algebra
from ._resets import LaneMap as LaneMap
from ._resets import at_lanes as at_lanes
from ._resets import cleared as cleared
from ._resets import parts_of_data as parts_of_data
from ._resets import remaining as remaining
from ._resets import restarted as restarted
from ._resets import without_past as without_past
from ._site_math import trace_dtype_of as trace_dtype_of
from ._transport import EachStep as EachStep
from ._transport import FusedCredit as FusedCredit
from ._transport import Future as Future
from ._transport import Persistent as Persistent
from ._transport import PullBack as PullBack
from ._transport import SeenThrough as SeenThrough
from ._transport import Signal as Signal
from ._transport import StepOutputs as StepOutputs
from ._transport import Trace as Trace
from ._transport import Transport as Transport
from ._transport import WindowData as WindowData
from ._transport import add_to as add_to
from ._transport import by_site as by_site
from ._transport import embed_trace as embed_trace
from ._view import View as View
from ._view import following_view as following_view
from ._view import in_view as in_view
from ._view import reduced_view as reduced_view
from ._view import whole_view as whole_view
from ._window import WindowResult as WindowResult
from ._window import WindowRun as WindowRun
from ._window import evolve as evolve
from ._window import live_sites as live_sites
from ._window import run_window as run_window
from ._window import unread_states as unread_states
from ._zeros import finite_unless as finite_unless
from ._zeros import times as times
from ._zeros import with_masked_products as with_masked_products
