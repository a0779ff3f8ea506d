"""The cells of `etrax.nn` as pure functions: `init`, `hidden` and `step`, as `etrax.compile` takes them.

>>> import etrax, jax, jax.numpy as jnp
>>> cell = LIF(3, 4)
>>> params, hidden = cell.init(jax.random.key(0)), cell.hidden(batch_size=2)
>>> learner = etrax.compile(cell.step, "d_rtrl", jnp.ones((2, 3)), params=params, hidden=hidden)
>>> learner.report.verdicts["W",].kind == "exact"
True
"""

from ._diagonal import LRUCell as LRUCell
from ._diagonal import MinGRUCell as MinGRUCell
from ._diagonal import RTUCell as RTUCell
from ._diagonal import S5Cell as S5Cell
from ._diagonal import SelectiveCell as SelectiveCell
from ._neurons import ALIF as ALIF
from ._neurons import GIF as GIF
from ._neurons import LIF as LIF
from ._neurons import Izhikevich as Izhikevich
from ._neurons import RecurrentALIF as RecurrentALIF
from ._neurons import RecurrentLIF as RecurrentLIF
from ._neurons import ResonateAndFire as ResonateAndFire
from ._pure import PureCell as PureCell
from ._synapses import AlphaSynapse as AlphaSynapse
from ._synapses import ExponentialSynapse as ExponentialSynapse
from ._synapses import LeakyReadout as LeakyReadout
from ._synapses import NMDASynapse as NMDASynapse

CELLS: dict[str, type[PureCell]] = {
    name: thing
    for name, thing in list(globals().items())
    if isinstance(thing, type) and issubclass(thing, PureCell) and thing is not PureCell
}
