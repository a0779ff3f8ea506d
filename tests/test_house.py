"""The order of the house: who may import whom, what `import etrax` may load, what the sources may mention."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import etrax

SRC = Path(__file__).resolve().parents[1] / "src" / "etrax"

# A layer imports itself and the layers above it in this list.
LAYERS = [
    {"_compat", "_errors", "_install", "_machine", "_version"},
    {"compiler.ir", "compiler"},
    {"_arguments", "_sums"},
    {"compiler.primitives"},
    {"compiler.ops"},
    {"compiler.dataflow"},
    {"compiler.opened"},
    {"compiler.analysis", "compiler.fission"},
    {"runtime"},
    {"rules"},
    {"learn"},
]
# Leaves: the core loads none of them. The value is what a leaf may import besides itself (None: anything).
LEAVES = {
    "frontends": {"_compat", "_errors", "_install", "compiler.ir"},
    "nir": None,
    "nn": None,
    "viz": None,
    "testing": None,
    "graph": None,
    "train": None,
    "stateful": None,
    "compat": None,
    "cli": None,
    "tasks": None,
    "report": None,
    "rl": None,
    "artifact": None,
    "mesh": None,
    "meter": None,
}
# Every other module directly in src/etrax is the top level, which sees everything.
TOP = "top level"

JAX_INTERNALS = ("jax._src", "jax.extend", "jax.core")
KNOWS_JAX_INTERNALS = "_compat"

NOT_LOADED_BY_IMPORT = (
    "brainstate",
    "optax",
    "matplotlib",
    "flax",
    "equinox",
    "orbax",
    "rich",
    "nir",
    "h5py",
    "scipy.sparse",
)

# Who may know rules by name: themselves, and what users type.
NAME_RULES = {"rules", "cli", "compat"}

PAGE = 60
# Folders that hold what other libraries define and do not type: their modules, jaxprs and sparse matrices.
FOREIGN = ("frontends", "compiler/ir", "compiler/ops")

MACHINE_PATH = re.compile(r"(?<![\w./])/(?:home|root|tmp|work|mnt|opt|usr|var|Users)/|\b[A-Z]:\\\\?\w")

CORE = set().union(*LAYERS)
MAY_IMPORT = {name: set().union(*LAYERS[: i + 1]) for i, layer in enumerate(LAYERS) for name in layer}
MAY_IMPORT |= {leaf: allowed | {leaf} for leaf, allowed in LEAVES.items() if allowed is not None}


class Import(NamedTuple):
    """One imported name, absolute and dotted; `deferred` if it stands inside a function."""

    target: str
    line: int
    deferred: bool


def sources(root: Path) -> list[Path]:
    return sorted(root.rglob("*.py"))


def part_of(dotted: str, root: Path) -> str:
    """The layer, leaf or top level that the dotted name `etrax...` belongs to."""
    name, *rest = dotted.removeprefix(root.name).removeprefix(".").split(".")
    if rest and f"{name}.{rest[0]}" in CORE:
        return f"{name}.{rest[0]}"
    known = name in CORE or name in LEAVES
    return name if known or (name and (root / name / "__init__.py").is_file()) else TOP


def imports_of(path: Path, root: Path) -> Iterator[Import]:
    """Every import in a file; `from a import b` yields `a.b`, relative names are resolved."""
    package = [root.name, *path.relative_to(root).parent.parts]

    def visit(node: ast.AST, deferred: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, deferred) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, node.module] if node.module else base
            yield from (Import(".".join([*base, alias.name]), node.lineno, deferred) for alias in node.names)
        deferred = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, deferred)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), False)


def jax_attributes_of(path: Path) -> Iterator[tuple[str, int]]:
    """Every `jax.<name>` that is written out in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "jax":
            yield f"jax.{node.attr}", node.lineno


def owner(path: Path, root: Path) -> str:
    return part_of(".".join([root.name, *path.relative_to(root).with_suffix("").parts]), root)


def direction_violations(root: Path) -> list[str]:
    found = []
    for path in sources(root):
        here = owner(path, root)
        for target, line, deferred in imports_of(path, root):
            if target.split(".")[0] != root.name:
                continue
            there = part_of(target, root)
            from_core_to_leaf = here in CORE and there in LEAVES
            allowed = deferred if from_core_to_leaf else there in MAY_IMPORT.get(here, {there})
            if not allowed:
                found.append(f"{path.relative_to(root)}:{line}: {here} imports {target} ({there})")
    return found


def reaches_inside(root: Path) -> list[str]:
    """Imports of another folder's private modules: a folder is used by the names that its `__init__` gives."""
    found = []
    for path in sources(root):
        here = owner(path, root)
        for target, line, _ in imports_of(path, root):
            parts = target.split(".")
            there = part_of(target, root)
            inside = parts[1 + len(there.split(".")) : -1]
            if parts[0] == root.name and there != here and any(p.startswith("_") for p in inside):
                found.append(f"{path.relative_to(root)}:{line}: {here} imports {target}")
    return found


