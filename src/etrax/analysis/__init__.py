"""From a `Step` to frozen facts. Computes no numbers. See README.md in this folder."""

from ._analyse import analyse as analyse
from ._carried import half_losses as half_losses
from ._carried import traced_relations as traced_relations
from ._colours import colours as colours
from ._cut import OpenStep as OpenStep
from ._derived import Derived as Derived
from ._derived import derived_states as derived_states
from ._facts import Facts as Facts
from ._facts import Loss as Loss
from ._facts import LossKind as LossKind
from ._facts import Relation as Relation
from ._facts import Tag as Tag
from ._nodes import Node as Node
from ._nodes import OpNode as OpNode
from ._nodes import OutputNode as OutputNode
from ._nodes import StateNode as StateNode
from ._positions import Group as Group
from ._reach import find_nodes as find_nodes
from ._reach import reach_of as reach_of
from ._reach import steps_to_fill as steps_to_fill
from ._reach import uncut_edges as uncut_edges
from ._sites import Addresses as Addresses
from ._sites import WeightSite as WeightSite
from ._visible import Visible as Visible
from ._visible import find_visible as find_visible
from ._visible import observe as observe
