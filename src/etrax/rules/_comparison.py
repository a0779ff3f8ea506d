"""Rules that are set beside each other: in tables, in reports, and where a trace would be too large."""

from __future__ import annotations

from jax.typing import DTypeLike

from .._arguments import format_bytes
from .._errors import CompilationError
from ..compiler.analysis import Facts
from . import registered
from ._by_name import as_rule
from ._rule import Rule

# What tables compare unless they are asked for others: from no trace to the whole influence matrix.
COMPARED = ("tbptt", "pp_prop", "d_rtrl", "rtrl")


def compared_rules() -> tuple[Rule, ...]:
    """The rules of `COMPARED`, with their default options."""
    return tuple(map(as_rule, COMPARED))


def check_budget(facts: Facts, rule: Rule, budget: float, trace_dtype: DTypeLike | None) -> None:
    """Refuse a rule whose trace alone passes the budget, and name those whose trace does not."""
    needed = rule.size(facts, trace_dtype)
    if needed <= budget:
        return
    smaller = (
        registered.tbptt(),
        registered.pp_prop(),
        registered.d_rtrl(),
        registered.d_rtrl(fan_out=0),
        registered.ottt(0.9),
        registered.rflo(0.9),
    )
    sizes = {str(r): r.size(facts, trace_dtype) for r in smaller}
    fitting = [f"{name} ({format_bytes(n)})" for name, n in sorted(sizes.items(), key=lambda kv: -kv[1]) if n <= budget]
    raise CompilationError(
        f"the trace of {rule} takes {format_bytes(needed)}, more than `memory_budget` ({format_bytes(budget)}). These "
        f"would fit: {', '.join(fitting)}. Or use a smaller batch, or `trace_dtype=jnp.bfloat16` for half of it."
    )
