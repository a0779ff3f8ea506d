"""braintrace's own tests through `etrax.compat.braintrace`: how many pass, and why each other one does not.

    python -m benchmarks.peer_suite CHECKOUT [-o results.json] [pytest arguments]
    python -m benchmarks.peer_suite --page results.json ...   # writes docs/peer_suite.md

CHECKOUT is a clone of that library's repository; its tests are read there and never copied into this one. They are
imported with our module in the place of theirs. Its helpers for tests are taken from the clone; of its private modules
only the public names are served, and a test that uses any other is counted as `private`. Nothing of this is part of
`make test`.
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
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

PEER = "braintrace"
CHECKOUT = "PEER_SUITE_CHECKOUT"
OUT = "PEER_SUITE_OUT"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "peer_suite.md"
HEAD = """# The tests of braintrace, through Etrax

`python -m benchmarks.peer_suite CHECKOUT` runs the tests of a clone of braintrace with `etrax.compat.braintrace` in the
place of it, and this page is made of what it found, with version 0.2.6 on Python 3.11. It is never part of `make test`.
In {files} of its files {passed} of the {usable} tests that use public names pass; {private} tests, or files, use
private names. The others, with the reason:
"""
# Private names by which whole files of tests reach public ones, and what we have for them.
EQUIVALENT = {
    "_ALGORITHM_REGISTRY": ("_compile", "BY_NAME"),
    "_resolve_algorithm": ("_compile", "algorithm_class"),
}
# What a test says that needs a private name: of a module, or of an object.
PRIVATE = re.compile(r"PrivateName|(has no attribute|cannot import name) '(_(?!_)|__all__|__version__)")


# Why a test that uses public names does not pass, and how it is told from its name and its error. The first one counts.
REASONS = {
    "a `while_loop`, through which JAX has no reverse mode: cut there or an error of another kind, refused here": (
        r"while_support|differentiates through a `while_loop`|test_while_hidden|while_body_model"
    ),
    "asks for that library's marker primitives in the jaxpr, or for its warnings when they are lost": (
        r"etp_|StopIteration|uses_(mv|mm|lora|sp)|_op/.*(vmap|Vmap)|promotes|'str' object has no attribute 'name'"
    ),
    "the class must say that its package is `braintrace`": r"module_attribute|ModuleAttribute|module_is_braintrace",
    "frozen numbers of theirs; ours are as near to BPTT or nearer, but for `EProp` (κ, random feedback) in windows": (
        r"test_matches_golden|is_degenerate_where"
    ),
    "κ and random feedback of `EProp` act inside a window too; there, on what came before it only": (
        r"\[EProp( kappa|_k05|_random)\]"
    ),
    "rounding in single precision, or the text of a docstring": (
        r"rtol=1e-06|open bullet list|axis_distinctness|truly_leaky"
    ),
    "a bias has a relation of its own here, and so has a reset gate": (
        r"cell_relation_profile|(gru_one|lru_two|lstm_one)_layer|explain_filters_by_kind"
    ),
    "a mode of the compiler that is accepted and has no effect here (`include_recurrent_mixing`, `sparse_n`)": (
        r"with_recurrence_includes|multiunit\[.*-True\]|is_diagonal_recurrence_flag|reservoir_recurrence|SparseN"
    ),
    "cached fields, overridden hooks or modules that are private, reached in another way": (
        r"SplitState|custom_vjp_is_set|override_hook|captur|DashO|_SINK|IndexError|ExpansionIsShape|FakeState"
    ),
    "refused or excluded there, served here": r"DID NOT RAISE|nontemp|UnsupportedOptions|guardrail|excluded|exclusion",
    "a warning about a rewrite that is not made here": r"DID NOT WARN",
    "wording of a message, class of an error": (
        r"Regex pattern did not match|decay_rejected|dynamic_weight_assignment|Guards::test_(wrong_length|unperturbed)"
    ),
    "a gradient that is zero there and right here (weights in plain operations)": r"exact_zero|synthesi|zeroes_every",
    "random feedback: an output that shows a state takes its own error": r"RandomFeedback",
    "fields of the compiler's records about marked ops and rewrites": (
        r"_compiler/|control_flow|not enough values|FullJacobian|coupled_scope_merges|no attribute '(\w+)'"
    ),
    "a window's lag of `pp_prop`'s correction, which is not made here": r"bias_correction",
    "a state that no step reads has no trace, so no filter": r"hand_computed_two_step",
    "no answer within the time given": r"Timeout",
}


def reason_of(test: str, error: str) -> str:
    found = (why for why, pattern in REASONS.items() if re.search(pattern, f"{test} {error}"))
    return next(found, "not known")


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
        if name.startswith("__"):
            raise AttributeError(name)
        ours = sys.modules[PEER]
        for place in (ours, ours.nn):
            if name in dir(place):
                return getattr(place, name)
        if name in EQUIVALENT:
            home, ours_is = EQUIVALENT[name]
            return getattr(importlib.import_module(f"etrax.compat.{PEER}.{home}"), ours_is)
        if not re.search(rf"\b{name}\b", source_of(self.__name__)):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return Private(f"{self.__name__}.{name}")


@cache
def source_of(module: str) -> str:
    """The text of a module of the clone; of a package, also the names of its modules."""
    file = Path(os.environ[CHECKOUT], *module.split("."))
    if not file.is_dir():
        return file.with_suffix(".py").read_text()
    return "\n".join([(file / "__init__.py").read_text(), *(f.stem for f in file.iterdir())])


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves `braintrace.*`: helpers for tests from the clone, private modules as stubs."""

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

    ours = importlib.import_module("etrax.compat.braintrace")
    sys.modules[PEER], sys.modules[f"{PEER}.nn"] = ours, ours.nn
    ours.nn.__path__ = []  # it has private modules there
    sys.meta_path.insert(0, Finder())
    for marker in ("slow", "diagnostic", "oracle", "xfail_known"):
        config.addinivalue_line("markers", marker)
    jax.config.update("jax_enable_x64", False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.when == "call" or (report.when == "setup" and not report.passed):
        error = call.excinfo
        text = "" if error is None else f"{error.typename} {error.value} {report.longreprtext}"
        private = error is not None and (bool(PRIVATE.search(text)) or _reads_private(item))
        outcome = "private" if private else report.outcome
        _note(item.nodeid, outcome, "" if error is None else f"{error.typename}: {str(error.value)[:300]}")


def _reads_private(item) -> bool:
    """Whether a test's own code reads a private name, also where it only compares it."""
    names = getattr(getattr(item, "function", None), "__code__", None)
    return names is not None and any(isinstance(vars(item.module).get(n), Private) for n in names.co_names)


def pytest_collectreport(report):
    if report.failed:
        text = report.longreprtext
        _note(report.nodeid, "private" if PRIVATE.search(text) else "uncollected", text[-400:])


COUNTS: Counter[str] = Counter()
WHY: Counter[str] = Counter()


def _note(test: str, outcome: str, error: str) -> None:
    """Count a result, and write it at once, so that a run which is cut short has told what it found."""
    COUNTS[outcome] += 1
    why = reason_of(test, error) if outcome == "failed" else ""
    WHY[why] += outcome == "failed"
    if os.environ.get(OUT):
        with Path(os.environ[OUT]).open("a") as file:
            print(json.dumps({"test": test, "outcome": outcome, "reason": why, "error": error}), file=file)


def pytest_runtest_teardown(item):
    import gc

    import jax

    if COUNTS.total() % 60 == 0:
        jax.clear_caches()
        gc.collect()


def pytest_sessionfinish(session):
    usable = COUNTS["passed"] + COUNTS["failed"]
    print(f"\n{COUNTS['passed']} of {usable} usable tests pass; {dict(COUNTS)}")
    for why, count in (+WHY).most_common():
        print(f"{count:4}  {why}")


def page(results: list[str]) -> str:
    """All results as a page: what counts is the last one of each test."""
    rows = [json.loads(line) for file in results for line in Path(file).read_text(encoding="utf-8").splitlines()]
    last = {row["test"]: row for row in rows}
    counts = Counter(row["outcome"] for row in last.values())
    files = {test.split("::")[0] for test in last}
    why: dict[str, dict[str, list[str]]] = {}
    for test, row in sorted(last.items()):
        if row["outcome"] == "failed":
            file, *name = test.removeprefix("suite/").split("::")
            reason = reason_of(test, row["error"])
            why.setdefault(reason, {}).setdefault(file, []).append("::".join(name))
    usable = counts["passed"] + counts["failed"]
    head = HEAD.format(passed=counts["passed"], usable=usable, private=counts["private"], files=len(files))
    size = lambda by_file: sum(map(len, by_file.values()))  # noqa: E731
    ordered = sorted(why.items(), key=lambda item: -size(item[1]))
    table = "".join(f"| {reason} | {size(by_file)} |\n" for reason, by_file in ordered)
    lists = "".join(
        f"\n## {reason[0].upper()}{reason[1:]}\n\n"
        + "".join(f"- `{file}`: {', '.join(f'`{n}`' for n in names)}\n" for file, names in by_file.items())
        for reason, by_file in ordered
    )
    return f"{head}\n| reason | tests |\n|---|---|\n{table}{lists}"


def main(argv: list[str]) -> int:
    if argv[:1] == ["--page"]:
        PAGE.write_text(page(argv[1:]), encoding="utf-8")
        return 0
    checkout, *rest = argv
    os.environ[CHECKOUT] = checkout
    if rest[:1] == ["-o"]:
        os.environ[OUT], rest = str(Path(rest[1]).resolve()), rest[2:]
    with tempfile.TemporaryDirectory() as folder:
        for file in Path(checkout, PEER).rglob("*"):
            if file.name.endswith(("_test.py", ".npz")):
                copy = Path(folder, "suite", file.relative_to(Path(checkout, PEER)))
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copy)
        chosen = [a for a in rest if a.startswith("suite")] or ["."]
        options = [a for a in rest if a not in chosen]
        os.chdir(folder)
        Path("pytest.ini").write_text("[pytest]\npython_files=*_test.py\n")
        return pytest.main(
            [
                "-p",
                "benchmarks.peer_suite",
                "--import-mode=importlib",
                "-q",
                "--no-header",
                "-W",
                "ignore",
                "--tb=short",
                "--continue-on-collection-errors",
                "-m",
                "not diagnostic",
                *options,
                *chosen,
            ]
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
