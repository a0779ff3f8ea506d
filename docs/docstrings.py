"""Docstrings for the site: examples as code, formulas as MathML, arguments as a table; read by griffe."""

import importlib.util
from pathlib import Path

import griffe

_spec = importlib.util.spec_from_file_location("hooks", Path(__file__).with_name("hooks.py"))
_hooks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_hooks)
FEW = 2  # arguments that a signature alone shows well enough


def _cell(value):
    """Code for a cell of a table; nothing where there is no value."""
    return (
        ""
        if value is None
        else f"`{value!s}`".replace("|", "&#124;")
        if "|" not in str(value)
        else ("<code>" + str(value).replace("<", "&lt;").replace("|", "&#124;") + "</code>")
    )


def arguments(function):
    """The arguments of a function with types and defaults, as a table in Markdown."""
    rows = [p for p in function.parameters if p.name not in ("self", "cls")]
    if len(rows) <= FEW:
        return ""
    kinds = {"variadic positional": "*", "variadic keyword": "**"}
    lines = ["| argument | type | default |", "|---|---|---|"]
    for p in rows:
        stars = kinds.get(getattr(p.kind, "value", ""), "")
        default = None if stars else p.default
        lines.append(f"| `{stars}{p.name}` | {_cell(p.annotation)} | {_cell(default)} |")
    return "\n\n" + "\n".join(lines)


class Examples(griffe.Extension):
    """`>>>` lines become fenced code, formulas are drawn, arguments stand in a table."""

    def on_object(self, *, obj, **_):
        if obj.docstring is not None:
            text = _hooks.with_formulas(_hooks.with_code(obj.docstring.value))
            if obj.is_function and not obj.name.startswith("_"):
                head, blank, rest = text.partition("\n\n")
                text = head + arguments(obj) + blank + rest
            obj.docstring.value = text
        if obj.is_class:  # what is private is of no use to a reader
            obj.bases = [base for base in obj.bases if not str(base).split(".")[-1].startswith("_")]
