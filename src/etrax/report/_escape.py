"""Text made safe for a page: names of parameters and source lines are whatever the user wrote."""

from __future__ import annotations

import html
import re

from .._errors import visible


def esc(text: object) -> str:
    """Escaped for content and for attributes in double quotes.

    >>> esc('<b> & "c"')
    '&lt;b&gt; &amp; &quot;c&quot;'
    """
    return html.escape(visible(text), quote=True)


def monospace(text: object) -> str:
    """Escaped, as a notebook shows it: in a font in which columns stand below each other, and never wrapped."""
    style = (
        "font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; white-space: pre; overflow-x: auto"
    )
    return f'<pre style="{style}">{esc(text)}</pre>'


def prose(text: str) -> str:
    """Escaped, with what stands in backticks as code.

    >>> prose("see `a<b`")
    'see <code>a&lt;b</code>'
    """
    return re.sub("`([^`]+)`", r"<code>\1</code>", esc(text))


def cut_to(text: str, length: int) -> str:
    """At most so many characters, cut in the middle: both ends of a path tell most.

    >>> cut_to("encoder.layers[0].attention.kernel", 20)
    'encoder.l…ion.kernel'
    """
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"
