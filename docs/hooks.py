"""What pages are before a site is made of them, whatever program makes it: `>>>` lines become code, formulas become
MathML, which browsers draw without a script, marked parts become tabs, and links to files that are not pages become
names."""

import re
import shutil
import textwrap
import tomllib
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


# As pages have them.
BLOCK = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def with_blocks(text):
    """Blocks of LaTeX in a page as MathML."""
    drawn = lambda found: f'<div class="scroll formula">{_formula(" ".join(found[1].split()), display="block")}</div>'  # noqa: E731
    return BLOCK.sub(drawn, text)


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
    if re.search(r"\\[a-zA-Z]", made) or "&</" in made:
        raise ValueError(f"the formula {source!r} cannot be drawn: {made}")
    return made.replace("<math", " ".join(["<math", *(f'{k}="{v}"' for k, v in attributes.items())]), 1)


# Parts of a page of which one is shown at a time, each behind a comment with its name.
TABS = re.compile(r"^<!-- tab: .*?^<!-- end of tabs -->$", re.MULTILINE | re.DOTALL)


def with_tabs(text):
    """Parts between `<!-- tab: NAME -->` and `<!-- end of tabs -->`, as tabs."""

    def drawn(found):
        parts = re.split(r"^<!-- (?:tab: (.*)|end of tabs) -->$", found[0], flags=re.MULTILINE)[1:]
        named = zip(parts[:-2:2], parts[1:-2:2], strict=True)
        return "\n\n".join(f'=== "{name}"\n\n{textwrap.indent(part.strip(), " " * 4)}' for name, part in named)

    return TABS.sub(drawn, text)


# Pages whose text is a file of the repository.
TEXT_OF = {"contributing.md": "CONTRIBUTING.md", "changes.md": "CHANGELOG.md"}


def prepared(name, text):
    """A page as a generator of sites takes it; `name` is its path below docs/."""
    if name in TEXT_OF:
        file = Path(__file__).parents[1] / TEXT_OF[name]
        text = file.read_text(encoding="utf-8").replace("](docs/", "](")
    text = with_tabs(with_blocks(with_code(text)))
    if name == "index.md" and urls():
        text += "\n\n" + " · ".join(f"[{name}]({url})" for name, url in urls().items()) + "\n"
    return text if "/" in name else OUTSIDE.sub(r"`\1`", text)


def urls():
    """The links of pyproject.toml: there are none while it says none."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {})


# A picture of the repository that lies outside of docs/, shown or linked to, in a page of the first level.
PICTURE = re.compile(r"(\]\()\.\./([^)]+\.(?:png|svg)\))")


def with_pictures(text, into):
    """Pictures from outside of docs/, copied to where pages can show them."""

    def copied(found):
        file = Path(__file__).parents[1] / found[2].removesuffix(")")
        (into / "pictures").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, into / "pictures" / file.name)
        return f"{found[1]}pictures/{file.name})"

    return PICTURE.sub(copied, text)


def write_pages(into):
    """All pages and pictures, prepared, into another directory: what is left to do is plain Markdown."""
    docs, into = Path(__file__).parent, Path(into)
    shutil.rmtree(into, ignore_errors=True)
    for file in sorted(p for p in docs.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")):
        target = into / file.relative_to(docs)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            text = file.read_text(encoding="utf-8")
            text = with_pictures(text, into) if file.parent == docs else text
            text = prepared(file.relative_to(docs).as_posix(), text)
            target.write_text(text, encoding="utf-8")
        else:
            shutil.copyfile(file, target)
