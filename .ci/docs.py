"""Pages that are made, and pages that run.

python .ci/docs.py api            # write docs/api: every public name
python .ci/docs.py pages          # write build/docs: every page, with code and formulas as a generator takes them
python .ci/docs.py run [PAGE ...] # run every Python block and `etrax` command of the pages, each page in one go

What is not run by this is run by `make test` (README, `>>>` lines outside of blocks) or named in tests/test_docs.py.
"""

import contextlib
import doctest
import importlib
import importlib.util
import inspect
import io
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
# A block of Python, and what it prints where a block of text follows at once.
BLOCK = re.compile(r"^```(?:python|pycon)\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", flags=re.DOTALL | re.MULTILINE)
# Commands as they stand in the text, with a page's `model.py`; those with a word in capitals stand for others.
COMMAND = re.compile(r"`(etrax [^`\n]+)`")
MODEL = "command_line.md"
RETURNED = ("Learner", "Artifact", "Report", "Online")
# What one wants to do, and the names for it, in the order in which a reader meets them; other names come last.
BY_TASK = {
    "Compile a model": ("compile", "Learner", "LearnerState"),
    "Feed a stream": ("Online",),
    "In the style of a module": ("Stateful", "SingleStepData", "MultiStepData"),
    "Train on data sets": ("Trainer",),
    "Know what you get": ("Report", "compare_rules"),
    "Save, restore, ship": ("save", "restore", "write_back", "load", "Artifact"),
}
# Of classes whose parts call each other by names without an underscore: what a user calls.
MEMBERS = {
    "Learner": (
        "params", "hidden", "rule", "report", "graph", "init", "step", "value_and_grad", "train", "online", "meter",
        "memory", "export", "check", "with_rule", "plain_step", "learned", "correction", "mesh", "shardings",
    ),
    "Stateful": ("__call__", "etrace_grad", "etrace_evolve", "get_etrace_of", "reset_state", "report"),
}  # fmt: skip
COMPILER = ("etrax.graph", "etrax.compiler.ops", "etrax.compiler.primitives")


def api() -> list[str]:
    """One page for each part of the package, with all of its names."""
    import etrax
    from etrax.rules import RULES

    names = {n: getattr(etrax, n) for n in dir(etrax) if not n.startswith("_")}
    folders = sorted(n for n, v in names.items() if inspect.ismodule(v) and n not in ("report", "rules"))
    pages: dict[str, list[Any]] = {"learning": [], "rules": [], "compiler": [], "errors": []}
    for name, thing in names.items():
        if inspect.ismodule(thing):
            continue
        error = isinstance(thing, type) and issubclass(thing, Exception)
        inside = str(getattr(thing, "__module__", "")).startswith(COMPILER)
        rule = name in RULES or name in ("frozen", "Rule")
        page = "errors" if error else "rules" if rule else "compiler" if inside else "learning"
        pages[page].append(thing)
    for folder in folders:
        module = importlib.import_module(f"etrax.{folder}")
        own = [getattr(module, n) for n in dir(module) if not n.startswith("_")]
        inner = [v for v in own if inspect.ismodule(v) and v.__name__.startswith(f"etrax.{folder}.")]
        own += [getattr(v, n) for v in inner for n in dir(v) if not n.startswith("_")]
        own = [v for v in own if callable(v) and str(getattr(v, "__module__", "")).startswith(f"etrax.{folder}")]
        own = [getattr(v, "definition", v) for v in own]  # a module made from a definition: that is what is written
        pages[folder] = own
    from etrax.learn._online import Online

    pages["rules"].sort(key=lambda thing: isinstance(thing, type))  # those to use, before what they are made of
    pages["learning"].append(Online)  # what `learner.online` returns: made by no user, and used by many
    (DOCS / "api").mkdir(exist_ok=True)
    listed = ["# Every public name"]
    for page, things in pages.items():
        title = f"etrax.{page}" if page in folders else f"etrax: {page}"
        parts = _by_task(things) if page == "learning" else {"": things}
        found = {f"{v.__module__}.{v.__name__}": v for part in parts.values() for v in part}
        body = [f"# {title}"]
        for heading, part in parts.items():
            body += [f"## {heading}"] if heading else []
            body += [f"::: {v.__module__}.{v.__name__}{_options(v)}" for v in part]
        text = "\n\n".join(body) + "\n"
        (DOCS / "api" / f"{page}.md").write_text(text, encoding="utf-8")
        listed.append(f"## [{title}]({page}.md)\n\n| name | is |\n|---|---|")
        listed[-1] += "".join(
            f"\n| [`{v.__name__}`]({page}.md#{name}) | {_first_line(v)} |" for name, v in found.items()
        )
    (DOCS / "api" / "index.md").write_text("\n\n".join(listed) + "\n", encoding="utf-8")
    return []


