"""How far two results are apart, and how far they may be."""

from __future__ import annotations

from typing import Any

import numpy as np

from .spec import Model, statements

EXACT, NARROW = 1e-9, 5e-2


def relative(got: Any, want: Any) -> float:
    g, w = np.asarray(got, complex).ravel(), np.asarray(want, complex).ravel()
    return float(np.linalg.norm(g - w)) / max(float(np.linalg.norm(w)), 1e-300)


def close(got: Any, want: Any, tolerance: float, floor: float = 1e-13) -> bool:
    g, w = np.asarray(got, complex).ravel(), np.asarray(want, complex).ravel()
    same = g == w  # infinities too: a narrow type holds no more
    apart, size = np.where(same, 0, g - np.where(same, 0, w)), np.where(np.isfinite(w), w, 0)
    return bool(np.linalg.norm(apart) <= tolerance * np.linalg.norm(size) + floor)


def without_shared_nan(got: Any, want: Any) -> tuple[np.ndarray, np.ndarray]:
    """Both arrays, with zero where both are NaN."""
    g, w = np.asarray(got, complex), np.asarray(want, complex)
    shared = np.isnan(g) & np.isnan(w)
    return np.where(shared, 0, g), np.where(shared, 0, w)


def tolerance_of(model: Model) -> float:
    """Narrow leaves and weights that are cast round BPTT's sums as well; data that are cast excuse nothing."""
    kinds = {leaf.dtype for leaf in (*model.params.values(), *model.hidden.values())}
    kinds |= {str(dict(s.attrs)["a"]) for s in statements(model.body) if s.form == "w_narrow"}
    if kinds & {"bfloat16", "float16"}:
        return NARROW
    return 1e-4 if "float32" in kinds else EXACT