def internals_violations(root: Path) -> list[str]:
    found = []
    for path in sources(root):
        if owner(path, root) == KNOWS_JAX_INTERNALS:
            continue
        names = {(target, line) for target, line, _ in imports_of(path, root)} | set(jax_attributes_of(path))
        for name, line in sorted(names, key=lambda item: item[1]):
            if any(f"{name}.".startswith(f"{internal}.") for internal in JAX_INTERNALS):
                found.append(f"{path.relative_to(root)}:{line}: {name} (only {KNOWS_JAX_INTERNALS} may)")
    return found


def machine_paths(root: Path) -> list[str]:
    found = []
    for path in sorted(p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        text = path.read_text(encoding="utf-8", errors="ignore")
        for number, line in enumerate(text.splitlines(), start=1):
            if MACHINE_PATH.search(line):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    return found


def test_sources_are_found():
    assert SRC / "__init__.py" in sources(SRC)


def test_every_package_has_a_place():
    packages = {path.parent.name for path in SRC.glob("*/__init__.py")}
    assert packages <= CORE | set(LEAVES), "give the new package a place in LAYERS or LEAVES"


def nearest_readme(path: Path) -> Path | None:
    """The README of the innermost folder around a file that has one."""
    return next((r for folder in path.relative_to(SRC).parents if (r := SRC / folder / "README.md").is_file()), None)


def test_readmes_name_every_file():
    """In a folder that has one: by `_name` or `_name.py`."""
    described = {path: readme.read_text("utf-8") for path in sources(SRC) if (readme := nearest_readme(path))}
    files = {path: text for path, text in described.items() if path.stem != "__init__"}
    assert not [path for path, text in files.items() if not re.search(rf"`(\w+/)?{path.stem}(\.py)?`", text)]


def test_imports_go_one_way():
    assert not (found := direction_violations(SRC)), "\n".join(found)


def test_only_compat_knows_jax_internals():
    assert not (found := internals_violations(SRC)), "\n".join(found)


def test_import_is_lean():
    code = f"import sys, etrax; print(*[name for name in {NOT_LOADED_BY_IMPORT!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def test_no_machine_paths():
    assert not (found := machine_paths(SRC)), "\n".join(found)


def named_rules(root: Path) -> list[str]:
    """Where code depends on a rule by its name: what it asks of a rule is a field of `Rule`."""
    names, found = set(etrax.rules.RULES) - {"auto"}, []  # a window may be "auto" as well
    for path in sources(root):
        if owner(path, root) in NAME_RULES:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            of_rules = isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] in ("rules", "etrax")
            name = node.attr if of_rules else node.value if isinstance(node, ast.Constant) else None
            if isinstance(name, str) and name in names:
                found.append(f"{path.relative_to(root)}:{node.lineno}: {name}")
    return found


def long_functions(root: Path) -> list[str]:
    """Functions of more lines of code than fit on a page; docstrings, comments and empty lines do not count."""
    found = []
    for path in sources(root):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        described = {i for n in functions if ast.get_docstring(n) is not None for i in lines_of(n.body[0])}
        for n in functions:
            code = [i for i in lines_of(n) if i not in described and lines[i - 1].strip()]
            count = sum(not lines[i - 1].lstrip().startswith("#") for i in code)
            if count > PAGE:
                found.append(f"{path.relative_to(root)}:{n.lineno}: {n.name} has {count} lines of code")
    return found


