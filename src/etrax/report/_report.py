"""The report: groups, weight ops, parameters with verdict and reason, and the memory of each rule."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path as FilePath
from typing import overload

from jax.typing import DTypeLike

from .._arguments import format_bytes, short
from .._errors import ArgumentError, ArgumentTypeError, did_you_mean
from ..compiler.analysis import Facts
from ..compiler.ir import Path, Role, explained, format_path, is_at
from ..rules import Rule, Verdict, compared_rules
from ._escape import monospace
from ._lines import GroupLine, OpLine, ParameterLine, find_reads, group_line, op_line, output_names, parameter_line
from ._text import kinds_of, kinds_text, rule_name, size_text, text_of


class _OnDemand(Mapping[str, int]):
    """Numbers that are computed when they are asked for: sizing a rule takes an analysis of its own."""

    def __init__(self, functions: Mapping[str, Callable[[], int]]):
        self._functions = {name: cache(function) for name, function in functions.items()}

    def __getitem__(self, name: str) -> int:
        return self._functions[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __repr__(self) -> str:
        return repr(dict(self))


# An error names at most so many parameters.
_LISTED = 20


class Verdicts(dict[Path, Verdict]):
    """Verdicts by path: a tuple of keys, or a name as the report writes it.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda p, h, x: (0.9 * h + x @ p["read"]["in"],) * 2
    >>> params = {"read": {"in": jnp.ones((3, 4))}}
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=params, hidden=jnp.zeros(4))
    >>> learner.report.verdicts["read.in"] == learner.report.verdicts["read", "in"]
    True
    """

    def __missing__(self, asked: object) -> Verdict:
        for path, verdict in self.items():
            if is_at(path, asked):
                return verdict
        names = [format_path(path, "params") for path in self]
        near = did_you_mean(asked, [name[1:-1] for name in names]) if isinstance(asked, str) else ""
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        text = f"there is no parameter {short(asked)}; there are {', '.join(names[:_LISTED])}{more}.{near}"
        raise explained(ArgumentError, KeyError(asked), text)


def _verdict_entry(verdict: Verdict) -> dict[str, object]:
    """A verdict for JSON: `reason` in few words, `full` with all that is not carried."""
    entry = {name: value for name, value in verdict._asdict().items() if name != "wordings"}
    return {**entry, "kind": str(verdict.kind), "full": verdict.full}


@dataclass(frozen=True)
class Report:
    """What you get under a rule. `print` it, read `verdicts[path]`, or write it as a page with `to_html`.

    >>> import etrax, jax.numpy as jnp
    >>> def step(params, h, x):
    ...     h = 0.9 * h + x @ params["w"]
    ...     return h, h
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params={"w": jnp.ones((3, 4))}, hidden=jnp.zeros(4))
    >>> learner.report.to_dict()["parameters"][0]["verdict"]["kind"], str(learner.report.verdicts["w"].kind)
    ('exact', 'exact')
    """

    rule: str
    groups: tuple[GroupLine, ...]
    parameters: tuple[ParameterLine, ...]
    memory: Mapping[str, int]
    notes: tuple[str, ...] = ()
    ops: tuple[OpLine, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def verdicts(self) -> Mapping[Path, Verdict]:
        """Verdict by parameter path."""
        return Verdicts({p.path: p.verdict for p in self.parameters})

    @classmethod
    def of(
        cls, facts: Facts, rule: Rule, own_bytes: int, trace_dtype: DTypeLike | None = None, more: Sequence[str] = ()
    ) -> Report:
        sizes = {r.name: partial(r.size, facts, trace_dtype) for r in compared_rules()} | {rule.name: lambda: own_bytes}
        reads = find_reads(facts)
        count = len(facts.step.select(Role.PARAM))
        return cls(
            rule=str(rule),
            groups=tuple(group_line(facts, reads, g.index) for g in facts.groups),
            parameters=tuple(parameter_line(facts, i, rule.verdict(facts, i)) for i in range(count)),
            memory=_OnDemand(sizes),
            notes=(
                *(f"{c} casts a complex number to a real one: its imaginary part is dropped" for c in facts.casts),
                *rule.notes(facts),
                *more,
            ),
            ops=tuple(op_line(facts, reads, j) for j in range(len(facts.sites))),
            outputs=output_names(facts),
        )

    def to_dict(self) -> dict[str, object]:
        """Plain numbers and strings, ready for JSON."""
        return {
            "rule": self.rule,
            "groups": [vars(g) for g in self.groups],
            "parameters": [
                {**vars(p), "path": list(p.path), "verdict": _verdict_entry(p.verdict)} for p in self.parameters
            ],
            "memory": dict(self.memory),
            "notes": list(self.notes),
            "ops": [vars(op) for op in self.ops],
            "outputs": list(self.outputs),
        }

    @overload
    def to_html(self) -> str: ...

    @overload
    def to_html(self, file: str | os.PathLike[str]) -> FilePath: ...

    def to_html(self, file: str | os.PathLike[str] | None = None) -> str | FilePath:
        """Write the report as one page that needs nothing else; returns the path. Without a file, returns the page.

        The page holds the graph, the verdict and reason of every parameter, the groups and the memory of the rules. It
        works offline, in light and dark, and the same report always gives the same bytes.
        """
        from ._page import page

        if file is not None and not (isinstance(file, str | os.PathLike) and str(file)):
            raise ArgumentTypeError(f"`to_html` takes the name of a file, got a {type(file).__name__}.")
        text = page(self)
        if file is None:
            return text
        path = FilePath(file)
        try:
            path.write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise ArgumentError(f"`to_html` cannot write {str(path)!r}: {error.strerror}.") from error
        return path

    def summary(self) -> str:
        """One line: the rule, how many parameters are of which verdict, and the size of the trace."""
        size = format_bytes(self.memory[rule_name(self)])
        return f"{self.rule}: {size_text(self)}; {kinds_text(kinds_of(self))}; trace of {size}"

    def full(self) -> str:
        """The report in words with every group and parameter said on its own.

        >>> import etrax, jax.numpy as jnp
        >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
        >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
        >>> "EXACT" in learner.report.full()
        True
        """
        return text_of(self, full=True)

    def __str__(self) -> str:
        return text_of(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return monospace(self)