def pages() -> list[str]:
    """The pages, prepared, where mkdocs.yml looks for them."""
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    hooks.write_pages(DOCS.parent / "build" / "docs")
    return []


def _by_task(things: list[Any]) -> dict[str, list[Any]]:
    """Names by what one wants to do with them."""
    by_name = {v.__name__: v for v in things}
    parts = {heading: [by_name.pop(n) for n in names if n in by_name] for heading, names in BY_TASK.items()}
    return {heading: part for heading, part in {**parts, "Others": list(by_name.values())}.items() if part}


def _options(thing: Any) -> str:
    """What functions return is shown without the arguments that it is made of; methods of its bases belong to it."""
    options = ["merge_init_into_class: false"] if thing.__name__ in RETURNED else []
    options += ["inherited_members: true"] if thing.__name__ == "Stateful" else []
    if thing.__name__ in MEMBERS:
        options.append(f"members: [{', '.join(MEMBERS[thing.__name__])}]")
    return "\n    options:" + "".join(f"\n      {option}" for option in options) if options else ""


def _first_line(thing: Any) -> str:
    """The first paragraph of a docstring, for a cell of a table; a formula in it is left to the page."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return re.sub(r":math:`[^`]*`", "a formula", text).replace("|", "\\|")


def run(pages: list[str]) -> list[str]:
    """Pages whose blocks do not run, with what was raised."""
    wrong = []
    for page in map(Path, pages) if pages else sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        blocks, commands = BLOCK.findall(text), commands_of(text)
        if page.resolve().parent == DOCS / "tutorials":  # shown as they were run, on a machine of their own
            blocks = [(block, "") for block, _ in blocks]
        begin, before = time.perf_counter(), os.getcwd()
        with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pages show models that are warned of
            try:
                _run_page(str(page.name), blocks)
                _run_commands(commands)
            except Exception:
                wrong.append(f"{page}:\n{traceback.format_exc(limit=-3)}")
        assert os.getcwd() == before
        if blocks or commands:
            said = f"{len(blocks)} blocks, {len(commands)} commands, {time.perf_counter() - begin:.1f} s"
            print(f"{page.resolve().relative_to(DOCS.parent)}: {said}", flush=True)
    return wrong


def _run_page(name: str, blocks: list[tuple[str, str]]) -> None:
    """Blocks share their names, as a reader who types them in has it; those with `>>>` must print what they say, and
    the others must begin to print the `text` that follows them."""
    space: dict[str, object] = {"__name__": "__main__"}
    for number, (block, printed) in enumerate(blocks):
        if ">>>" in block:
            test = doctest.DocTestParser().get_doctest(block, {}, f"{name}[{number}]", name, 0)
            test.globs = space
            said = io.StringIO()
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            doctest.DocTestRunner(optionflags=flags).run(test, out=said.write, clear_globs=False)
            if said.getvalue():
                raise AssertionError(said.getvalue())
        else:
            Path("block.py").write_text(block)
            with contextlib.redirect_stdout(io.StringIO()) as said:
                exec(compile(block, f"{name}[{number}]", "exec"), space)
            if not _without_noise(said.getvalue()).startswith(_without_noise(printed.rstrip())):
                raise AssertionError(f"block {number} prints\n{said.getvalue()}and not\n{printed}")


def _without_noise(printed: str) -> str:
    """What a block prints, but for errors of rounding, for times beside BPTT, and for the columns that they move."""
    printed = re.sub(r"\b\d\.\d+e-(0[6-9]|1\d)\b", "rounding", printed)
    return re.sub(r"[\d.]+ × *", "× ", printed)


def commands_of(text: str) -> list[str]:
    """The `etrax` commands of a page that can be run as they are, but for the name of one alone."""
    runnable = [c for c in dict.fromkeys(COMMAND.findall(text)) if not re.search(r"\b[A-Z]{3,}\b", c)]
    return [c for c in runnable if c != "etrax train"]


def _run_commands(commands: list[str]) -> None:
    """In a shell, in the order in which they are read."""
    if commands:
        Path("model.py").write_text(BLOCK.findall((DOCS / MODEL).read_text(encoding="utf-8"))[0][0])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, env={**os.environ, "PATH": path})
        if done.returncode:
            raise AssertionError(f"{command}: exit code {done.returncode}\n{done.stderr}")


if __name__ == "__main__":
    found = {"api": api, "pages": pages}[sys.argv[1]]() if sys.argv[1] in ("api", "pages") else run(sys.argv[2:])
    print("\n".join(found) or "fine")
    sys.exit(bool(found))
