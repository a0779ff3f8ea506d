"""braintrace's own tests through `etrax.compat.braintrace`, and through that library itself as the control.

    python -m benchmarks.peer_suite CHECKOUT [--control] [-o results.jsonl] [--only tests.txt] [pytest arguments]

CHECKOUT is a source distribution of that library, or a clone; its tests are read there and never copied into this
repository. They are imported with our module in the place of theirs. Helpers for tests are taken from the checkout; of
its private modules only the public names are served. `--control` runs the library of the checkout. The test with frozen
gradients needs a file of numbers, `_algorithm/tests/data/p2_golden.npz`, which clones alone have. Every collected test
leaves a line in the results, also one that was deselected. `benchmarks.peer_page` makes docs/peer_suite.md of them.
Nothing of this is part of `make test`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

PEER = "braintrace"
CHECKOUT = "PEER_SUITE_CHECKOUT"
CONTROL = "PEER_SUITE_CONTROL"
OUT = "PEER_SUITE_OUT"
ONLY = "PEER_SUITE_ONLY"
# Private names by which whole files of tests reach public ones, and what we have for them.
EQUIVALENT = {
    "_ALGORITHM_REGISTRY": ("_compile", "BY_NAME"),
    "_resolve_algorithm": ("_compile", "algorithm_class"),
}
# Names with an underscore that the library's pages tell its users to override.
DOCUMENTED_HOOKS = {
    "_update_etrace_data",
    "_solve_weight_gradients",
    "_get_etrace_data",
    "_assign_etrace_data",
    "_compute_learning_signal",
}


class PrivateName(Exception):
    """A test used a name that is no part of the library's public surface."""


class Private:
    """Stands for a private name: it can be imported, and any use of it fails."""

    def __init__(self, name: str):
        self.__dict__["name"] = name

    def _fail(self, *_: object, **__: object):
        raise PrivateName(self.__dict__["name"])

    __call__ = __getattr__ = __getitem__ = __iter__ = __len__ = __instancecheck__ = __subclasscheck__ = _fail
    __contains__ = __setattr__ = __enter__ = __bool__ = __mro_entries__ = _fail

    def __eq__(self, other: object):
        self._fail()

    __hash__ = object.__hash__


class Stub(ModuleType):
    """A private module of the library: its public names are ours, the others stand-ins."""

    def __getattr__(self, name: str):
        if name == "__all__":
            return Private(f"{self.__name__}.__all__")
        ours = sys.modules[PEER]
        if name in ("__version__", "__version_info__"):
            return getattr(ours, name)
        if name.startswith("__"):
            raise AttributeError(name)
        for place in (ours, ours.nn, importlib.import_module("etrax.graph")):
            if not name.startswith("_") and name in dir(place):
                return getattr(place, name)
        if name in EQUIVALENT:
            home, ours_is = EQUIVALENT[name]
            return getattr(importlib.import_module(f"etrax.compat.{PEER}.{home}"), ours_is)
        if not re.search(rf"\b{name}\b", source_of(self.__name__)):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return Private(f"{self.__name__}.{name}")


