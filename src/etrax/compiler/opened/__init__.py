"""The step with its weight operations open: where they are, how the step runs with them cut, what their weights are."""

from ._by_element import with_elementwise_ops as with_elementwise_ops
from ._composed import Chain as Chain
from ._composed import find_chains as find_chains
from ._composed import with_chains as with_chains
from ._cut import OpenStep as OpenStep
from ._cut import run_opened as run_opened
from ._data_first import with_data_first as with_data_first
from ._rows import Rows as Rows
from ._sites import Addresses as Addresses
from ._sites import WeightSite as WeightSite
from ._sites import find_sites as find_sites
from ._split import with_heads_apart as with_heads_apart
from ._weights import Weights as Weights
from ._weights import fixed_examples as fixed_examples
from ._weights import fixed_operands as fixed_operands
from ._weights import param_grads as param_grads
from ._weights import weights as weights
