"""What is said once for several parameters or groups: of equal reason, or of reasons that differ by numbers alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..compiler.ir import Path, format_path, short_path
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
        return [Block([p], p.verdict.full) for p in parameters]
    numbers = {p.path: i for i, p in enumerate(report.parameters)}
    reasons = {p.path: _without_op_names(report, numbers[p.path], p) for p in parameters}
    blocks = _by(parameters, lambda p: (p.verdict.kind, reasons[p.path], p.reaches))
    if len(blocks) > MOST:
        blocks = _by(parameters, lambda p: (p.verdict.kind, _in_general(reasons[p.path])))
    names = shortest_names([p.path for p in report.parameters])
    return [
        _block(report, [numbers[p.path] for p in block], [reasons[p.path] for p in block], names) for block in blocks
    ]


# What a brief reason leaves out: that a trace is carried is what its verdict says.
_CARRIED = re.compile(r"a trace is carried from .*? to .*?; not carried: ")
_THROUGH = re.compile(
    rf"(?:state '[^']*' acts on states|its output passes) through the weight ops? of "
    rf"(?P<ops>{_OP.pattern}(?: \(and \d+ more like it\))?(?:, {_OP.pattern}(?: \(and \d+ more like it\))?)*)"
    r"(?: before it reaches a state)?"
)
_PLACE = re.compile(r"` at (\S+)")
TWO_LINES = 2 * 100


def brief(reason: str, names: Mapping[str, str] | None = None) -> str:
    """A reason in two lines: the parameters that a lost path goes through by the shortest of their names.

    >>> brief("a trace is carried from `mul` to 'v'; not carried: state 'v' acts on states through the weight op of "
    ...       "'e2e.comm.weight' (`dot_general` at net.py:9 (update))", {"e2e.comm.weight": "e2e"})
    'not carried: through e2e (net.py:9)'
    """
    reason = _CARRIED.sub("not carried: ", reason)
    through: dict[str, None] = {}
    places: dict[str, None] = {}

    def gather(clause: re.Match[str]) -> str:
        for op in _OP.findall(clause["ops"]):
            name = op[1 : op.index("'", 1)]
            through[name if names is None else names.get(name, name)] = None
            places.update(dict.fromkeys(_PLACE.findall(op)))
        more = sum(int(n) for n in re.findall(r"\(and (\d+) more like it\)", clause["ops"]))
        through.update({f"{more} more": None} if more else {})
        return "\0"  # where the first of them stood

    text = _THROUGH.sub(gather, reason)
    where = f" ({', '.join(list(places)[:3])}{', …' if len(places) > 3 else ''})" if places else ""
    shown = list(through)[:MOST] + ([f"{len(through) - MOST} more"] if len(through) > MOST else [])
    text = text.replace("\0", f"through {', '.join(shown)}{where}", 1)
    text = re.sub("(; )?\0", "", text)
    if len(text) <= TWO_LINES:
        return text
    cut = text[: TWO_LINES - 20]
    end = max(cut.rfind("; "), cut.rfind(", "), cut.rfind(" ") if ";" not in cut else 0)
    return f"{cut[: end if end > 0 else len(cut)]} … (full() has the rest)"


def shortest_names(paths: Sequence[Path]) -> dict[str, str]:
    """By the name of a parameter, the shortest beginning of it that no other parameter has.

    A bias takes no name from the weight beside it: the name of their layer means the weight.

    >>> shortest_names([("e2e", "comm", "weight"), ("e2e", "comm", "bias"), ("out", "w"), ("out", "u")])
    {'e2e.comm.weight': 'e2e', 'e2e.comm.bias': 'e2e.comm.bias', 'out.w': 'out.w', 'out.u': 'out.u'}
    """
    called = [short_path(path) for path in paths]
    biases = {path for path in called if path[-1:] == ("bias",)}
    shared = Counter(path[:n] for path in called if path not in biases for n in range(1, len(path)))
    shortest = {}
    for path in called:
        alone = (n for n in range(1, len(path)) if shared[path[:n]] == 1 and path not in biases)
        name = format_path(path, "params")[1:-1]
        shortest[name] = format_path(path[: next(alone, len(path))], "params")[1:-1]
    return shortest


def _block(report: Report, numbers: Sequence[int], reasons: Sequence[str], names: Mapping[str, str]) -> Block:
    parameters = [report.parameters[i] for i in numbers]
    first = brief(shortened(parameters[0].verdict.full), names)
    if len(parameters) == 1:
        return Block(parameters, first)
    if len(set(reasons)) > 1:
        return Block(parameters, f"the first of them: {first}")
    sources = [op.source.partition(" (")[0] for op in report.ops if set(op.parameters) & set(numbers)]
    lines = [line for line in dict.fromkeys(sources) if line]
    text = brief(shortened(reasons[0]), names)
    if "its op" not in text or not lines:
        return Block(parameters, text)
    where = f" ({', '.join(lines[:3])}{', …' if len(lines) > 3 else ''})"
    if text.endswith(")"):  # a place of something else
        return Block(parameters, re.sub("its ops?", lambda op: op[0] + where, text, count=1))
    return Block(parameters, text + where)


def _without_op_names(report: Report, number: int, p: ParameterLine) -> str:
    """The reason with "its op" for the ops of the parameter itself, so that equal reasons read alike."""
    reason = p.verdict.full
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
    """Sentences, each once; many that differ by numbers alone are said once."""
    return [text for alike in _by(list(dict.fromkeys(texts)), _folded) for text in _few(alike)]


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
