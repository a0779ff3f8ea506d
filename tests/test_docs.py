"""Pages of the site: what they link to is there, and every block and command of theirs is run, or named here.

`make docs` builds the pages and runs their Python blocks and `etrax` commands; `make test` runs the README and all
`>>>` lines.
"""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(p for p in (ROOT / "docs").rglob("*.md") if "api" not in p.parts)
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "demo" / "README.md", *PAGES]
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"`((?:make|python|pip|etrax|eval|srun) [^`\n]+)`")

# Languages of blocks that nobody runs, and why.
NOT_RUN = {
    "text": "what a program prints",
    "sh": "commands, looked at one by one below",
    "math": "a formula, drawn when the site is built",
    "py": "a part of a program, which howto/mesh.md has whole, or an example, which tests/examples runs",
}
# Commands that are not run, each with the reason.
ELSEWHERE = {
    "srun --ntasks=8 python train.py": "asks for a cluster; examples/two_processes.py is run by tests/examples",
    "srun --ntasks=2 python examples/two_processes.py": "asks for a cluster; tests/examples runs it without one",
    'pip install "jax[cuda12]"': "asks for a GPU",
    'pip install "jax[tpu]"': "asks for a TPU",
    'pip install -c .ci/stack-311.txt -e ".[brainpy,flax,equinox,train]"': "`make test-311` does it, with more extras",
    "pip install numba": "a package of others",
    "pip install gymnax six": "packages of others",
    "etrax COMMAND --help": "COMMAND stands for any; tests/cli runs each",
    'eval "$(etrax completion bash)"': "changes the reader's shell; tests/cli runs the script",
    "python -m benchmarks.peer_suite CHECKOUT": "asks for a checkout of another library",
}
# Targets of the Makefile that no workflow runs, each with the reason.
BY_HAND = {
    "bench": "half an hour of an idle machine; its small sizes are `make bench-quick`",
    "soak": "an hour of ten million steps",
    "faults": "an hour, which tests/trust has in a minute",
    "hostile": "half an hour, which tests/trust has in a minute",
    "durations": "writes what tests/rows.py reads, from a run of all fast tests",
    "test-browser": "asks for Chromium",
    "test-matrix": "both of its halves run",
    "help": "a list",
    "venv": "part of `make test`",
}


def made(path):
    """Pages of the API are written when the site is built."""
    return path.parent == ROOT / "docs" / "api"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / link).resolve()
        assert target.exists() or made(target), link


def test_every_page_of_the_list_is_there_and_every_page_is_listed():
    listed = set(re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert len(listed) > 20
    for page in listed:
        assert (ROOT / "docs" / page).exists() or made(ROOT / "docs" / page), page
    assert {p.relative_to(ROOT / "docs").as_posix() for p in PAGES} <= listed


def commands(text):
    """Commands in code between ticks, in blocks of a shell, and in blocks that are indented."""
    outside = FENCE.sub("", text)
    found = COMMAND.findall(outside)
    lines = [line for kind, block in FENCE.findall(text) if kind == "sh" for line in block.splitlines()]
    lines += re.findall(r"^    (?=make|python|pip|etrax|srun)(.+)$", outside, flags=re.MULTILINE)
    return list(dict.fromkeys([*found, *(line.split("  ")[0].strip() for line in lines)]))


def where_run(command):
    """Who runs a command, after a look whether what it names is there; None if nobody does."""
    kind, *words = command.split(" ")
    if command in ELSEWHERE:
        return ELSEWHERE[command]
    if kind == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
        return "a target of the Makefile" if words[0] in targets else None
    if kind == "python" and words[0] == "-m":
        return "a module of this repository" if importlib.util.find_spec(words[1]) else None
    if kind == "python":
        return "a file of this repository" if (ROOT / words[0]).exists() else None
    if kind == "etrax":
        return "`make docs`" if not re.search(r"\b[A-Z]{3,}\b", command) else None
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    asked = re.fullmatch(r'pip install (?:-e )?"?(?:etrax|\.)(?:\[([\w,-]+)\])?"?', command)
    return "`make release-check`" if asked and set((asked[1] or "test").split(",")) <= set(extras) else None


@pytest.mark.parametrize("page", TEXTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_block_and_command_is_run_or_named(page):
    text = page.read_text(encoding="utf-8")
    for kind, _ in FENCE.findall(text):
        runs = kind in ("python", "pycon") and (page in PAGES or page == ROOT / "README.md")
        assert runs or kind in NOT_RUN, kind
    assert {c: where for c in commands(text) if (where := where_run(c)) is None} == {}


def test_workflows_run_what_pages_say_to_make():
    files = [*(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / ".ci" / "run"]
    lines = re.findall(r"make ([^\n]+)", "\n".join(file.read_text(encoding="utf-8") for file in files))
    run = {word for line in lines for word in line.split()} | {"test-311", "test-313"}
    said = {c.split()[1] for page in TEXTS for c in commands(page.read_text(encoding="utf-8")) if c.startswith("make ")}
    assert said - run - set(BY_HAND) == set()
    assert {"demo", "docs", "release-check", "test"} <= said & run


def test_what_is_not_run_is_still_in_a_page():
    every = {c for page in TEXTS for c in commands(page.read_text(encoding="utf-8"))}
    assert set(ELSEWHERE) <= every


def test_badges_and_pictures_of_the_readme_are_there_and_true():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert pictures and all((ROOT / picture).exists() for picture in pictures)
    spec = importlib.util.spec_from_file_location("badges", ROOT / "docs" / "pictures" / "badges.py")
    badges = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(badges)
    assert badges.drawn() == (ROOT / "docs" / "pictures" / "badges.svg").read_text(encoding="utf-8")
