"""Front ends: each only turns its kind of model into a `Step` and back. See README.md in this folder."""

from ._bind import bind as bind
from ._bind import check_batch_size as check_batch_size
from ._bind import check_operations as check_operations
from ._bind import front_end_of as front_end_of
from ._bind import is_module as is_module
from ._bind import named_libraries as named_libraries
from ._bind import write_back as write_back
from ._brainstate import BRAINSTATE as BRAINSTATE
from ._compiling import compiling as compiling
from ._flax import NNX as NNX
from ._front_end import FrontEnd as FrontEnd
from ._front_end import Values as Values
from ._function import bind_function as bind_function
from ._renew import renew_states as renew_states
