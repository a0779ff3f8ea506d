"""Pictures of what a learner does: traces, states, spikes, gradients beside BPTT's. Needs matplotlib (`etrax[viz]`).

    recording = etrax.viz.record(learner, inputs)
    etrax.viz.traces(recording).savefig("traces.png")

Every function returns a matplotlib `Figure` and leaves pyplot alone.
"""

from ._bias import bias as bias
from ._cosines import cosines as cosines
from ._panels import VizError as VizError
from ._record import Recording as Recording
from ._record import record as record
from ._states import raster as raster
from ._states import states as states
from ._traces import traces as traces
