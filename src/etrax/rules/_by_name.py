"""A rule, or its name."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature

from .._errors import CompilationError, did_you_mean
from . import registered
from ._rule import Rule

# The rules that `etrax.compile` knows by name.
RULES: dict[str, Callable[..., Rule]] = {
    name: rule for name, rule in vars(registered).items() if not name.startswith("_")
}


def as_rule(rule: object) -> Rule:
    """The rule itself; for a name, the rule with its default options."""
    if isinstance(rule, Rule):
        return rule
    for name, function in RULES.items():
        if rule is function:
            raise CompilationError(f"`rule` is the function that makes a rule: call it, `etrax.{name}()`.")
    if not isinstance(rule, str):
        what = "an array" if hasattr(rule, "shape") else f"a {type(rule).__name__}"
        raise CompilationError(
            f"`rule` is {what}; pass a rule such as `etrax.d_rtrl()`, or its name, and example inputs after it: "
            '`etrax.compile(model, "d_rtrl", x, ...)`.'
        )
    if rule not in RULES:
        raise CompilationError(
            f"there is no rule {rule!r}; the rules are {', '.join(sorted(RULES))}.{did_you_mean(rule, RULES)}"
        )
    needed = [p.name for p in signature(RULES[rule]).parameters.values() if p.default is p.empty]
    if needed:
        shown = ", ".join(f"{n}=..." for n in needed)
        raise CompilationError(
            f"the rule {rule!r} has no default for {', '.join(needed)}: pass `etrax.{rule}({shown})`."
        )
    return RULES[rule]()
