"""While the site is built: `>>>` lines in the text become code, and links to files that are no pages become names."""

import re
from pathlib import Path

FENCE = re.compile(r"^(```|~~~)")
# Files of the repository that are no pages: named, not linked.
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")


def with_code(text):
    """Runs of lines from `>>>` to an empty one, fenced."""
    out, fenced, inside = [], False, False
    for line in text.split("\n"):
        fenced = fenced != bool(FENCE.match(line))
        if not fenced and not inside and line.startswith(">>>"):
            out.append("```pycon")
            inside = True
        elif inside and not line.strip():
            out.append("```")
            inside = False
        out.append(line)
    return "\n".join(out + ["```"] * inside)


# Pages whose text is a file of the repository.
TEXT_OF = {"contributing.md": "CONTRIBUTING.md", "changes.md": "CHANGELOG.md"}


def on_page_markdown(markdown, page, **_):
    if page.file.src_uri in TEXT_OF:
        file = Path(__file__).parents[1] / TEXT_OF[page.file.src_uri]
        markdown = file.read_text(encoding="utf-8").replace("](docs/", "](")
    text = with_code(markdown)
    return text if "/" in page.file.src_uri else OUTSIDE.sub(r"`\1`", text)
