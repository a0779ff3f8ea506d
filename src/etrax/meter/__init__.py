"""The bias of a rule's gradient, measured while a stream goes by."""

from ._correction import Correction as Correction
from ._directional import projected_gradient as projected_gradient
from ._meter import Measured as Measured
from ._meter import Meter as Meter
from ._meter import MeterState as MeterState
from ._meter import Reading as Reading
from ._meter import meter as meter
from ._staleness import Stale as Stale
