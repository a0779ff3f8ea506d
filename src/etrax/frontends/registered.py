"""The front ends, one line each; the first that a model matches binds it. Functions are what is left."""

from ..compiler.ir import use_notation
from ._brainstate import BRAINSTATE
from ._equinox import EQUINOX
from ._flax import LINEN, NNX
from ._front_end import FrontEnd

FRONT_ENDS: tuple[FrontEnd, ...] = (
    BRAINSTATE,
    NNX,
    LINEN,
    EQUINOX,
)

for _front_end in FRONT_ENDS:
    use_notation(_front_end.notation)
