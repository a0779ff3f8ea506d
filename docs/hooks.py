"""While the site is built: `>>>` lines in the text become code, formulas of docstrings become MathML, which browsers
draw without a script, and links to files that are no pages become names."""

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


# As docstrings have formulas: a directive with what is indented below it, or a role inside a line.
DISPLAYED = re.compile(r"^\.\. math::(.*(?:\n(?:[ \t]+.*)?)*)", re.MULTILINE)
INLINE = re.compile(r":math:`([^`]+)`")


def with_formulas(text):
    """Formulas in LaTeX as MathML; one that is not understood stops the build."""
    text = DISPLAYED.sub(lambda found: f"{_displayed(found[1])}\n\n", text)
    # In a span, since a line that begins with a formula would be a block of its own.
    return INLINE.sub(lambda found: f"<span>{_formula(' '.join(found[1].split()))}</span>", text)


def _displayed(source):
    """Lines end in a double backslash, and stand under each other at an ampersand."""
    rows = [row.split("&") for row in " ".join(source.split()).split("\\\\")]
    cells = [[_formula(cell, displaystyle="true") for cell in row] for row in rows]
    table = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
    return f'<div class="scroll"><table class="formula">{table}</table></div>'


def _formula(source, **attributes):
    from latex2mathml.converter import convert

    if not source.strip():
        return ""
    made = convert(source.strip())
    if "\\" in made or "&</" in made:
        raise ValueError(f"the formula {source!r} cannot be drawn: {made}")
    return made.replace("<math", " ".join(["<math", *(f'{k}="{v}"' for k, v in attributes.items())]), 1)


# Pages whose text is a file of the repository.
TEXT_OF = {"contributing.md": "CONTRIBUTING.md", "changes.md": "CHANGELOG.md"}


def on_page_markdown(markdown, page, **_):
    if page.file.src_uri in TEXT_OF:
        file = Path(__file__).parents[1] / TEXT_OF[page.file.src_uri]
        markdown = file.read_text(encoding="utf-8").replace("](docs/", "](")
    text = with_code(markdown)
    return text if "/" in page.file.src_uri else OUTSIDE.sub(r"`\1`", text)
