"""Whether the compiler under JAX gives the numbers of the program that it is given."""

from __future__ import annotations

from .._sums import sums_go_wrong, what_is_wrong


def compiler_fault() -> str | None:
    """What is known to be wrong with the compiler of this process, and the remedy; None if nothing is found.

    >>> import etrax
    >>> fault = etrax.testing.compiler_fault()
    >>> fault is None or "XLA_FLAGS" in fault
    True
    """
    return what_is_wrong() if sums_go_wrong() else None
