"""Tutorials: scripts in docs/notebooks, executed into notebooks and into pages of the site.

python .ci/notebooks.py [NAME ...]  # run docs/notebooks/NAME.py; write NAME.ipynb and docs/tutorials/NAME.md

A script has cells as editors know them: `# %%` begins code, `# %% [markdown]` text.
"""

import ast
import base64
import contextlib
import io
import json
import re
import sys
import time
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
NOTEBOOKS, PAGES = DOCS / "notebooks", DOCS / "tutorials"
CELL = re.compile(r"^# %%(?P<text> \[markdown\])?\n", re.MULTILINE)


def cells_of(script: str) -> list[tuple[str, str]]:
    """("markdown" or "code", source) of each cell."""
    _, *parts = CELL.split(script)
    found = []
    for kind, body in zip(parts[::2], parts[1::2], strict=True):
        if kind:
            body = "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.strip().split("\n"))
        found.append(("markdown" if kind else "code", body.strip("\n")))
    return found


def run_cell(source: str, space: dict[str, object], number: int = 1) -> list[dict[str, object]]:
    """What a notebook would show: what is printed, the value of a last expression, figures. Its lines are `In[1]:3`."""
    import matplotlib.pyplot as plt

    tree, shown, said = ast.parse(source), None, io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(said):
        exec(compile(tree, f"In[{number}]", "exec"), space)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), f"In[{number}]", "eval"), space)
    text = said.getvalue() + ("" if shown is None else f"{shown!r}\n")
    out = [{"output_type": "stream", "name": "stdout", "text": lines(text.rstrip())}] if text.strip() else []
    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="png", dpi=100, metadata={"Software": None})
        data = {"image/png": base64.b64encode(picture.getvalue()).decode(), "text/plain": ["<Figure>"]}
        out.append({"output_type": "display_data", "data": data, "metadata": {}})
    plt.close("all")
    return out


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def executed(script: str) -> dict[str, object]:
    """The notebook of a script, with its outputs."""
    space: dict[str, object] = {"__name__": "__main__"}
    cells: list[dict[str, object]] = []
    for kind, source in cells_of(script):
        cell: dict[str, object] = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}}
        if kind == "code":
            number = 1 + sum(c["cell_type"] == "code" for c in cells)
            cell |= {"execution_count": number, "outputs": run_cell(source, space, number)}
        cells.append(cell | {"source": lines(source)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def page_of(name: str, notebook: dict) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page, and its pictures by the name of their file."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                parts.append("```text\n" + "".join(output["text"]) + "\n```")
            else:
                file = f"{name}_{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(output["data"]["image/png"])
                parts.append(f"![the figure that the code above draws]({file})")
    title, first, *rest = parts[0].split("\n\n") + parts[1:]
    link = f"This page is a [notebook](../notebooks/{name}.ipynb), shown as it was run."
    return "\n\n".join([title, first, *rest, link]) + "\n", pictures


def write(name: str) -> None:
    notebook = executed((NOTEBOOKS / f"{name}.py").read_text(encoding="utf-8"))
    (NOTEBOOKS / f"{name}.ipynb").write_text(
        json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    page, pictures = page_of(name, notebook)
    (PAGES / f"{name}.md").write_text(page, encoding="utf-8")
    for file, picture in pictures.items():
        (PAGES / file).write_bytes(picture)


if __name__ == "__main__":
    import matplotlib

    matplotlib.use("agg")
    for name in sys.argv[1:] or sorted(p.stem for p in NOTEBOOKS.glob("*.py")):
        begin = time.perf_counter()
        write(name)
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
