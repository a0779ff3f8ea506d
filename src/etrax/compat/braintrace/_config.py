"""What a user of braintrace chooses a learning rule by: coordinates on six axes, and a policy for control flow."""

from __future__ import annotations

import dataclasses
import numbers
import operator
from dataclasses import dataclass
from typing import TypeAlias

from ..._errors import ArgumentError, ArgumentTypeError

Decay: TypeAlias = float | tuple[float | None, float | None] | None

# By axis, its values; the first is the default.
AXES = {
    "trace_factorization": ("per_param", "io_factorized", "random_projection"),
    "temporal_recursion": ("jacobian", "scalar_leak", "none"),
    "recurrence_scope": ("diagonal", "coupled", "sparse_n"),
    "learning_signal": ("symmetric", "random_feedback", "modulatory", "bootstrapped"),
    "trace_filter": ("none", "kappa"),
    "update_schedule": ("per_step", "window", "sequence_end"),
}
# A coefficient, and the axis with the value that it belongs to.
_OWNERS = {
    "kappa": ("trace_filter", "kappa"),
    "sparse_n": ("recurrence_scope", "sparse_n"),
    "window_size": ("update_schedule", "window"),
}


@dataclass(frozen=True)
class ETraceConfig:
    """A learning rule by its coordinates. One rule has one spelling: equal rules are equal.

    >>> ETraceConfig(temporal_recursion="scalar_leak", decay=0.0) == ETraceConfig(temporal_recursion="none")
    True
    >>> ETraceConfig(trace_factorization="io_factorized", decay=0.9).temporal_recursion
    ('scalar_leak', 'jacobian')
    """

    trace_factorization: str = "per_param"
    temporal_recursion: str | tuple[str, str] = "jacobian"
    recurrence_scope: str = "diagonal"
    learning_signal: str = "symmetric"
    trace_filter: str = "none"
    update_schedule: str = "per_step"
    decay: Decay = None
    kappa: float | None = None
    sparse_n: int | None = None
    window_size: int | None = None

    def __post_init__(self) -> None:
        for axis, values in AXES.items():
            chosen = getattr(self, axis)
            for value in chosen if isinstance(chosen, tuple | list) else (chosen,):
                if value not in values:
                    raise ArgumentError(f"{axis}={value!r} is not a known value; expected one of {values}.")
        self._simplify()
        self._check_recursion()
        self._check_combination()

    def _put(self, **values: object) -> None:
        """Set fields of this frozen record while it is made."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _simplify(self) -> None:
        """Other spellings of the same rule become the one."""
        if self.is_factorized:
            spelled = self.temporal_recursion
            recursion, decay = _pair("temporal_recursion", spelled), _pair("decay", self.decay)
            if isinstance(spelled, str) and spelled == "jacobian":
                recursion = ("scalar_leak", "jacobian")  # the input's trace has no Jacobian
            sides = zip(recursion, decay, ("decay (x-side)", "decay (f-side)"), strict=True)
            pairs = [_side(r, d, what, of_any=True) for r, d, what in sides]
            self._put(temporal_recursion=tuple(r for r, _ in pairs), decay=tuple(d for _, d in pairs))
        else:
            for name in ("temporal_recursion", "decay"):
                if isinstance(getattr(self, name), tuple | list):
                    raise ArgumentError(f"`{name}` may only be a pair under trace_factorization='io_factorized'.")
            recursion, decay = _side(self.temporal_recursion, self.decay, "decay")
            self._put(temporal_recursion=recursion, decay=decay)
        if self.sparse_n is not None:
            self._put(sparse_n=as_order(self.sparse_n))
            if (self.sparse_n, self.recurrence_scope) == (1, "sparse_n"):
                self._put(sparse_n=None, recurrence_scope="coupled")
        if self.trace_filter == "kappa" and self.kappa == 0:
            self._put(trace_filter="none", kappa=None)

    def _check_recursion(self) -> None:
        if self.update_schedule != "per_step":
            raise ArgumentError(
                f"update_schedule={self.update_schedule!r} is not implemented yet (no phase yet): use "
                "`etrace_grad(chunk_size=...)`, which takes windows."
            )
        if self.trace_filter == "kappa" and self.trace_factorization != "per_param":
            raise ArgumentError(
                "trace_filter='kappa' requires trace_factorization='per_param': a filtered trace is not rank-1, "
                f"which {self.trace_factorization!r} is."
            )
        consumed = self.recursion_f if self.is_factorized else self.temporal_recursion
        if self.recurrence_scope != "diagonal" and consumed != "jacobian":
            raise ArgumentError(
                f"recurrence_scope={self.recurrence_scope!r} says which Jacobian the trace follows, so it needs "
                f"{'the f-side' if self.is_factorized else 'the'} temporal_recursion to be 'jacobian'; "
                f"{consumed!r} never consumes one."
            )
        if self.is_factorized:
            if self.recursion_x == "jacobian":
                raise ArgumentError("temporal_recursion: the x-side may not be 'jacobian'; it filters the input.")
            for side, value in zip("xf", self.decay, strict=True):  # pyright: ignore[reportArgumentType]
                if value is None:
                    raise ArgumentError(f"the {side}-side decay is required: pass decay=a, or decay=(x, f).")
        elif self.temporal_recursion == "jacobian" and self.decay is not None:
            raise ArgumentError(f"decay={self.decay} would be silently ignored: 'jacobian' has no leak.")
        elif self.temporal_recursion == "scalar_leak" and self.decay is None:
            raise ArgumentError("temporal_recursion='scalar_leak': decay is required.")

    def _check_combination(self) -> None:
        for name, (axis, value) in _OWNERS.items():
            coefficient = getattr(self, name)
            if coefficient is not None and getattr(self, axis) != value:
                raise ArgumentError(
                    f"`{name}={coefficient!r}` has no category to act on: {axis} is {getattr(self, axis)!r}, "
                    f"not {value!r}."
                )
            if coefficient is None and getattr(self, axis) == value:
                raise ArgumentError(f"{axis}={value!r}: `{name}` is required.")
        if self.kappa is not None:
            _unit_interval(self.kappa, "kappa")
        if self.trace_factorization == "random_projection" and self.recurrence_scope != "coupled":
            raise ArgumentError(
                "trace_factorization='random_projection' requires recurrence_scope='coupled': it estimates the whole "
                f"recursion, not that of {self.recurrence_scope!r}."
            )
        if self.recurrence_scope == "sparse_n" and self.trace_factorization != "per_param":
            raise ArgumentError("recurrence_scope='sparse_n' requires trace_factorization='per_param'.")

    @property
    def is_factorized(self) -> bool:
        """Whether the trace is a pair of an input's and a state's."""
        return self.trace_factorization == "io_factorized"

    @property
    def recursion_x(self) -> str:
        return self._of_side("temporal_recursion", 0)

    @property
    def recursion_f(self) -> str:
        return self._of_side("temporal_recursion", 1)

    @property
    def decay_x(self) -> float:
        return self._of_side("decay", 0)

    @property
    def decay_f(self) -> float:
        return self._of_side("decay", 1)

    def _of_side(self, name: str, side: int):
        if not self.is_factorized:
            raise AttributeError(f"{name} has sides under trace_factorization='io_factorized' only.")
        return getattr(self, name)[side]

    @property
    def include_recurrent_mixing(self) -> bool:
        """Whether the trace follows what a recurrent weight does between positions."""
        return self.recurrence_scope != "diagonal"

    def replace(self, **changes: object) -> ETraceConfig:
        """Change some coordinates, and check them anew."""
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def describe(self) -> str:
        """The coordinates that are not the default, and the coefficients."""
        names = [a for a, values in AXES.items() if getattr(self, a) != values[0] or a == "trace_factorization"]
        names += [n for n in ("decay", *_OWNERS) if getattr(self, n) is not None]
        return ", ".join(f"{n}={getattr(self, n)!r}" for n in names)


def _pair(name: str, value) -> tuple:
    if not isinstance(value, tuple | list):
        return value, value
    if len(value) != 2:
        raise ArgumentError(f"`{name}` must have exactly two entries, (x, f); got {len(value)}.")
    return tuple(value)


def _side(recursion, decay, what: str, of_any: bool = False) -> tuple[str, float | None]:
    """A leak of zero keeps nothing, and what keeps nothing has no leak."""
    if decay is not None:
        decay = _unit_interval(decay, what)
    if decay == 0 and (of_any or recursion == "scalar_leak"):
        recursion = "none"
    if recursion == "none":
        if decay:
            raise ArgumentError(f"temporal_recursion='none' keeps nothing: {what}={decay} would have no effect.")
        decay = 0.0
    return recursion, decay


def _unit_interval(value, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgumentTypeError(f"{what} must be a float in [0, 1); got {value!r}.")
    if not 0 <= float(value) < 1:
        raise ArgumentError(f"{what} must be a float in [0, 1); got {value}. A rank goes to `decay_or_rank`.")
    return float(value)


def as_order(n) -> int:
    """An order of SnAp, a whole number of at least 1."""
    try:
        order = operator.index(n)
    except TypeError:
        order = None
    if order is None or isinstance(n, bool):
        raise ArgumentTypeError(f"sparse_n must be an integer of at least 1; got {n!r}.")
    if order < 1:
        raise ArgumentError(f"sparse_n must be at least 1; got {order}.")
    return order


@dataclass(frozen=True)
class ControlFlowPolicy:
    """How that library rewrote branches and loops. Etrax differentiates them as they are: any policy is accepted and
    checked, and none changes a gradient.

    >>> ControlFlowPolicy(scan_unroll_limit=4).scan_descent
    'auto'
    """

    cond: str = "convert"
    scan_unroll_limit: int = 16
    while_hidden: str = "opaque-fwd"
    etp_in_control_flow: str = "error"
    scan_descent: str = "auto"
    fixpoint_iteration_limit: int = 64

    def __post_init__(self) -> None:
        choices = {
            "cond": ("convert", "opaque"),
            "while_hidden": ("opaque-fwd", "error"),
            "scan_descent": ("auto", "off"),
        }
        for name, values in choices.items():
            if getattr(self, name) not in values:
                raise ArgumentError(f"{name}={getattr(self, name)!r} is not known; expected one of {values}.")
        limit = self.fixpoint_iteration_limit
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ArgumentError(f"fixpoint_iteration_limit must be an integer of at least 1; got {limit!r}.")
