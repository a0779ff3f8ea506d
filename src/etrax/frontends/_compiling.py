"""One compile at a time on a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from .._errors import NotSupportedError

_THREAD = threading.local()


@contextlib.contextmanager
def compiling(name: str = "compile") -> Iterator[None]:
    """Refuse a compile inside a compile on the same thread; a failed one leaves nothing behind.

    `name` says what is being compiled, for the error of who comes second.
    """
    if (outer := getattr(_THREAD, "name", None)) is not None:
        raise NotSupportedError(
            f"`{name}` was called while `{outer}` is compiling a model on this thread. Compile the inner model before, "
            "and let the step use what that gives."
        )
    _THREAD.name = name
    try:
        yield
    finally:
        _THREAD.name = None
