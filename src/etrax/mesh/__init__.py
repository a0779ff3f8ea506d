"""A learner on a mesh of devices: how its arrays lie. JAX partitions. See README.md in this folder."""

from ._mesh import meshed as meshed
from ._shard import align_entries as align_entries
from ._shard import checked_mesh as checked_mesh
from ._traffic import messages as messages
