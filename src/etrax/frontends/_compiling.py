"""One compile at a time on a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from .._errors import NotSupportedError

_THREAD = threading.local()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Refuse a compile inside a compile on the same thread; a failed one leaves nothing behind."""
    if getattr(_THREAD, "busy", False):
        raise NotSupportedError(
            "a model is being compiled on this thread, and its step compiles another one. Compile the inner model "
            "before, and let the step use what that gives."
        )
    _THREAD.busy = True
    try:
        yield
    finally:
        _THREAD.busy = False
