"""A learner of one sample, mapped over a batch of them."""

from __future__ import annotations

from typing import cast

import brainstate

from ..._errors import ArgumentError, NotSupportedError
from ...compiler.ir import PyTree
from ._algorithm import ETraceAlgorithm, SequenceDriverMixin, States
from ._hooks import SERVED, HookedStateful, refuse_override

_MAPPED = (
    "`{}` overrides `_solve_weight_gradients`, and a mapped learner would give it the gradient of the whole batch, "
    "where braintrace gives it that of each sample: compile with `vmap=False`, where both give it the gradient of the "
    "batch."
)


class ETraceVmap(SequenceDriverMixin, brainstate.nn.Vmap):
    """A learner of one sample, mapped over a batch of them."""

    def __setattr__(self, name: str, value: object) -> None:
        refuse_override(name, type(self).__name__)
        if name == SERVED:
            raise NotSupportedError(_MAPPED.format(type(self).__name__))
        super().__setattr__(name, value)

    def __init__(self, module: ETraceAlgorithm, *args: PyTree, **kwargs: PyTree):
        if isinstance(getattr(module, "online", None), HookedStateful):
            raise NotSupportedError(_MAPPED.format(type(module).__name__))
        super().__init__(module, *args, **kwargs)  # pyright: ignore[reportCallIssue]

    def update(self, *args: object, **kwargs: object) -> PyTree:
        self.calls += 1
        return super().update(*args, **kwargs)

    @property
    def param_states(self) -> States:
        return cast(ETraceAlgorithm, self.module).param_states

    def _check_windows(self, chunk: int, gradients: bool) -> None:
        super()._check_windows(chunk, gradients)
        if chunk > 1:
            raise ArgumentError(
                f"`chunk_size` is {chunk}, but this learner is mapped (vmap) over the first axis, which is time in a "
                "window: compile with `vmap=False`, or pass no `chunk_size`."
            )

    @property
    def vjp_method(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return getattr(self.module, "vjp_method", None)
