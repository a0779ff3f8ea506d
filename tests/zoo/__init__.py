"""Small one-step JAX models of every kind a newcomer writes, and what ``d_rtrl`` must give for their parameters.

``ZOO[name]()`` builds one ``Model``; nothing here depends on the library under test. Models are double precision.
"""

import jax

jax.config.update("jax_enable_x64", True)

from . import (  # noqa: E402
    as_written,
    batch,
    cells,
    chains,
    chosen,
    closures,
    control,
    conv,
    delays,
    delta_rules,
    depth,
    fan_out,
    loops,
    ops,
    plain,
    readers,
    reads,
    series,
    size,
    sparse,
    stabilisers,
    stacks,
    states,
    subgroups,
    tails,
    transitions,
    weights,
)
from .model import EXACT, REPORTED, UNUSED, Entry, Model  # noqa: E402

FAMILIES = (
    weights,
    plain,
    reads,
    chains,
    tails,
    fan_out,
    transitions,
    depth,
    cells,
    states,
    control,
    ops,
    conv,
    sparse,
    batch,
    size,
    loops,
    chosen,
    closures,
    readers,
    stacks,
    series,
    subgroups,
    stabilisers,
    delays,
    delta_rules,
    as_written,
)
ZOO: dict[str, Entry] = {entry.name: entry for module in FAMILIES for entry in module.family.entries}

__all__ = ["EXACT", "REPORTED", "UNUSED", "ZOO", "Entry", "Model"]
