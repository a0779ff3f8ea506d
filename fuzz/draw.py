"""The state of a model that is being drawn: values in reach, statements so far, and the random choices."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .spec import Block, Leaf, Statement

Chooser = Sequence[tuple[float, Any]]


class Value(NamedTuple):
    """A name and its shape for one sample.

    Kinds: `d` data, `w` of parameters only, `i` index, `j` counter of a loop, `k` key, `z` complex.
    """

    name: str
    shape: tuple[int, ...]
    kind: str = "d"


class Draw:
    """Draws from one seed; Python's generator gives the same numbers on every version."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.params: dict[str, Leaf] = {}
        self.consts: dict[str, Leaf] = {}
        self.body: list[Statement] = []
        self.pool: list[Value] = []
        self.batch = "none"
        self.depth = 0
        self.count = 0
        self.closed = False  # whether the block at hand may read nothing from around it

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.rng.randrange(len(options))]

    def weighted(self, options: Chooser) -> Any:
        at = self.rng.random() * sum(w for w, _ in options)
        for w, option in options:
            at -= w
            if at <= 0:
                return option
        return options[-1][1]

    def dim(self) -> int:
        return self.pick((1, 2, 2, 3, 3, 4))

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def param(self, shape: tuple[int, ...], dtype: str = "float64") -> Value:
        if self.closed:
            return self.const(shape)
        name = self.name("w")
        self.params[name] = Leaf(shape, dtype)
        return Value(f"p.{name}", shape, "z" if "complex" in dtype else "w")

    def const(self, shape: tuple[int, ...], start: str = "drawn") -> Value:
        name = self.name("k")
        self.consts[name] = Leaf(shape, start=start)
        return Value(f"c.{name}", shape, "c")

    def emit(
        self, form: str, args: Sequence[Value], shape: tuple[int, ...], kind: str = "d", blocks: Sequence[Block] = (),
        **attrs: Any,
    ) -> Value:  # fmt: skip
        out = Value(self.name("v"), shape, kind)
        names = tuple(a.name for a in args)
        self.body.append(Statement(out.name, form, names, tuple(attrs.items()), tuple(blocks)))
        return out

    def data(self, ranks: Sequence[int] = (0, 1, 2, 3)) -> Value | None:
        """A data value in reach, later ones more likely."""
        found = [v for v in self.pool if v.kind == "d" and len(v.shape) in ranks]
        if not found:
            return None
        return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))]

    def like(self, shape: tuple[int, ...], but: Value | None = None) -> Value | None:
        """Another data value of a shape."""
        found = [v for v in self.pool if v.kind == "d" and v.shape == shape and v != but]
        return self.pick(found) if found else None

    def block(
        self, args: Sequence[Value], make: Callable[[list[Value]], Sequence[Value | str]], closed: bool = False
    ) -> Block:
        """A function of values like `args`, whose statements `make` draws from its own arguments."""
        outer = self.body, self.pool, self.closed
        own = [Value(self.name("a"), v.shape, v.kind) for v in args]
        self.body, self.pool = [], [*([] if closed else self.pool), *own]
        self.closed, self.depth = closed or self.closed, self.depth + 1
        result = [r if isinstance(r, str) else r.name for r in make(own)]
        block = Block(tuple(v.name for v in own), tuple(self.body), tuple(result))
        self.body, self.pool, self.closed = outer
        self.depth -= 1
        return block
