"""Hidden groups: states that act on each other position by position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from .._compat import Jaxpr, Var
from .._errors import NotSupportedError
from ..compiler.dataflow import refuse_while
from ..compiler.ir import Path, format_path
from ..runtime import Pulls, probes_of
from ._columns import Columns, columns_of_states, varshapes
from ._show import show
from ._slices import eval_slice


class SnapPattern(NamedTuple):
    """Which positions of a group the trace of SnAp-n holds for each of them.

    `neighbours[p]` are the numbers of p itself and of the positions that it acts on in fewer than n steps, filled up
    with p where `valid` is False.
    """

    n: int
    varshape: tuple[int, ...]
    neighbours: np.ndarray
    valid: np.ndarray

    @property
    def num_position(self) -> int:
        return self.neighbours.shape[0]

    @property
    def num_neighbour(self) -> int:
        """The most positions that are held for one, itself included."""
        return self.neighbours.shape[1]

    @property
    def is_degenerate(self) -> bool:
        """Whether each position has itself alone."""
        return self.num_neighbour == 1

    @property
    def is_saturated(self) -> bool:
        """Whether each position has all of them: RTRL within the group."""
        return self.num_neighbour == self.num_position and bool(self.valid.all())


class HiddenGroup(NamedTuple):
    """States of one position set, and their own transition h' = G(h, rest).

    `jax.core.eval_jaxpr(transition_jaxpr, inputs, *hidden)` runs it on the values of `transition_jaxpr_constvars` and
    the old values of `hidden_states`. The constvars are every variable of the model's jaxpr that the new values need
    and that does not depend on the group through uncut operations, among them the outputs of cut weight ops. `colour`
    numbers the positions that are probed together (None: all), see `diagonal_jacobian`; `tag` is the structure of the
    recurrence; `snap` is what a learner of SnAp-n holds (None: of each position itself). States are in the order of the
    model's own, see `ModuleInfo`.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> group = learner.graph.hidden_groups[0]
    >>> group.varshape, group.num_state, float(group.diagonal_jacobian([jnp.zeros(4)], [jnp.zeros(4)])[0, 0, 0]) > 0
    ((4,), 1, True)
    """

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]: a field, not the method of tuples
    hidden_paths: list[Path]
    hidden_states: list[Any]
    hidden_invars: list[Var]
    hidden_outvars: list[Var]
    transition_jaxpr: Jaxpr
    transition_jaxpr_constvars: list[Var]
    layout: Columns | None = None
    colour: np.ndarray | None = None
    tag: str = ""
    snap: SnapPattern | None = None

    @property
    def columns(self) -> Columns:
        """The group's states as one array with a column per state scalar."""
        # A group that was changed by hand (`_replace`) has states that its layout was not made for.
        if self.layout is None or not self.layout.are_of(self.hidden_states):
            return columns_of_states(self.hidden_states)
        return self.layout

    @property
    def varshape(self) -> tuple[int, ...]:
        """Shape of the set of positions."""
        return self.columns.varshape

    @property
    def num_state(self) -> int:
        """State scalars at one position."""
        return self.columns.num_state

    @property
    def trace_state_width(self) -> int:
        """State scalars that a trace holds for one position."""
        return self.num_state * (1 if self.snap is None else self.snap.num_neighbour)

    @property
    def is_diagonal_recurrence(self) -> bool:
        """True: what acts across positions, a recurrent matmul, is never part of a group's transition."""
        return True

    def check_consistent_varshape(self) -> None:
        """Raise `NotSupportedError` unless all states of the group show the same positions by their shapes."""
        shapes = varshapes(self.hidden_states)
        if len(set(shapes)) > 1:
            names = ", ".join(f"{format_path(p)} {list(s)}" for p, s in zip(self.hidden_paths, shapes, strict=True))
            raise NotSupportedError(
                f"the hidden states of group {self.index} have different shapes: {names}. Give states that act on each "
                "other position by position one shape (a `brainstate.HiddenGroupState` has one more axis, the last)."
            )

    def transition(self, hidden_vals: Iterable[object], input_vals: Iterable[object]) -> list[jax.Array]:
        """New values from old ones and the values of `transition_jaxpr_constvars`; units are dropped."""
        hidden, rest = jax.tree.leaves(list(hidden_vals)), jax.tree.leaves(list(input_vals))
        if (len(hidden), len(rest)) != (len(self.hidden_invars), len(self.transition_jaxpr_constvars)):
            raise ValueError(
                f"`transition` of group {self.index} takes {len(self.hidden_paths)} hidden values and "
                f"{len(self.transition_jaxpr_constvars)} input values, got {len(hidden)} and {len(rest)}."
            )
        return eval_slice(self.transition_jaxpr, rest, hidden)

    def diagonal_jacobian(self, hidden_vals: Iterable[object], input_vals: Iterable[object]) -> jax.Array:
        """The blocks ∂h'[p, :]/∂h[p, :] of the transition, (*varshape, num_state, num_state).

        One pull-back per state scalar and colour: one colour for a diagonal or block group; for others as many as
        `colours` needs, at most the number of positions of one sample.
        """
        columns = self.columns
        numbers = columns.layout.group.leaves
        hidden = dict(zip(numbers, jax.tree.leaves(list(hidden_vals)), strict=True))
        # Positions of one colour do not act on each other, so that one pull-back reads the blocks of all of them.
        probes = [(probe,) for probe in probes_of(0, columns.layout, self.colour)]

        def run(h: dict[int, jax.Array]) -> dict[int, jax.Array]:
            return dict(zip(numbers, self.transition([h[i] for i in numbers], input_vals), strict=True))

        try:
            _, pull = jax.vjp(run, hidden)
            (block,), _ = Pulls((columns.layout,), tuple(probes))(lambda c: (pull(c)[0], {}))
        except ValueError as error:
            refuse_while(error)
            raise
        return columns.blocks(block)

    def concat_hidden(self, values: Iterable[object]) -> jax.Array:
        """One array (..., *varshape, num_state) from one value per state, each behind the same leading axes.

        Units are dropped. A value of another shape is a `ValueError`.
        """
        return self.columns.concat(values)

    def split_hidden(self, array: object) -> list[jax.Array]:
        """One value per state from one array (..., *varshape, num_state): the inverse of `concat_hidden`.

        Values have no units. An array of another width is a `ValueError`.
        """
        return self.columns.split(array)

    def dict(self) -> dict[str, object]:
        return self._asdict()

    @property
    def _brief(self) -> str:
        names = ", ".join(format_path(p, "hidden") for p in self.hidden_paths)
        return f"HiddenGroup {self.index} of {names}"

    def __repr__(self) -> str:
        return show(self)
