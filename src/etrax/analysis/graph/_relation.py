"""Relations: a weight reaches hidden groups through one op."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..._compat import Jaxpr, Var
from ...ir import Path, Source, format_path
from ._group import HiddenGroup


class HiddenParamOpRelation(NamedTuple):
    """y = op(x, w) acts on hidden groups, each element of y on one position of each.

    `path` is the state that holds the weight, `leaf_path` the leaf of it, `op` the number of the weight op in the step.
    `y_var` is the equation's output. `y_to_hidden_group_jaxprs` has one jaxpr per group: it takes y, then the values of
    the variables in `y_to_hidden_constvars`, and gives the group's new hidden values; for an op inside an inner loop
    or branch (`nested`) there are none. `positions[g][e]` is the position of group g that element e of y reaches, -1 if
    none. Groups that an element of y reaches at several positions are not among `hidden_groups`: see the diagnostics.
    """

    path: Path
    leaf_path: Path
    primitive: str
    x_var: Var | None
    y_var: Any
    hidden_groups: tuple[HiddenGroup, ...]
    y_to_hidden_group_jaxprs: tuple[Jaxpr, ...]
    y_to_hidden_constvars: tuple[tuple[Var, ...], ...]
    connected_hidden_paths: tuple[Path, ...]
    positions: tuple[np.ndarray, ...]
    op: int
    family: str
    source: Source | None
    nested: bool = False

    def dict(self) -> dict[str, Any]:
        return self._asdict()

    def __repr__(self) -> str:
        groups = ", ".join(str(g.index) for g in self.hidden_groups)
        where = f" at {self.source}" if self.source else ""
        weight = format_path(self.leaf_path, "params")
        return f"HiddenParamOpRelation({weight} by `{self.primitive}`{where} -> groups {groups})"
