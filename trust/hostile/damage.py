"""Damage that fits any file: bytes, and values of JSON, changed at random."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

Rng = np.random.Generator
EVIL = "\x1b[2J\u202e\x07"


def _flip(rng: Rng, data: bytearray) -> bytearray:
    for _ in range(int(rng.integers(1, 9))):
        data[int(rng.integers(len(data)))] ^= int(rng.integers(1, 256))
    return data


def _cut(rng: Rng, data: bytearray) -> bytearray:
    return data[: int(rng.integers(len(data)))]


def _behead(rng: Rng, data: bytearray) -> bytearray:
    return data[int(rng.integers(len(data))) :]


def _fill(rng: Rng, data: bytearray) -> bytearray:
    start, length = int(rng.integers(len(data))), int(rng.integers(1, 64))
    data[start : start + length] = bytes([int(rng.choice([0, 0xFF, 0x7F, 0x80]))]) * len(data[start : start + length])
    return data


def _repeat(rng: Rng, data: bytearray) -> bytearray:
    start, length = int(rng.integers(len(data))), int(rng.integers(1, 512))
    return data[:start] + data[start : start + length] * 2 + data[start + length :]


def _swap(rng: Rng, data: bytearray) -> bytearray:
    a, b = sorted(int(n) for n in rng.integers(len(data), size=2))
    return data[:a] + data[b:] + data[a:b]


def _append(rng: Rng, data: bytearray) -> bytearray:
    return data + bytearray(rng.bytes(int(rng.integers(1, 4096))))


def _random(rng: Rng, data: bytearray) -> bytearray:
    return bytearray(rng.bytes(int(rng.integers(0, 4096))))


BYTES: dict[str, Callable[[Rng, bytearray], bytearray]] = {
    "flipped bytes": _flip, "cut short": _cut, "without its beginning": _behead, "a run of one byte": _fill,
    "a part twice": _repeat, "parts swapped": _swap, "bytes appended": _append, "random bytes": _random,
}  # fmt: skip


def damaged(rng: Rng, data: bytes) -> tuple[str, bytes]:
    """What was done, and the bytes."""
    name = str(rng.choice(list(BYTES), p=[0.4, *[0.6 / (len(BYTES) - 1)] * (len(BYTES) - 1)]))
    return name, bytes(BYTES[name](rng, bytearray(data or b"\0")))


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def value(rng: Rng) -> Any:
    """Something that does not belong where it is put."""
    kinds: list[Callable[[], Any]] = [
        lambda: None, lambda: True, lambda: -1, lambda: 0, lambda: 1e308, lambda: float("nan"), lambda: float("-inf"),
        lambda: 2**63, lambda: 10**30, lambda: 10**400, lambda: -(2**70), lambda: "", lambda: EVIL,
        lambda: "../../etc/passwd", lambda: "x" * 10_000, list, dict, lambda: nested(150), lambda: [EVIL] * 3,
        lambda: {EVIL: EVIL}, lambda: int(rng.integers(-5, 50)), lambda: float(rng.standard_normal()),
        lambda: [1, 2, 3], lambda: "array",
    ]  # fmt: skip
    return kinds[int(rng.integers(len(kinds)))]()


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a value of JSON."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path] + [p for key, v in inner for p in places(v, (*path, key))]


def changed(rng: Rng, tree: Any) -> Any:
    """A copy with one to three places replaced, removed or added to."""
    found = json.loads(json.dumps(tree))
    for _ in range(int(rng.integers(1, 4))):
        options = places(found)
        path = options[int(rng.integers(len(options)))]
        if not path:
            if rng.random() < 0.1:
                return value(rng)
            continue
        holder = found
        for key in path[:-1]:
            holder = holder[key]
        act = rng.random()
        if act < 0.2:
            del holder[path[-1]]
        elif act < 0.3 and isinstance(holder, dict):
            holder[str(value(rng))[:40]] = value(rng)
        else:
            holder[path[-1]] = value(rng)
    return found
