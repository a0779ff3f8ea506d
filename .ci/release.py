"""What is in `dist/`, looked at before it is published; the texts that say how to install; how to publish.

python .ci/release.py contents
PYTHON .ci/release.py example          # PYTHON is that of an environment with the wheel and nothing else
python .ci/release.py texts            # commands that install Etrax, rewritten to what src/etrax/_install.py says
python .ci/release.py steps            # what a maintainer does to publish, in order
"""

import importlib.util
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_OURS = re.compile(r"(^|/)(__pycache__|\.venv|\.git|\.pytest_cache|build|dist|site|out|node_modules)(/|$)|\.pyc$")
NEEDED = ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "src/etrax/py.typed", "src/etrax/report/page.css")
# Texts that users read, in which a command that installs Etrax may stand. Makefile and CONTRIBUTING.md are for people
# who work in a clone, and CHANGELOG.md tells what was.
TEXTS = (
    "README.md", "docs/**/*.md", "docs/notebooks/*.py", "docs/notebooks/*.ipynb", "examples/*.py", "examples/*.md",
    "demo/*.md", "demo/*.py", "benchmarks/*.md", "src/etrax/**/*.py", "src/etrax/**/*.md",
)  # fmt: skip
# A quote may stand behind a backslash, as in the JSON of a notebook.
COMMAND = re.compile(
    r"""pip\ install\ (?:-e\ )?(?P<quote>\\?["'])?(?:etrax|\.)(?:\[(?P<extras>[\w,-]+)\])?
    (?(quote)(?P=quote)|(?![\w.\[/]))""",
    re.VERBOSE,
)


def contents() -> list[str]:
    """What is wrong with the files of the two distributions."""
    (sdist,), (wheel,) = (list((ROOT / "dist").glob(p)) for p in ("*.tar.gz", "*.whl"))
    with tarfile.open(sdist) as archive:
        names = [m.name.partition("/")[2] for m in archive.getmembers()]
    inside = zipfile.ZipFile(wheel).namelist()
    wrong = [f"{sdist.name} holds {n}" for n in names if NOT_OURS.search(n)]
    wrong += [f"{wheel.name} holds {n}" for n in inside if NOT_OURS.search(n)]
    wrong += [f"{sdist.name} lacks {n}" for n in NEEDED if n not in names]
    wrong += [f"{wheel.name} lacks {n}" for n in ("etrax/py.typed", "etrax/report/page.css") if n not in inside]
    return wrong


def example() -> list[str]:
    """Whether the README's first block runs with what the package alone brings."""
    block = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0]
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run([sys.executable, "-c", block], cwd=directory, capture_output=True, text=True)
    return [] if done.returncode == 0 and "exact" in done.stdout else [done.stderr or done.stdout]


def readable() -> list[Path]:
    """The texts of `TEXTS`, without the file that makes the command."""
    return sorted({p for pattern in TEXTS for p in ROOT.glob(pattern) if p.name != "_install.py"})


def in_the_form_of_today(text: str) -> str:
    """Every command that installs Etrax as `src/etrax/_install.py` has it; those of other packages stay."""
    spec = importlib.util.spec_from_file_location("_install", ROOT / "src" / "etrax" / "_install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def command(match: re.Match) -> str:
        extras = match["extras"].split(",") if match["extras"] else []
        made = module.install_command(*extras)
        return made.replace('"', '\\"') if (match["quote"] or "").startswith("\\") else made

    return COMMAND.sub(command, text)


def texts() -> list[str]:
    """Rewrite what says otherwise."""
    for path in readable():
        before = path.read_text(encoding="utf-8")
        after = in_the_form_of_today(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"rewritten: {path.relative_to(ROOT)}")
    return []


def steps() -> list[str]:
    """What a maintainer does to publish, printed; what was done already is left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src" / "etrax" / "_version.py").read_text(encoding="utf-8"))[
        1
    ]
    todo = []
    if not project.get("urls"):
        todo += [
            "In pyproject.toml, fill [project.urls]: Source, Documentation, Issues, Changelog. The start page of "
            "the site and the distributions take their links from there, and print none while it is empty."
        ]
    todo += [
        f"Name the release: __version__ in src/etrax/_version.py (now {version}); in CHANGELOG.md, turn "
        "`## Unreleased` into `## VERSION, DATE`.",
        "Set PUBLISHED = True in src/etrax/_install.py, then run `python .ci/release.py texts`: README, pages and "
        "errors say `pip install etrax`. Take out the sentences that `grep -rn 'Package Index yet' README.md docs` "
        "finds.",
        "Run `make test-matrix test-slow docs release-check`; all must pass.",
        "git commit -am 'Release VERSION' && git tag -a vVERSION -m VERSION",
        ".venv-release/bin/python -m twine upload --repository testpypi dist/*   "
        "# a try: needs an account and a token of the test index",
        ".venv-release/bin/python -m twine upload dist/*   # needs a token for the project `etrax`; cannot be undone",
        "git push origin main vVERSION",
        "In an empty environment: pip install etrax && etrax doctor && etrax demo",
        "conda-forge: fill .ci/conda/meta.yaml (version, sha256 of the sdist), and open a pull request with it as "
        "recipes/etrax/meta.yaml in conda-forge/staged-recipes.",
    ]
    print("To publish, by hand and in this order:")
    for number, line in enumerate(todo, 1):
        print(f"  {number}. {line}")
    return []


if __name__ == "__main__":
    wrong = {"contents": contents, "example": example, "texts": texts, "steps": steps}[sys.argv[1]]()
    print("\n".join(wrong) or ("" if sys.argv[1] == "steps" else f"{sys.argv[1]}: fine"))
    sys.exit(bool(wrong))
