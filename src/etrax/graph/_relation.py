"""Relations: a weight reaches hidden groups through one op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from .._compat import Jaxpr, Primitive, Var
from ..compiler.ir import Path, Source, format_path
from ._group import HiddenGroup
from ._show import show
from ._slices import eval_slice

# Stands for the equation of a weight that is a new hidden value itself: none reads it.
OUTPUT = Primitive("output")


class HiddenParamOpRelation(NamedTuple):
    """y = op(x, w) acts on hidden groups, each element of y on one position of each.

    `path` is the state that holds the weight, `leaf_path` the leaf of it, `op` the number of the weight op in the step.
    `primitive` and `eqn_params` are those of the op's equation, `x_var` and `y_var` its data operand and its result.
    `trainable_vars` and `trainable_paths` hold, by name, all leaves that the op's weight is made of (one, unless the
    step computes the weight from several): their variables among the inputs of the jaxpr, and the states they are in.

    `y_to_hidden_group_jaxprs` has one jaxpr per group, which gives the group's new hidden values:
    `jax.core.eval_jaxpr(jaxpr, inputs, y)`, with the values of its variables in `y_to_hidden_constvars`. An op inside
    an inner loop or branch is `nested`: `x_var` and `y_var` are variables of the body, and the jaxprs take y of all
    iterations, with an axis for each loop first. `positions[g][e]` is the position of group g that element e of y
    reaches, -1 if none. Groups that an element of y reaches at several positions are not among `hidden_groups`: see
    the diagnostics.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> relation = learner.graph.hidden_param_op_relations[0]
    >>> relation.path, relation.primitive.name, len(relation.hidden_groups)
    ((), 'dot_general', 1)
    """

    path: Path
    leaf_path: Path
    primitive: Primitive
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
    nested: bool
    eqn_params: dict[str, Any]
    trainable_paths: dict[str, Path]
    trainable_vars: dict[str, Var]

    def y_to_hidden_groups(
        self, y_val: jax.Array, const_vals: Mapping[Var, jax.Array], concat_hidden_vals: bool = True
    ) -> list[jax.Array] | list[list[jax.Array]]:
        """New hidden values of each group from the op's result, with the values of all else that is read, by variable.

        One array (*varshape, num_state) per group, or a list of one value per state.
        """
        out = []
        parts = self.hidden_groups, self.y_to_hidden_group_jaxprs, self.y_to_hidden_constvars
        for group, jaxpr, constvars in zip(*parts, strict=True):
            values = eval_slice(jaxpr, [const_vals[v] for v in constvars], [y_val])
            out.append(group.concat_hidden(values) if concat_hidden_vals else values)
        return out

    def dict(self) -> dict[str, object]:
        return self._asdict()

    @property
    def _brief(self) -> str:
        groups = ", ".join(str(g.index) for g in self.hidden_groups)
        where = f" at {self.source}" if self.source else ""
        return f"{format_path(self.leaf_path, 'params')} by `{self.primitive.name}`{where} to group {groups}"

    def __repr__(self) -> str:
        return show(self)
