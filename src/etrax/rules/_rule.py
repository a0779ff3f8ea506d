"""A learning rule is a frozen record of pure functions; see README.md for how to add one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.typing import DTypeLike

from .._compat import is_concrete, is_extended
from .._errors import visible
from ..compiler.analysis import Facts, memoised
from ..compiler.ir import Role, format_path
from ..runtime import Transport
from ._verdicts import Verdict


class RuleWarning(UserWarning):
    """A rule that fits the model or its data badly."""


class Candidates(NamedTuple):
    """Directions that a gradient is projected on: gradients of `rules`, random ones, the projection of the last call.

    With `by_parameter` each parameter's gradient is projected on its own part of them. `key` starts the random ones.
    """

    rules: tuple[Rule, ...]
    random: int
    last: bool
    by_parameter: bool
    key: jax.Array


@dataclass(frozen=True, eq=False)
class Rule:
    """How a trace is carried from window to window, and what that is worth for each parameter.

    `transport(facts, sites, trace_dtype)` builds the numbers for the given sites (None: all); `verdict(facts, param)`
    derives from the facts what the gradient of a parameter is worth; `frozen(facts)` are parameters without a gradient;
    `warns(facts, inputs)` says what a user should be warned of, when the model is compiled (`inputs` is None) and when
    the first sequence comes; `notes(facts)` are what the report says of the traces. A rule that `estimates_future` can
    be in a partition once: a state has one future. One that `needs_loss` reads the loss of each step or learns from it,
    and cannot do with its derivative alone. A choice among rules has `resolve(facts, trace_dtype, cosines)`, which
    gives the rule that a model is compiled with; `cosines(rule, sample)` measures one on a sample of data. A rule that
    projects the gradient of each call on `candidates` carries no trace. All functions of a rule are given
    `facts_for(facts)`: those of the step as it was written, or with linear maps in series as one (`in_series`).

    Rules are equal if they have the same name and equal options, so `options` must hold whatever the functions of a
    rule depend on. Arrays and random keys are compared by their numbers, functions as Python does. Options that fit
    into a line (numbers, texts, other rules) are shown.

    >>> from etrax import pp_prop
    >>> pp_prop(0.9) == pp_prop(0.9), pp_prop(0.9) == pp_prop(0.8)
    (True, False)
    """

    name: str
    transport: Callable[[Facts, frozenset[int] | None, DTypeLike | None], Transport[Any]]
    verdict: Callable[[Facts, int], Verdict]
    options: Mapping[Any, object] = field(default_factory=dict)
    frozen: Callable[[Facts], frozenset[int]] = lambda facts: frozenset()
    warns: Callable[[Facts, Sequence[jax.Array] | None], Sequence[str]] = lambda facts, inputs: ()
    estimates_future: bool = False
    needs_loss: bool = False
    notes: Callable[[Facts], Sequence[str]] = lambda facts: ()
    resolve: Callable[..., Rule] | None = None
    facts_for: Callable[[Facts], Facts] = lambda facts: facts.as_written
    candidates: Candidates | None = None

    @property
    def members(self) -> tuple[Rule, ...]:
        """The rules that this one is made of."""
        return tuple(v for v in self.options.values() if isinstance(v, Rule))

    def size(self, facts: Facts, trace_dtype: DTypeLike | None = None) -> int:
        """Bytes of the trace that the rule carries."""
        return self.transport(self.facts_for(facts), None, trace_dtype).nbytes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rule) or self.name != other.name:
            return False
        one, two = ([(k, _comparable(v)) for k, v in rule.options.items()] for rule in (self, other))
        return one == two

    def __hash__(self) -> int:
        return hash((self.name, *self.options))

    def __str__(self) -> str:
        """As it is written in Python, but for arrays and functions among the options, which are left out."""
        entries = {k: v for k, v in self.options.items() if isinstance(v, Rule)}
        by_path = ", ".join(f"{_key_text(k)}: {v}" for k, v in entries.items() if k is not None)
        shown = [f"{{{by_path}}}"] if entries else []
        shown += [f"default={entries[None]}"] if None in entries else []
        shown += [
            f"{k}={v!r}" for k, v in self.options.items()
            if isinstance(v, str | int | float | None) or (isinstance(v, tuple) and all(isinstance(r, Rule) for r in v))
        ]  # fmt: skip
        return visible(f"{self.name}({', '.join(shown)})")

    __repr__ = __str__


@memoised
def _least_windows(facts: Facts, rule: Rule) -> dict[str, int | None]:
    """Parameters, by name, that get no credit in windows of one step, and the least window in which they do."""
    params, frozen = facts.step.select(Role.PARAM), rule.frozen(facts)
    windows = {i: rule.verdict(facts, i).least_window for i in range(len(params)) if i not in frozen}
    return {format_path(params[i].path, "params"): least for i, least in windows.items() if least != 1}


def without_credit(facts: Facts, rule: Rule, window: int) -> str:
    """A warning if no credit reaches some parameters in windows of so many steps; else nothing."""
    uncredited = {name: least for name, least in _least_windows(facts, rule).items() if least is None or least > window}
    if not uncredited:
        return ""
    names = ", ".join(list(uncredited)[:5]) + (f" and {len(uncredited) - 5} more" if len(uncredited) > 5 else "")
    many, one = (
        "s" * (len(uncredited) > 1),
        f"{'windows' if window > 1 else 'a window'} of {window} step{'s' * (window > 1)}",
    )
    needed = [least for least in uncredited.values() if least is not None]
    advice = f" Take windows of at least {max(needed)} steps." if needed else ""
    advice += " Under this rule no window is long enough for some of them." if len(needed) < len(uncredited) else ""
    return (
        f"`{rule.name}`: no credit reaches the parameter{many} {names} in {one}, so that the gradient is zero: an "
        f"output shows what {'they do' if many else 'it does'} only later.{advice} The report says more."
    )


def _comparable(value: object) -> object:
    """Something that is equal for equal values: arrays and random keys give their numbers."""
    if isinstance(value, jax.Array) and not is_concrete(value):
        return id(value)  # has no numbers yet
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        if isinstance(value, jax.Array) and is_extended(value):
            value = jax.random.key_data(value)
        numbers = np.asarray(value)
        return str(numbers.dtype), numbers.shape, numbers.tobytes()
    return type(value), value  # True is not the number 1


def _key_text(key: Hashable) -> str:
    """A path of a partition as it may be written in Python: one name, or a tuple of keys."""
    if isinstance(key, tuple) and len(key) == 1 and isinstance(key[0], str):
        key = key[0]
    text = repr(key) if isinstance(key, tuple | str) else name_of(key)
    return text.replace("'", '"') if '"' not in text else text


def name_of(option: Hashable) -> str:
    """The name of a partition's entry: a path, or a function of paths."""
    if isinstance(option, tuple):
        return ".".join(map(str, option))
    return option if isinstance(option, str) else getattr(option, "__name__", "function")