def lines_of(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def untyped(folder: Path) -> float:
    """How often `Any` is written in a thousand lines."""
    text = "".join(path.read_text(encoding="utf-8") for path in sources(folder))
    return 1000 * len(re.findall(r"\bAny\b", text)) / len(text.splitlines())


def test_folders_are_used_by_their_public_names():
    assert not (found := reaches_inside(SRC)), "\n".join(found)


def test_rules_are_named_in_their_folder_alone():
    assert not (found := named_rules(SRC)), "\n".join(found)


def test_functions_fit_on_a_page():
    assert not (found := long_functions(SRC)), "\n".join(found)


@pytest.mark.parametrize(
    "folder",
    sorted(
        {
            path.parent.relative_to(SRC).as_posix()
            for path in (*SRC.glob("*/__init__.py"), *SRC.glob("compiler/*/__init__.py"))
        }
        - {*FOREIGN, "compiler"}
    ),
)
def test_types_say_something(folder):
    assert untyped(SRC / folder) < 30


def test_types_say_something_on_the_whole():
    assert untyped(SRC) < 30


# The checks themselves, on a small house with one file written for the case.


@pytest.fixture
def house(tmp_path):
    root = tmp_path / "etrax"
    stages = ("", "/ir", "/primitives", "/ops", "/dataflow", "/opened", "/analysis", "/fission")
    for package in ("", *(f"compiler{stage}" for stage in stages), "runtime", "learn", "frontends", "nn", "testing"):
        (root / package).mkdir(exist_ok=True)
        (root / package / "__init__.py").touch()
    for module in ("_compat", "_errors", "_compile"):
        (root / f"{module}.py").touch()
    return root


ALLOWED_IMPORTS = [
    ("__init__.py", "from ._compile import f as f"),
    ("_compile.py", "from . import frontends, learn"),
    ("compiler/ir/step.py", "from ... import _compat\nfrom ..._errors import E\nfrom .walk import walk"),
    ("compiler/ops/dot.py", "from ..ir import Step"),
    ("compiler/analysis/reach.py", "from ..primitives import record_of"),
    ("learn/snap.py", "import etrax.runtime.window\nfrom etrax import _errors"),
    ("learn/snap.py", "def f():\n    from ..testing import bptt"),
    ("frontends/function.py", "from ..compiler.ir.step import Step\nfrom . import shared"),
    ("testing/__init__.py", "from .. import _compile\nfrom .oracle import bptt"),
]
FORBIDDEN_IMPORTS = [
    ("_compat.py", "from .compiler.ir import Step"),
    ("compiler/ir/__init__.py", "from ..ops import dot"),
    ("compiler/ir/step.py", "def f():\n    from ... import runtime"),
    ("compiler/primitives/mixing.py", "from ..analysis import propagate"),
    ("compiler/ops/dot.py", "import etrax.compiler.analysis.reach"),
    ("compiler/opened/cut.py", "from ..analysis import Facts"),
    ("compiler/analysis/deep/reach.py", "from ....runtime.window import credit"),
    ("runtime/window.py", "if True:\n    from etrax.learn import snap"),
    ("learn/snap.py", "from etrax import compile"),
    ("learn/snap.py", "import etrax"),
    ("learn/snap.py", "from .._compile import f"),
    ("learn/snap.py", "from ..testing import bptt"),
    ("frontends/function.py", "def f():\n    from ..compiler import analysis"),
]


def write(house: Path, name: str, text: str) -> None:
    path = house / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("name", "text"), ALLOWED_IMPORTS)
def test_allowed_import(house, name, text):
    write(house, name, text)
    assert direction_violations(house) == []


@pytest.mark.parametrize(("name", "text"), FORBIDDEN_IMPORTS)
def test_forbidden_import(house, name, text):
    write(house, name, text)
    assert len(direction_violations(house)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import jax._src.core",
        "from jax._src import core",
        "from jax import core",
        "from jax.extend import core as jex",
        "from jax.extend.core import Jaxpr",
        "import jax\ndef f(x: jax.core.Tracer): ...",
    ],
)
def test_jax_internals_are_seen(house, text):
    write(house, "compiler/ir/step.py", text)
    assert len(internals_violations(house)) == 1
    (house / "compiler/ir/step.py").rename(house / "_compat.py")
    assert internals_violations(house) == []


def test_public_jax_is_no_internal(house):
    write(house, "compiler/ir/step.py", "import jax\nfrom jax import lax\nimport jax.numpy as jnp\nx = jax.core_count")
    assert internals_violations(house) == []


@pytest.mark.parametrize(("text", "seen"), [("# see /home/a/b", 1), (r"open('C:\data')", 1), ("# dh/dw in ir/step", 0)])
def test_machine_paths_are_seen(house, text, seen):
    write(house, "compiler/ir/step.py", text)
    assert len(machine_paths(house)) == seen


@pytest.mark.parametrize(("lines", "seen"), [(PAGE - 1, 0), (PAGE, 1)])
def test_long_functions_are_seen(house, lines, seen):
    text = "def f():\n" + '    """Words\n    and words."""\n    # why\n\n' + "    x = 1\n" * lines
    write(house, "compiler/ir/step.py", text)
    assert len(long_functions(house)) == seen


def test_any_is_counted(house):
    write(house, "compiler/ops/dot.py", "from typing import Any\nx: Any = 1\ny: int = 2\nAnything = 3\n")
    assert untyped(house / "compiler/ops") == 500


def test_every_error_is_public_and_of_one_family():
    """What is raised can be caught by name, and all of it by `etrax.EtraxError`."""
    folders = [etrax, *(importlib.import_module(f"etrax.{n}") for n in ("train", "rl", "tasks", "viz", "testing"))]
    public = {value for folder in folders for value in vars(folder).values() if isinstance(value, type)}
    found = set()
    for path in sources(SRC):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any("Error" in ast.unparse(base) for base in node.bases):
                name = ".".join(("etrax", *path.relative_to(SRC).with_suffix("").parts))
                found.add(getattr(importlib.import_module(name), node.name))
    own = {error for error in found if error is not etrax.EtraxError}
    assert all(issubclass(error, etrax.EtraxError) for error in own)
    assert not {error.__name__ for error in found - public}
