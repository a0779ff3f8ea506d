"""Relations: a weight reaches hidden groups through one op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from .._compat import Jaxpr, Var
from ..ir import Path, Source, format_path
from ._group import HiddenGroup
from ._show import show
from ._slices import eval_slice


class HiddenParamOpRelation(NamedTuple):
    """y = op(x, w) acts on hidden groups, each element of y on one position of each.

    `path` is the state that holds the weight, `leaf_path` the leaf of it, `op` the number of the weight op in the step.
    `y_var` is the equation's output. `y_to_hidden_group_jaxprs` has one jaxpr per group, which gives the group's new
    hidden values: `jax.core.eval_jaxpr(jaxpr, inputs, y)`, with the values of its variables in `y_to_hidden_constvars`.
    For an op inside an inner loop or branch (`nested`) there are none. `positions[g][e]` is the position of group g
    that element e of y reaches, -1 if none. Groups that an element of y reaches at several positions are not among
    `hidden_groups`: see the diagnostics.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> relation = learner.graph.hidden_param_op_relations[0]
    >>> relation.path, len(relation.hidden_groups)
    ((), 1)
    """

    path: Path
    leaf_path: Path
    primitive: str
    x_var: Var | None
    y_var: Var
    hidden_groups: tuple[HiddenGroup, ...]
    y_to_hidden_group_jaxprs: tuple[Jaxpr, ...]
    y_to_hidden_constvars: tuple[tuple[Var, ...], ...]
    connected_hidden_paths: list[Path]
    positions: tuple[np.ndarray, ...]
    op: int
    family: str
    source: Source | None
    nested: bool = False

    def y_to_hidden_groups(
        self, y_val: jax.Array, const_vals: Mapping[Var, jax.Array], concat_hidden_vals: bool = True
    ) -> list[jax.Array] | list[list[jax.Array]]:
        """New hidden values of each group from the op's output, with the values of all that else is read by variable.

        One array (*varshape, num_state) per group, or a list of one value per state.
        """
        out = []
        for group, jaxpr, constvars in zip(
            self.hidden_groups, self.y_to_hidden_group_jaxprs, self.y_to_hidden_constvars, strict=not self.nested
        ):
            values = eval_slice(jaxpr, [const_vals[v] for v in constvars], [y_val])
            out.append(group.concat_hidden(values) if concat_hidden_vals else values)
        return out

    def dict(self) -> dict[str, object]:
        return self._asdict()

    @property
    def _brief(self) -> str:
        groups = ", ".join(str(g.index) for g in self.hidden_groups)
        where = f" at {self.source}" if self.source else ""
        return f"{format_path(self.leaf_path, 'params')} by `{self.primitive}`{where} to group {groups}"

    def __repr__(self) -> str:
        return show(self)
