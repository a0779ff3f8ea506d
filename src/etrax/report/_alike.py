"""What is said once for several parameters or groups: of equal reason, or of reasons that differ by numbers alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ._lines import GroupLine, ParameterLine

if TYPE_CHECKING:
    from ._report import Report

# So many reasons, groups or names are said one by one; more are folded where they differ by numbers alone.
MOST = 12
# So many clauses of one reason that differ by numbers alone are said one by one.
FEW = 3
# An op as reasons name it, 'w' (`dot_general` at model.py:3 (step)), and several of them.
_OP = re.compile(r"'[^']*' \(`[^`]*`(?:[^()]|\([^()]*\))*\)")
_OPS = re.compile(f"{_OP.pattern}(?:, {_OP.pattern})+")
_T = TypeVar("_T")


class Block(NamedTuple):
    """Parameters of one verdict, and the reason that holds for all of them."""

    parameters: list[ParameterLine]
    reason: str


def blocks_of(report: Report, parameters: Sequence[ParameterLine], full: bool) -> list[Block]:
    """The parameters by reason, in their order; in full, each alone."""
    if full:
        return [Block([p], p.verdict.reason) for p in parameters]
    numbers = {p.path: i for i, p in enumerate(report.parameters)}
    reasons = {p.path: _without_op_names(report, numbers[p.path], p) for p in parameters}
    blocks = _by(parameters, lambda p: (p.verdict.kind, reasons[p.path], p.reaches))
    if len(blocks) > MOST:
        blocks = _by(parameters, lambda p: (p.verdict.kind, _in_general(reasons[p.path])))
    return [_block(report, [numbers[p.path] for p in block], [reasons[p.path] for p in block]) for block in blocks]


def _block(report: Report, numbers: Sequence[int], reasons: Sequence[str]) -> Block:
    parameters = [report.parameters[i] for i in numbers]
    if len(parameters) == 1:
        return Block(parameters, shortened(parameters[0].verdict.reason))
    if len(set(reasons)) > 1:
        return Block(parameters, f"the first of them: {shortened(parameters[0].verdict.reason)}")
    sources = [op.source.partition(" (")[0] for op in report.ops if set(op.parameters) & set(numbers)]
    lines = [line for line in dict.fromkeys(sources) if line]
    where = f" ({', '.join(lines[:3])}{', …' if len(lines) > 3 else ''})" if "its op" in reasons[0] and lines else ""
    return Block(parameters, shortened(reasons[0]) + where)


def _without_op_names(report: Report, number: int, p: ParameterLine) -> str:
    """The reason with "its op" for the ops of the parameter itself, so that equal reasons read alike."""
    reason = p.verdict.reason
    for op in report.ops:
        if number in op.parameters:
            label = f"`{op.primitive}`" + (f" at {op.source}" if op.source else "")
            reason = re.sub(r"(?<!\()" + re.escape(label), "its op", reason)  # in brackets it stands for a name
    return re.sub("its op(, its op)+", "its ops", reason)


def shortened(reason: str) -> str:
    """A reason in which clauses, and ops in a list, that differ by numbers alone are said once if they are many.

    >>> shortened("not carried: " + "; ".join(f"it passes through 'layers[{i}].w'" for i in range(9)))
    "not carried: it passes through 'layers[0].w' (and 8 more like it)"
    """
    return "; ".join(text for alike in _clauses(_listing(reason, _few)).values() for text in _few(alike))


def _in_general(reason: str) -> tuple[object, ...]:
    """What a reason says apart from numbers, and from how many clauses and ops there are of a kind."""
    return tuple(_clauses(_listing(reason, lambda alike: alike[:1]).replace("weight ops", "weight op")))


def _listing(reason: str, few: Callable[[list[str]], list[str]]) -> str:
    """Lists of ops, those that differ by numbers alone as `few` says them."""

    def shorter(ops: re.Match[str]) -> str:
        return ", ".join(text for alike in _by(_OP.findall(ops[0]), _folded) for text in few(alike))

    return _OPS.sub(shorter, reason)


def said_once(texts: Sequence[str]) -> list[str]:
    """Sentences; many that differ by numbers alone are said once."""
    return [text for alike in _by(list(texts), _folded) for text in _few(alike)]


def _few(alike: list[str]) -> list[str]:
    return alike if len(alike) <= FEW else [f"{alike[0]} (and {len(alike) - 1} more like it)"]


def _clauses(reason: str) -> dict[tuple[str, str], list[str]]:
    """The clauses of a reason by what they say apart from numbers; words before a colon begin a list of clauses."""
    clauses: dict[tuple[str, str], list[str]] = {}
    before = ""
    for token in reason.split("; "):
        head, _, clause = token.rpartition(": ")
        before = _folded(head) or before
        clauses.setdefault((before, _folded(clause)), []).append(token)
    return clauses


def groups_alike(groups: Sequence[GroupLine], full: bool) -> list[list[tuple[int, GroupLine]]]:
    """Groups with their numbers; many are joined where sizes and words are the same but for numbers."""
    numbered = list(enumerate(groups))
    if full or len(groups) <= MOST:
        return [[pair] for pair in numbered]

    def likeness(pair: tuple[int, GroupLine]) -> tuple[object, ...]:
        group = pair[1]
        return group.positions, group.num_state, group.structure, *map(_in_general, group.across)

    return _by(numbered, likeness)


def listed(names: Sequence[str], full: bool = False) -> str:
    """Names in a row; many are joined where they differ by numbers alone.

    >>> listed(["'w'", "'b'"]), listed([f"'layers[{i}].w' (4)" for i in range(50)])
    ("'w', 'b'", "'layers[0].w' (4) … 'layers[49].w' (4) (50)")
    """
    if full or len(names) <= MOST:
        return ", ".join(names)
    rows = _by(list(names), _folded)
    shown = [row[0] if len(row) == 1 else f"{row[0]} … {row[-1]} ({len(row)})" for row in rows]
    return ", ".join(shown[:MOST]) + (f" and {len(shown) - MOST} more" if len(shown) > MOST else "")


def _folded(text: str) -> str:
    """A text without its numbers."""
    return re.sub(r"\d+", "#", text)


def _by(items: Sequence[_T], key: Callable[[_T], object]) -> list[list[_T]]:
    """Items of equal key together, in the order in which the keys come up."""
    classes: dict[object, list[_T]] = {}
    for item in items:
        classes.setdefault(key(item), []).append(item)
    return list(classes.values())
