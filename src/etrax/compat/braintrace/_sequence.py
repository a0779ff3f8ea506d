"""`etrace_grad` and `etrace_evolve` of the algorithms, as `etrax.Stateful` has them."""

from __future__ import annotations

import brainstate

from ..._errors import ArgumentError
from ...compiler.ir import PyTree
from ...stateful import SequenceDriver, Sequences, brainstate_loop


class SequenceDriverMixin(SequenceDriver):
    """Sequences, time first, through what `__call__` does; a subclass counts its calls and names its parameters."""

    calls: int = 0
    vjp_method: str | None = None

    @property
    def param_states(self) -> PyTree:
        raise NotImplementedError

    def resized(self) -> bool:
        """Whether the states are of another size than the traces."""
        return False

    def _sequences(
        self, sequences: tuple[object, ...], chunk_size: int | None, mask: object = None, weights: object = None
    ) -> Sequences:
        if self.resized():  # what is made inside a loop does not outlive its step
            self.init_etrace_state()  # pyright: ignore[reportAttributeAccessIssue]
        loop = brainstate_loop(brainstate, self.param_states, weights)
        return Sequences(loop, lambda: self.calls, sequences, chunk_size, mask)

    def _check_windows(self, chunk: int, gradients: bool) -> None:
        if gradients and chunk > 1 and self.vjp_method != "multi-step":
            raise ArgumentError(
                f"`chunk_size` is {chunk}, but the learner was made with vjp_method={self.vjp_method!r}: windows "
                "need vjp_method='multi-step'."
            )
