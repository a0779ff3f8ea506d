"""Make a failing model short: try smaller ones until none of them fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from .cases import Case
from .claims import Checker, Failure
from .spec import Block, Leaf, Model, Statement, build, names_read, runs, size

Body = tuple[Statement, ...]
Fails = Callable[[Model, Case], bool]


def shrink(model: Model, case: Case, fails: Fails, seconds: float = 60.0) -> tuple[Model, Case]:
    """The smallest model and case found for which `fails` holds; it holds for what is given."""
    end = time.monotonic() + seconds
    # What fails may be code whose result nothing reads; only if it is not, such code is removed along the way.
    tidy = cleaned if fails(cleaned(model), case) else without_unread_leaves
    model = tidy(model)
    found = True
    while found and time.monotonic() < end:
        found = False
        for smaller in simpler_cases(case):
            if fails(model, smaller):
                case, found = smaller, True
                break
        for candidate in candidates(model):
            candidate = tidy(candidate)
            if time.monotonic() > end:
                break
            if size(candidate) < size(model) and fails(candidate, case):
                model, found = candidate, True
                break
    return model, case


def same_failure(claim: str, run: Any = None) -> Fails:
    """Whether a model fails with the same claim."""

    def fails(model: Model, case: Case) -> bool:
        try:
            if not model.params or not runs(build(model)):
                return False
            found = Checker(model, run() if run else None).check(case)
        except Exception:  # what is no model for BPTT either is no smaller failure
            return False
        return isinstance(found, Failure) and found.claim == claim

    return fails


def simpler_cases(case: Case) -> Iterator[Case]:
    simple = Case(case.rule, 1)
    for field in ("extra", "mask", "reduction", "window"):
        if getattr(case, field) != getattr(simple, field):
            yield case._replace(**{field: getattr(simple, field)})


def candidates(model: Model) -> Iterator[Model]:
    """Models that are a little simpler, the boldest first; many are no models at all."""
    for field, value in (("wrap", ""), ("batch", "none"), ("samples", 1), ("steps", 2), ("steps", 3)):
        if getattr(model, field) != value:
            yield model._replace(**{field: value})
    for i in range(len(model.output) if len(model.output) > 1 else 0):
        yield model._replace(output=(*model.output[:i], *model.output[i + 1 :]))
    for name in model.hidden if len(model.hidden) > 1 else ():
        yield without_state(model, name)
    for body, renamed in shorter(model.body):
        yield rename(model._replace(body=body), renamed)
    for name in model.params:
        yield with_constant(model, name)
    for name in model.hidden:
        yield model._replace(new={**model.new, name: f"s.{name}"})
    for i, one in enumerate(model.body):
        for leaf in (
            *(f"s.{h}" for h in model.hidden),
            *(f"p.{w}" for w in model.params),
            *(["x0"] if model.inputs else []),
        ):
            if leaf not in one.args:
                yield rename(model._replace(body=model.body[:i] + model.body[i + 1 :]), {one.out: leaf})
    yield from smaller_sizes(model)
    for group in ("params", "hidden"):
        for name, leaf in getattr(model, group).items():
            if leaf.dtype != "float64":
                yield model._replace(**{group: {**getattr(model, group), name: Leaf(leaf.shape)}})


def shorter(body: Body) -> Iterator[tuple[Body, dict[str, str]]]:
    """The body with one statement less, or with one block opened; and what is to be renamed after it."""
    for i in reversed(range(len(body))):
        one, before, after = body[i], body[:i], body[i + 1 :]
        for arg in dict.fromkeys(one.args):
            yield before + after, {one.out: arg}
        for block in one.blocks:
            opened = dict(zip(block.names, one.args[-len(block.names) :], strict=False))
            inner = tuple(rename_statement(s, opened) for s in block.body)
            result = block.result[0]
            yield before + inner + after, {one.out: opened.get(result, result)}
        for j, block in enumerate(one.blocks):
            for inner, renamed in shorter(block.body):
                kept = Block(block.names, inner, tuple(renamed.get(r, r) for r in block.result))
                kept = rename_block(kept, renamed)
                yield (*before, one._replace(blocks=(*one.blocks[:j], kept, *one.blocks[j + 1 :])), *after), {}


def rename_statement(one: Statement, renamed: dict[str, str]) -> Statement:
    args = tuple(renamed.get(a, a) for a in one.args)
    return one._replace(args=args, blocks=tuple(rename_block(b, renamed) for b in one.blocks))


def rename_block(block: Block, renamed: dict[str, str]) -> Block:
    body = tuple(rename_statement(s, renamed) for s in block.body)
    return Block(block.names, body, tuple(renamed.get(r, r) for r in block.result))


def rename(model: Model, renamed: dict[str, str]) -> Model:
    body = tuple(rename_statement(s, renamed) for s in model.body)
    new = {h: renamed.get(v, v) for h, v in model.new.items()}
    return model._replace(body=body, new=new, output=tuple(renamed.get(v, v) for v in model.output))


def without_state(model: Model, name: str) -> Model:
    """The state becomes a constant."""
    hidden = {k: v for k, v in model.hidden.items() if k != name}
    new = {k: v for k, v in model.new.items() if k != name}
    consts = {**model.consts, name: model.hidden[name]}
    return rename(model._replace(hidden=hidden, new=new, consts=consts), {f"s.{name}": f"c.{name}"})


def with_constant(model: Model, name: str) -> Model:
    """The parameter becomes a constant."""
    params = {k: v for k, v in model.params.items() if k != name}
    consts = {**model.consts, name: model.params[name]}
    return rename(model._replace(params=params, consts=consts), {f"p.{name}": f"c.{name}"})


def smaller_sizes(model: Model) -> Iterator[Model]:
    """One size replaced by a smaller one wherever it stands."""
    groups = ("params", "hidden", "consts")
    leaves = [*model.inputs, *(leaf for k in groups for leaf in getattr(model, k).values())]
    for big in sorted({n for leaf in leaves for n in leaf.shape}, reverse=True):
        for small in range(1, big):

            def swap(value: Any, big: int = big, small: int = small) -> Any:
                if isinstance(value, tuple | list):
                    return type(value)(swap(v) for v in value)
                return small if value == big and not isinstance(value, bool) else value

            changed = {
                k: {n: leaf._replace(shape=swap(leaf.shape)) for n, leaf in getattr(model, k).items()} for k in groups
            }
            inputs = tuple(leaf._replace(shape=swap(leaf.shape)) for leaf in model.inputs)
            body = tuple(_swap_attrs(s, swap) for s in model.body)
            yield model._replace(inputs=inputs, body=body, **changed)


def _swap_attrs(one: Statement, swap: Callable[[Any], Any]) -> Statement:
    blocks = tuple(b._replace(body=tuple(_swap_attrs(s, swap) for s in b.body)) for b in one.blocks)
    return one._replace(attrs=tuple((k, swap(v)) for k, v in one.attrs), blocks=blocks)


def cleaned(model: Model) -> Model:
    """Without statements and leaves that nothing reads."""
    return without_unread_leaves(model._replace(body=_live(model.body, {*model.output, *model.new.values()})))


def without_unread_leaves(model: Model) -> Model:
    read = names_read(model.body) | {*model.output, *model.new.values()}

    def keep(prefix: str, leaves: dict[str, Leaf]) -> dict[str, Leaf]:
        return {k: v for k, v in leaves.items() if f"{prefix}.{k}" in read}

    inputs = model.inputs
    while len(inputs) > 1 and f"x{len(inputs) - 1}" not in read:
        inputs = inputs[:-1]
    return model._replace(params=keep("p", model.params), consts=keep("c", model.consts), inputs=inputs)


def _live(body: Body, wanted: set[str]) -> Body:
    kept: list[Statement] = []
    wanted = set(wanted)
    for one in reversed(body):
        if one.out in wanted:
            blocks = tuple(b._replace(body=_live(b.body, set(b.result))) for b in one.blocks)
            one = one._replace(blocks=blocks)
            kept.append(one)
            wanted |= names_read((one,))
    return tuple(reversed(kept))
