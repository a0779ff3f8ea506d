"""Pages that are made: of all examples, and of the tutorials' notebooks. What is stored is what its script says."""

import base64
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "docs" / "notebooks"
NAMES = sorted(p.stem for p in NOTEBOOKS.glob("*.py"))


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gallery, notebooks = script("gallery"), script("notebooks")


def test_the_page_of_examples_is_that_of_the_files():
    text = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert text == gallery.page(), "python .ci/gallery.py page"
    listed = {name for names in gallery.PARTS.values() for name in names}
    assert listed == {p.stem for p in (ROOT / "examples").glob("*.py")}


def test_tutorials_are_there():
    assert {"plain_jax", "spiking", "brainpy", "lru", "streaming", "own_rule", "own_op", "verify"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_its_script_as_it_was_run(name):
    stored = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = notebooks.cells_of((NOTEBOOKS / f"{name}.py").read_text(encoding="utf-8"))
    found = [(c["cell_type"], "".join(c["source"])) for c in stored["cells"]]
    assert found == cells, f"python .ci/notebooks.py {name}"
    assert any(c.get("outputs") for c in stored["cells"])
    assert len(json.dumps(stored)) < 200_000

    page, pictures = notebooks.page_of(name, stored)
    folder = ROOT / "docs" / "tutorials"
    assert (folder / f"{name}.md").read_text(encoding="utf-8") == page
    for file, picture in pictures.items():
        assert (folder / file).read_bytes() == picture


def test_a_cell_shows_what_it_prints_draws_and_is():
    said, drawn = notebooks.run_cell("import matplotlib.pyplot as plt\nprint(1)\n_ = plt.plot([1, 2])\n[2]", {})
    assert said["text"] == ["1\n", "[2]"]
    assert base64.b64decode(drawn["data"]["image/png"])[1:4] == b"PNG"
    cells = notebooks.cells_of("# %% [markdown]\n# a\n#\n# b\n\n# %%\nx = 1\n")
    assert cells == [("markdown", "a\n\nb"), ("code", "x = 1")]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name):
    run = f"import runpy; runpy.run_path({str(NOTEBOOKS / f'{name}.py')!r})"  # not beside a file named as a package
    ran = subprocess.run([sys.executable, "-c", run], env={**os.environ, "MPLBACKEND": "agg"}, cwd=ROOT)
    assert ran.returncode == 0
