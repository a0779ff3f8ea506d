"""A learning rule is a frozen record of pure functions; see README.md for how to add one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..analysis import Facts
from ..engine import Transport
from ._identity import identity
from ._verdicts import Verdict


class RuleWarning(UserWarning):
    """A rule that fits the model or its data badly."""


@dataclass(frozen=True, eq=False)
class Rule:
    """How a trace is carried from window to window, and what that is worth for each parameter.

    `transport(facts, sites, trace_dtype)` builds the numbers for the given sites (None: all); `verdict(facts, param)`
    derives from the facts what the gradient of a parameter is worth; `frozen(facts)` are parameters without a gradient;
    `warns(facts, inputs)` says what a user should be warned of, when the model is compiled (`inputs` is None) and when
    the first sequence comes. `trace_bytes(facts, trace_dtype)` is the size of the trace where there is a way to tell
    without building the transport. Rules that do the same are equal: those of one function with equal options.
    """

    name: str
    transport: Callable[[Facts, frozenset[int] | None, Any], Transport]
    verdict: Callable[[Facts, int], Verdict]
    trace_bytes: Callable[[Facts, Any], int] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    frozen: Callable[[Facts], frozenset[int]] = lambda facts: frozenset()
    warns: Callable[[Facts, Sequence[Any] | None], Sequence[str]] = lambda facts, inputs: ()

    def size(self, facts: Facts, trace_dtype: Any = None) -> int:
        """Bytes of the trace that the rule carries."""
        if self.trace_bytes is None:
            return self.transport(facts, None, trace_dtype).nbytes
        return self.trace_bytes(facts, trace_dtype)

    def _identity(self) -> Any:
        functions = (self.transport, self.verdict, self.trace_bytes, self.frozen, self.warns)
        return self.name, identity(self.options), identity(functions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __str__(self) -> str:
        shown = ", ".join(f"{k}: {v}" if isinstance(v, Rule) else f"{k}={v!r}" for k, v in self.options.items())
        return f"{self.name}({shown})"