@cache
def source_of(module: str) -> str:
    """The text of a module of the checkout; of a package, also the names of its modules."""
    file = Path(os.environ[CHECKOUT], *module.split("."))
    if not file.is_dir():
        return file.with_suffix(".py").read_text()
    return "\n".join([(file / "__init__.py").read_text(), *(f.stem for f in file.iterdir())])


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves `braintrace.*`: helpers for tests from the checkout, private modules as stubs."""

    def find_spec(self, name, path=None, target=None):
        if not name.startswith(PEER + "."):
            return None
        file = Path(os.environ[CHECKOUT], *name.split("."))
        if "._testing" in name or name.endswith("_test"):
            file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
            return importlib.util.spec_from_file_location(name, file)
        if file.is_dir() or file.with_suffix(".py").exists():
            return importlib.util.spec_from_loader(name, self, is_package=file.is_dir())
        return None

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


def pytest_configure(config):
    import jax

    for marker in ("slow", "diagnostic", "oracle", "xfail_known"):
        config.addinivalue_line("markers", marker)
    jax.config.update("jax_enable_x64", False)
    install()
    if not os.environ.get(CONTROL):
        defer_refusals()


def install() -> None:
    """Put our module, or for the control the library of the checkout, where the tests look for theirs."""
    if os.environ.get(CONTROL):
        sys.path.insert(0, os.environ[CHECKOUT])
        return
    ours = importlib.import_module("etrax.compat.braintrace")
    sys.modules[PEER], sys.modules[f"{PEER}.nn"] = ours, ours.nn
    ours.nn.__path__ = []  # it has private modules there
    sys.meta_path.insert(0, Finder())


def defer_refusals() -> None:
    """Let a class with a hook that is refused be made: it is refused when it compiles, and the tests beside it run."""
    ours = importlib.import_module("etrax.compat.braintrace")
    ours.ETraceVjpAlgorithm.__init_subclass__ = classmethod(lambda cls, **options: None)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that it came from or in the handling of which it was raised."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        error = error.__cause__ or error.__context__
    return iter(seen)


def private_name(error: BaseException | None) -> str | None:
    """The private name that an error is about: one that a stand-in refused, or that an object or module lacks."""
    for one in chain(error):
        if isinstance(one, PrivateName):
            return str(one)
        name = getattr(one, "name_from", None) or getattr(one, "name", None)
        missing = isinstance(one, AttributeError | ImportError) and isinstance(name, str)
        if missing and name.startswith("_") and name not in DOCUMENTED_HOOKS:
            return name
    return None


def private_in_code(item) -> str | None:
    """A private name that a test's own code reads, also where it only compares it."""
    code = getattr(getattr(item, "function", None), "__code__", None)
    names = () if code is None else code.co_names
    return next((n for n in names if isinstance(vars(item.module).get(n), Private)), None)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.when != "call" and not (report.when == "setup" and not report.passed):
        return
    error = None if call.excinfo is None else call.excinfo.value
    text = "" if error is None else f"{type(error).__name__}: {str(error)[:600]}"
    if hasattr(report, "wasxfail"):
        outcome = "xfailed" if report.skipped else "xpassed"
    else:
        outcome = report.outcome
    name = private_name(error) or private_in_code(item) if outcome == "failed" else None
    where = "" if error is None else str(getattr(report.longrepr, "reprcrash", ""))[-300:]
    note(item.nodeid, "private" if name else outcome, text, name or "", where)


def pytest_collectreport(report):
    if report.failed:
        note(report.nodeid, "uncollected", report.longreprtext[-800:])


def pytest_collection_modifyitems(config, items):
    """Of a list of tests those that are on it; the others are not even deselected, since they ran elsewhere."""
    if os.environ.get(ONLY):
        chosen = set(Path(os.environ[ONLY]).read_text().split("\n"))
        items[:] = [item for item in items if item.nodeid.removeprefix("suite/") in chosen]


def pytest_deselected(items):
    for item in items:
        note(item.nodeid, "deselected", "")


def pytest_collection_finish(session):
    for item in session.items:
        note(item.nodeid, "collected", "")


COUNTS: Counter[str] = Counter()


def note(test: str, outcome: str, error: str, name: str = "", where: str = "") -> None:
    """Count a result, and write it at once, so that a run which is cut short has told what it found."""
    COUNTS[outcome] += 1
    if os.environ.get(OUT):
        row = {"test": test.removeprefix("suite/"), "outcome": outcome, "name": name, "error": error, "where": where}
        with Path(os.environ[OUT]).open("a") as file:
            print(json.dumps(row), file=file)


def pytest_runtest_teardown(item):
    import gc

    import jax

    if COUNTS.total() % 60 == 0:
        jax.clear_caches()
        gc.collect()


def pytest_sessionfinish(session):
    print(f"\n{dict(COUNTS)}")


OPTIONS = ["-p", "benchmarks.peer_suite", "--import-mode=importlib", "-q", "--no-header", "-W", "ignore"]
OPTIONS += ["--tb=short", "--continue-on-collection-errors", "-m", "not diagnostic"]


def main(argv: list[str]) -> int:
    checkout, *rest = argv
    os.environ[CHECKOUT] = str(Path(checkout).resolve())
    if rest[:1] == ["--control"]:
        os.environ[CONTROL], rest = "1", rest[1:]
    for flag, variable in (("-o", OUT), ("--only", ONLY)):
        if rest[:1] == [flag]:
            os.environ[variable], rest = str(Path(rest[1]).resolve()), rest[2:]
    with tempfile.TemporaryDirectory() as folder:
        for file in Path(checkout, PEER).rglob("*"):
            if file.name.endswith(("_test.py", ".npz")):
                copy = Path(folder, "suite", file.relative_to(Path(checkout, PEER)))
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copy)
        chosen = [a for a in rest if a.startswith("suite")] or ["."]
        os.chdir(folder)
        Path("pytest.ini").write_text("[pytest]\npython_files=*_test.py\n")
        return pytest.main([*OPTIONS, *(a for a in rest if a not in chosen), *chosen])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
