"""How a learner starts again before a step: all lanes of its batch at once, or each on its own."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import is_concrete, transfers_meant
from .._errors import ArgumentError
from ..compiler.ir import PyTree
from ._checks import check_lanes
from ._program import LearnerState

if TYPE_CHECKING:
    from ._learner import Learner


class Resets:
    """The learner by lane, which learner a call needs, and the states that resets return to."""

    def __init__(self, learner: Learner):
        self._learner = learner
        self._wider_leaf: int | None = None
        self._start: tuple[PyTree, PyTree] | None = None

    @cached_property
    @transfers_meant()
    def by_lane(self) -> Learner:
        """This learner with a trace of which no part is equal for several lanes: each may start again on its own.

        The first `reset` of shape (T, B) asks for it. Raises for a model without lanes.
        """
        learner = self._learner
        other = learner.with_model(learner.model.with_lanes(check_lanes(learner.facts)))
        pairs = zip(*(jax.tree.leaves(x.program.trace_struct) for x in (learner, other)), strict=True)
        self._wider_leaf = next((n for n, (a, b) in enumerate(pairs) if a.shape != b.shape), None)
        return other

    def lanes_for(self, state: PyTree, reset: PyTree, rank: int = 2) -> Learner | None:
        """The learner by lane, if resets are by lane (arrays of so many axes) or the trace is; else None."""
        if self._learner.facts.lanes is not None:
            return None
        if getattr(reset, "ndim", 0) == rank:
            return self.by_lane
        if self._wider_leaf is None or not isinstance(state, LearnerState):
            return None
        leaves, structs = jax.tree.leaves(state.trace), jax.tree.leaves(self.by_lane.program.trace_struct)
        at = self._wider_leaf
        return self.by_lane if len(leaves) == len(structs) and np.shape(leaves[at]) == structs[at].shape else None

    def in_lanes(self, state: LearnerState) -> LearnerState:
        """A state whose trace is that of a learner by lane: what was equal for all lanes is there for each of them."""
        struct = self._learner.program.trace_struct
        is_state = isinstance(state, LearnerState)
        by_lane = self._learner.facts.lanes is not None
        if not by_lane or not is_state or jax.tree.structure(state.trace) != jax.tree.structure(struct):
            return state  # which is refused where it is used, if it does not fit

        def repeated(a: PyTree, like: jax.ShapeDtypeStruct) -> PyTree:
            shape = np.shape(a)
            ones = [(1, n) for n in like.shape] if shape else []
            wider = shape != like.shape and len(shape) == len(ones)
            fits = wider and all(n in sizes for n, sizes in zip(shape, ones, strict=True))
            return jnp.broadcast_to(a, like.shape) if fits else a

        return state._replace(trace=jax.tree.map(repeated, state.trace, struct))

    def start_of(self, reset: PyTree, initial: PyTree) -> PyTree:
        """The hidden state that resets return to: what the caller passed, or what `learner.init()` has."""
        if reset is None:
            if initial is not None:
                raise ArgumentError("`initial` is the hidden state that resets return to: pass `reset` as well.")
            return None
        if initial is not None:
            return initial
        hidden, program = self._learner.hidden, self._learner.program
        if any(isinstance(a, jax.ShapeDtypeStruct) for a in jax.tree.leaves(hidden)):
            raise ArgumentError(
                "the model was compiled with shapes only, without values for `hidden`, to which a `reset` returns: "
                "pass them, `initial=hidden`."
            )
        if not is_concrete(hidden):
            return hidden
        if self._start is None or self._start[0] is not hidden:
            # As arrays, once: numbers of Python would be sent to the device at every call.
            with transfers_meant():
                self._start = hidden, program.hidden_of([jnp.asarray(a) for a in program.states(hidden)])
        return self._start[1]
