"""The report: groups, parameters with verdict and reason, and the memory of each rule, in words."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .analysis import Facts, Kind, Verdict
from .ir import Path, Role, format_path

_ORDER = (Kind.UNUSED, Kind.TRUNCATED, Kind.APPROXIMATE, Kind.EXACT)
_MEANING = {
    Kind.EXACT: "equals BPTT for every window",
    Kind.APPROXIMATE: "a trace is carried, some paths are not",
    Kind.TRUNCATED: "no trace is carried, exact inside a window only",
    Kind.UNUSED: "has no gradient",
}


@dataclass(frozen=True)
class GroupLine:
    """A hidden group in words."""

    states: tuple[str, ...]
    positions: tuple[int, ...]
    num_state: int
    structure: str
    across: tuple[str, ...]


@dataclass(frozen=True)
class ParameterLine:
    """A parameter in words: what it meets, what it reaches."""

    path: Path
    shape: tuple[int, ...]
    ops: tuple[str, ...]
    reaches: tuple[str, ...]
    verdict: Verdict


@dataclass(frozen=True)
class Report:
    """What you get under a rule. `print` it, or read `verdicts[path]`, `groups`, `parameters`, `memory`."""

    rule: str
    groups: tuple[GroupLine, ...]
    parameters: tuple[ParameterLine, ...]
    memory: dict[str, int]
    notes: tuple[str, ...] = ()

    @property
    def verdicts(self) -> Mapping[Path, Verdict]:
        """Verdict by parameter path."""
        return {p.path: p.verdict for p in self.parameters}

    @classmethod
    def of(cls, facts: Facts, rule: Any, own_bytes: int) -> Report:
        from . import learn

        others = (learn.tbptt(), learn.pp_prop(), learn.d_rtrl(), learn.rtrl())
        memory = {r.name: r.trace_bytes(facts) for r in others} | {rule.name: own_bytes}
        groups = tuple(_group_line(facts, g.index) for g in facts.groups)
        params = tuple(
            _parameter_line(facts, i, rule.verdict(facts, i)) for i in range(len(facts.step.select(Role.PARAM)))
        )
        notes = tuple(f"{c} casts a complex number to a real one: its imaginary part is dropped" for c in facts.casts)
        return cls(str(rule), groups, params, memory, notes)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, ready for JSON."""
        return {
            "rule": self.rule,
            "groups": [vars(g) for g in self.groups],
            "parameters": [
                {**vars(p), "path": list(p.path), "verdict": {"kind": str(p.verdict.kind), "reason": p.verdict.reason}}
                for p in self.parameters
            ],
            "memory": dict(self.memory),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        parts = [_heading(self), _groups(self), _parameters(self), _notes(self), _memory(self), _advice()]
        return "\n\n".join("\n".join(part) for part in parts if part)

    __repr__ = __str__


def _group_line(facts: Facts, index: int) -> GroupLine:
    g = facts.groups[index]
    losses = tuple(loss.text for loss in facts.group_losses[index])
    return GroupLine(
        tuple(facts.state_name(i) for i in g.leaves), g.varshape, g.num_state, str(facts.tags[index]), losses
    )


def _parameter_line(facts: Facts, param: int, verdict: Verdict) -> ParameterLine:
    leaf, sites = facts.step.select(Role.PARAM)[param], facts.sites_of(param)
    ops = tuple(dict.fromkeys(facts.sites[j].rule.name for j in sites))
    reached = [f"group {r.group}" for r in facts.relations if r.site in sites and r.representable]
    if any(("y", j) in facts.live and not facts.remembers(("y", j)) for j in sites):
        reached.append("output")
    return ParameterLine(leaf.path, leaf.aval.shape, ops, tuple(dict.fromkeys(reached)), verdict)


def _heading(report: Report) -> list[str]:
    numbers = sum(int(np.prod(p.shape, dtype=np.int64)) for p in report.parameters)
    counts = [(k, sum(p.verdict.kind is k for p in report.parameters)) for k in reversed(_ORDER)]
    lines = [
        f"Etrax report for {report.rule}: {_plural(len(report.parameters), 'parameter')} ({numbers:,} numbers), "
        f"{_plural(len(report.groups), 'hidden group')}"
    ]
    lines += [f"  {n:>4} {k:<12} {_MEANING[k]}" for k, n in counts if n]
    return lines


def _plural(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")


def _groups(report: Report) -> list[str]:
    if not report.groups:
        return [
            "Hidden groups: none. The model has no state that remembers, so every gradient is that of its own step."
        ]
    lines = ["Hidden groups (states that act on each other position by position)"]
    for i, g in enumerate(report.groups):
        shape = "×".join(map(str, g.positions)) or "one"
        lines.append(
            f"  {i}  {', '.join(g.states)}: {shape} positions, {_plural(g.num_state, 'state')} each, "
            f"recurrence {g.structure}"
        )
        lines += [_wrapped(f"across positions: {text}", 5) for text in g.across]
    return lines


def _parameters(report: Report) -> list[str]:
    lines = ["Parameters"]
    for p in sorted(report.parameters, key=lambda p: _ORDER.index(p.verdict.kind)):
        shape = "×".join(map(str, p.shape)) or "scalar"
        what = f"{format_path(p.path, 'params')} ({shape}; {', '.join(p.ops) or 'in no operation'})"
        to = f" → {', '.join(p.reaches)}" if p.reaches else ""
        lines.append(f"  {p.verdict.kind.upper():<12} {what}{to}")
        lines.append(_wrapped(p.verdict.reason, 15))
    return lines


def _notes(report: Report) -> list[str]:
    return ["Notes", *(_wrapped(text, 2) for text in report.notes)] if report.notes else []


def _wrapped(text: str, indent: int) -> str:
    return textwrap.fill(text, 118, initial_indent=" " * indent, subsequent_indent=" " * indent, break_long_words=False)


def _bytes(n: int) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000 or unit == "TB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1000  # type: ignore[assignment]
    raise AssertionError


def _memory(report: Report) -> list[str]:
    own = report.rule.split("(")[0]
    cells = [
        f"{name} {_bytes(n)}" + (" (this rule)" if name == own else "")
        for name, n in sorted(report.memory.items(), key=lambda i: i[1])
    ]
    return ["Memory of the traces: " + "   ".join(cells)]


def _advice() -> list[str]:
    return [
        "To check it against BPTT on your own data:",
        "  etrax.testing.compare(learner, loss_fn, params, hidden, inputs, targets, window=1).check()",
    ]
