"""Docstrings for the site: examples as code, formulas as MathML, arguments as a table; read by griffe."""

import importlib.util
import re
from pathlib import Path

import griffe

_spec = importlib.util.spec_from_file_location("hooks", Path(__file__).with_name("hooks.py"))
_hooks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_hooks)
FEW = 2  # arguments that a signature alone shows well enough
WITH_ARGUMENTS = ("Trainer", "Stateful")  # classes that users make, with a table like that of a function


def _cell(value):
    """Code for a cell of a table; nothing where there is no value."""
    return (
        ""
        if value is None
        else f"`{value!s}`".replace("|", "&#124;")
        if "|" not in str(value)
        else ("<code>" + str(value).replace("<", "&lt;").replace("|", "&#124;") + "</code>")
    )


# A point of a list about one argument or several, "- `mesh`: the devices", with its lines.
POINT = re.compile(r"^- ((?:`\w+`(?:, )?)+): (.*(?:\n  .*)*)\n?", re.MULTILINE)


def meanings(text, names):
    """What a docstring says of each argument in a list, and the docstring without that list."""
    said = {}

    def take(point):
        about = re.findall(r"`(\w+)`", point[1])
        if not set(about) <= set(names):
            return point[0]
        said.update(dict.fromkeys(about, " ".join(point[2].split()).replace("|", "\\|")))
        return ""

    return said, re.sub(r"\n{3,}", "\n\n", POINT.sub(take, text))


def arguments(function, said):
    """The arguments of a function with types, defaults and what is said of each, as a table in Markdown."""
    rows = [p for p in function.parameters if p.name not in ("self", "cls")]
    if len(rows) <= FEW and not said:
        return ""
    kinds = {"variadic positional": "*", "variadic keyword": "**"}
    head = ["argument", *(["meaning"] if said else []), "type", "default"]  # what fits a narrow screen, first
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for p in rows:
        stars = kinds.get(getattr(p.kind, "value", ""), "")
        default = None if stars else p.default
        cells = [f"`{stars}{p.name}`", *([said.get(p.name, "")] if said else []), _cell(p.annotation), _cell(default)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n\n" + "\n".join(lines)


class Examples(griffe.Extension):
    """`>>>` lines become fenced code, formulas are drawn, arguments stand in a table."""

    def on_object(self, *, obj, **_):
        if obj.docstring is not None:
            text = _hooks.with_formulas(_hooks.with_code(obj.docstring.value))
            made_by_users = obj.is_class and obj.name in WITH_ARGUMENTS
            if (obj.is_function or made_by_users) and not obj.name.startswith("_"):
                said, text = meanings(text, [p.name for p in obj.parameters])
                head, blank, rest = text.partition("\n\n")
                text = head + arguments(obj, said) + blank + rest
            obj.docstring.value = text
        if obj.is_class:  # what is private is of no use to a reader
            obj.bases = [base for base in obj.bases if not str(base).split(".")[-1].startswith("_")]
