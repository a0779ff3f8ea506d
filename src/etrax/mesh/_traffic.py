"""What devices send to each other, counted from a compiled program."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

_COLLECTIVE = re.compile(r"= (.*?) (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)(?:-start)?\(")
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_LOOP = re.compile(r" while\(.*body=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALL = re.compile(r"(?:to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")


class Message(NamedTuple):
    """One collective: its kind, the shapes of the arrays that it gives, and how many bytes these are."""

    kind: str
    shapes: tuple[tuple[int, ...], ...]
    nbytes: int


class Traffic(NamedTuple):
    """Bytes that a device receives by kind of collective: at each step, for each window, and for each call."""

    step: Counter[str]
    window: Counter[str]
    call: Counter[str]
    messages: tuple[Message, ...]


def messages(line: str) -> Iterator[Message]:
    """The collective of a line of a compiled program, if it is one."""
    for arrays, kind in _COLLECTIVE.findall(line):
        shapes, nbytes = [], 0
        for name, bits, shape in _ARRAY.findall(arrays):
            sizes = tuple(int(n) for n in shape.split(",") if n)
            count = 1
            for n in sizes:
                count *= n
            shapes.append(sizes)
            nbytes += count * (1 if name == "pred" else int(bits)) // (1 if name == "pred" else 8)
        yield Message(kind, tuple(shapes), nbytes)


def read_traffic(text: str, window: int) -> Traffic:
    """The traffic of a program that loops over windows of so many steps, and within these over their steps."""
    computations: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            lines = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        else:
            lines.append(line)
    totals: list[Counter[str]] = [Counter(), Counter(), Counter()]
    seen: list[Message] = []

    def count(name: str, depth: int, times: float) -> None:
        for line in computations.get(name, ()):
            for message in messages(line):
                seen.append(message)
                totals[min(depth, 2)][message.kind] += round(times * message.nbytes)
            loop = _LOOP.search(line)
            if loop is not None:
                trips = _TRIPS.search(line)
                n = int(trips[1]) if trips is not None else 1
                # A window counts for itself; of a loop within it, n iterations are spread over its steps.
                count(loop[1], depth + 1, 1.0 if depth == 0 else times * n / window if depth == 1 else times * n)
            else:
                for callee in _CALL.findall(line):
                    count(callee, depth, times)

    count(entry, 0, 1.0)
    call, per_window, step = totals
    return Traffic(step, per_window, call, tuple(seen))
