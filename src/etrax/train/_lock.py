"""One run at a time in a directory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import jax

from ._stored import CheckpointError

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

NAME = "lock"


class Lock:
    """Held from `take` to `release`. The system lets go of it when the process ends, however that happens."""

    def __init__(self, directory: Path, argument: str = "checkpoint"):
        """`argument` is what the user calls the directory."""
        self.directory, self.argument, self.handle = directory, argument, -1

    def take(self) -> None:
        """Of the processes of one run, the first takes it for all."""
        if fcntl is None or jax.process_index():
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(self.directory / NAME, flags, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise CheckpointError(
                f"`{self.argument}` {str(self.directory)!r} is in use by another run. Wait until it has ended, or use "
                "another directory."
            ) from None
        self.handle = handle

    def release(self) -> None:
        """The file stays: a lock on a file that another process removed would guard nothing."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1
