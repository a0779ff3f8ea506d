"""Processes that tell what they do.

They are forked from one that has imported everything and started nothing: JAX starts its threads on first use, and only
the children use it.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from typing import Any

Say = Callable[..., None]


class Child:
    """A process that runs `work(say)`; what it says are the words of one line each, read by `listen`."""

    def __init__(self, work: Callable[[Say], None]):
        self.out, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.out)
            try:
                _run(work, lambda *words: os.write(write, (json.dumps(words) + "\n").encode()))
            finally:
                os._exit(0)  # no clean-up that belongs to the parent
        os.close(write)
        self.said: list[list[Any]] = []
        self.rest = b""

    def listen(self, seconds: float) -> bool:
        """Follow what is said for some time; False once the process has ended."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not select.select([self.out], [], [], left)[0]:
                return True
            data = os.read(self.out, 1 << 16)
            if not data:
                return False
            *lines, self.rest = (self.rest + data).split(b"\n")
            self.said += [json.loads(line) for line in lines]
            failed = [words for words in self.said if words[0] == "failed"]
            if failed:
                raise RuntimeError(f"a process failed: {failed[0][1]}")
        return True

    def until(self, holds: Callable[[], bool]) -> bool:
        """Follow until something holds; False if the process ended before."""
        while not holds():
            if not self.listen(0.02):
                return holds()
        return True

    def heard(self, what: str) -> list[list[Any]]:
        return [words[1:] for words in self.said if words[0] == what]

    def close(self) -> None:
        while self.listen(60.0):
            pass
        os.close(self.out)
        os.waitpid(self.pid, 0)


def _run(work: Callable[[Say], None], say: Say) -> None:
    try:
        work(say)
    except BaseException as error:
        say("failed", f"{type(error).__name__}: {error}")


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function, computed in a process of its own; anything that JSON can hold."""
    child = Child(lambda say: say("result", function(*arguments)))
    child.close()
    return child.heard("result")[0][0]
