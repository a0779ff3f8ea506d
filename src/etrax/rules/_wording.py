"""Reasons that fit into a few lines: the longest of several wordings that does, from the longest to the shortest."""

from __future__ import annotations

from collections.abc import Sequence

MOST = 300  # characters of a reason
_MORE = " … (`print(learner.report.full())` has the rest)"


def fitting(texts: Sequence[str], most: int = MOST) -> str:
    """The first text of at most so many characters; the last one cut, if none is so short.

    >>> fitting(["a long text", "a text"], 8)
    'a text'
    """
    short = next((text for text in texts if len(text) <= most), None)
    return _cut(texts[-1], most) if short is None else short


def _cut(text: str, most: int) -> str:
    """The beginning of a text, up to the end of a clause or a word."""
    start = text[: most - len(_MORE)]
    end = next((at for at in map(start.rfind, ("; ", ", ", " ")) if at > most // 2), len(start))
    return start[:end] + _MORE
