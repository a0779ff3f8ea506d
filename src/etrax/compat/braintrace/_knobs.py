"""Arguments that steer the peer's own rewrites: they are accepted, and a value that would matter there warns."""

from __future__ import annotations

import warnings

from ..._errors import NotSupportedError
from ._config import ControlFlowPolicy, as_order

# By argument: its default, which says nothing, and why another value changes nothing here.
KNOBS: dict[str, tuple[object, str]] = {
    "include_recurrent_mixing": (False, "groups and their transitions hold what recurrent weights do as they are"),
    "sparse_n": (None, "the order belongs to a rule: `SnAp(model, n)`, or `etrax.snap(n)`"),
    "snap_max_jacobian_elements": (2**24, "Etrax builds no such Jacobian; `etrax.auto(memory=...)` bounds memory"),
    "control_flow": (None, "branches and loops are differentiated as they are"),
    "descended_scan_eqn_ids": ((), "loops are read as they are"),
    "descended_hidden_paths": ((), "loops are read as they are"),
    "full_jacobian": (False, "Jacobians have the structure that the step has"),
    "projection_eps": (1e-12, "`etrax.uoro` has no such number"),
}


def warn_without_effect(where: str, **given: object) -> None:
    """Warn of every argument that has another value than its default, since it has no effect."""
    for name, value in given.items():
        default, why = KNOBS[name]
        if not (value is None or value == default or value == ControlFlowPolicy() or value in ((), [], set())):
            warnings.warn(f"`{name}={value!r}` of `{where}` has no effect in Etrax: {why}.", stacklevel=3)


def check_order(sparse_n: object, include_recurrent_mixing: bool) -> None:
    """Refuse an order of SnAp that no compiler could serve."""
    if sparse_n is not None and as_order(sparse_n) and not include_recurrent_mixing:
        raise NotSupportedError(
            f"`sparse_n={sparse_n!r}` says how far recurrent mixing is followed: pass `include_recurrent_mixing=True`."
        )
