"""The badges of the README, from `pyproject.toml` alone: python docs/pictures/badges.py. A test compares them."""

import tomllib
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
TEXT = 'font-family="Verdana, DejaVu Sans, sans-serif" font-size="11" fill="#fff"'


def said() -> list[tuple[str, str]]:
    """Left and right text of each badge."""
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [c.rsplit(" ", 1)[1] for c in project["classifiers"] if "Python :: 3." in c]
    jax = next(d for d in project["dependencies"] if d.startswith("jax")).removeprefix("jax").lstrip(">=")
    return [
        ("python", f"{versions[0]} – {versions[-1]}"), ("jax", f"{jax} or newer"),
        ("licence", project["license"]), ("types", "py.typed"),
    ]  # fmt: skip


def drawn() -> str:
    """All of them in a row, as one picture."""
    parts, x = [], 0
    for left, right in said():
        a, b = (round(6.6 * len(text)) + 12 for text in (left, right))
        parts.append(
            f'<rect x="{x}" width="{a + b}" height="20" rx="3" fill="#555"/>'
            f'<rect x="{x + a}" width="{b}" height="20" rx="3" fill="#00796b"/>'
            f'<text x="{x + a / 2}" y="14" text-anchor="middle" {TEXT}>{escape(left)}</text>'
            f'<text x="{x + a + b / 2}" y="14" text-anchor="middle" {TEXT}>{escape(right)}</text>'
        )
        x += a + b + 6
    label = "; ".join(" ".join(pair) for pair in said())
    box = f'width="{x}" height="20" role="img" aria-label="{escape(label)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{"".join(parts)}</svg>\n'


if __name__ == "__main__":
    (HERE / "badges.svg").write_text(drawn(), encoding="utf-8", newline="\n")
