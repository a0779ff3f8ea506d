"""Examples in docstrings as code, formulas as MathML: read by griffe while the site is built."""

import importlib.util
from pathlib import Path

import griffe

_spec = importlib.util.spec_from_file_location("hooks", Path(__file__).with_name("hooks.py"))
_hooks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_hooks)


class Examples(griffe.Extension):
    """`>>>` lines become fenced code, formulas are drawn."""

    def on_object(self, *, obj, **_):
        if obj.docstring is not None:
            obj.docstring.value = _hooks.with_formulas(_hooks.with_code(obj.docstring.value))
        if obj.is_class:  # what is private is of no use to a reader
            obj.bases = [base for base in obj.bases if not str(base).split(".")[-1].startswith("_")]
