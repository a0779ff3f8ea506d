"""`etrace_grad` and `etrace_evolve`: whole sequences through a learner."""

from __future__ import annotations

from collections.abc import Callable

import brainstate

from ..._errors import ArgumentError
from ...compiler.ir import PyTree
from ...graph import MultiStepData, SingleStepData
from ...stateful import Sequences, brainstate_loop


class SequenceDriverMixin:
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
        self, sequences: tuple[PyTree, ...], chunk_size: int | None, mask: PyTree = None, weights: PyTree = None
    ) -> Sequences:
        if self.resized():  # what is made inside a loop does not outlive its step
            self.init_etrace_state()  # pyright: ignore[reportAttributeAccessIssue]
        loop = brainstate_loop(brainstate, self.param_states, weights)
        return Sequences(loop, lambda: self.calls, sequences, chunk_size, mask)

    def _check_windows(self, chunk: int) -> None:
        """Refuse windows that the learner cannot take."""

    def etrace_grad(
        self, *sequences: PyTree, step_fn: Callable[..., PyTree], mask: PyTree = None, chunk_size: int | None = None,
        weights: PyTree = None, reduction: str = "mean", loss_output: str = "per_step", has_aux: bool = False,
        return_value: bool = False,
    ) -> PyTree:  # fmt: skip
        """Gradients over the sequences as `etrax.Stateful.etrace_grad` gives them; windows need 'multi-step'."""
        run = self._sequences(sequences, chunk_size, mask, weights)
        if run.chunk > 1 and self.vjp_method != "multi-step":
            raise ArgumentError(
                f"`chunk_size` is {run.chunk}, but the learner was made with vjp_method={self.vjp_method!r}: windows "
                "need vjp_method='multi-step'."
            )
        self._check_windows(run.chunk)
        return run.gradients(step_fn, reduction, loss_output, has_aux, return_value)

    def etrace_evolve(
        self, *sequences: PyTree, step_fn: Callable[..., PyTree] | None = None, chunk_size: int | None = None,
        return_outputs: bool = False,
    ) -> PyTree:  # fmt: skip
        """States and trace through the sequences, without a gradient; the outputs if asked for."""
        run = self._sequences(sequences, chunk_size)
        self._check_windows(run.chunk)
        mark = MultiStepData if run.chunk > 1 else SingleStepData
        plain = lambda *slices: self(*(mark(s) for s in slices))  # noqa: E731  # pyright: ignore[reportCallIssue]
        return run.evolve(plain if step_fn is None else step_fn, return_outputs)
