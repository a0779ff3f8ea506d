"""What a run has covered: cells of weight op × rule × structure."""

from __future__ import annotations

from collections.abc import Iterator

from .cases import RULES, Case
from .forms import NEST_FORMS, OP_FORMS
from .spec import Model, Statement

# Forms of nests that have a body.
STRUCTURES = ("flat", *(name for name, text in NEST_FORMS.items() if "{f0}" in text))
OPS = tuple(OP_FORMS)
Cell = tuple[str, str, str]
CELLS = len(OPS) * len(RULES) * len(STRUCTURES)


def placed(body: tuple[Statement, ...], inside: str = "flat") -> Iterator[tuple[str, str]]:
    """Every weight op with the innermost structure around it; a scan that slices weights is an op of its own body."""
    for one in body:
        if one.form in OP_FORMS:
            yield one.form, inside
        for block in one.blocks:
            yield from placed(block.body, one.form)


def cells(model: Model, cases: list[Case]) -> set[Cell]:
    return {(op, case.rule, structure) for op, structure in placed(model.body) for case in cases}
