"""Install each extra alone into a fresh environment and run its tests there: `python .ci/extras.py [NAME ...]`.

What the tests themselves are written with is installed besides: pytest, and optax where an extra's tests train. A test
that is skipped for want of a package would hide that the extra lacks it, so that skips of that kind count as failures.
"""

import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ["pytest>=8.2", "pytest-timeout", "hypothesis"]


def faces(library: str) -> list[str]:
    """Tests of cells as modules of one library."""
    learns = "keeps" if library == "brainstate" else "learns_and_keeps"
    file = "tests/nn/test_faces.py"
    return [f"{file}::test_{library}", f"{file}::test_{library}_{learns}_its_names"]


# By extra: its tests, and what they are written with.
TESTS = {
    "brainstate": (
        ["tests/frontends/test_brainstate.py", "tests/nn/test_cells.py", "tests/nn/test_pure.py", *faces("brainstate")],
        [],
    ),
    "flax": (
        ["tests/frontends/test_flax.py", "tests/frontends/test_linen.py", "tests/stateful/test_nnx.py", *faces("nnx")],
        ["optax"],
    ),
    "equinox": (["tests/frontends/test_equinox.py", *faces("equinox")], ["optax"]),
    "export": (["tests/artifact/test_artifact.py"], ["optax"]),
    "brainpy": (
        [
            "tests/graph/test_brainpy.py",
            "tests/frontends/test_brainpy.py",
            "tests/stateful/test_brainstate.py",
            "tests/compat",
        ],
        ["optax"],
    ),
    "nir": (["tests/nir"], []),
    "train": (["tests/train/test_save.py", "tests/train/test_progress.py", "tests/rl"], []),
    "viz": (["tests/viz"], []),
    "tasks": (["tests/tasks"], []),
    "compare": (["tests/benchmarks/test_workloads.py"], []),
    "bench": (["tests/benchmarks/test_harness.py"], ["optax"]),
    "demo": (["tests/demo/test_model.py", "tests/demo/test_page.py"], ["scikit-learn"]),
}
WHOLE = {"test", "dev", "docs"}  # what `make test`, `make lint` and `make docs` install


def check(name: str, folder: Path) -> str:
    """What the tests of an extra said in their last line."""
    tests, more = TESTS[name]
    python = folder / "bin" / "python"
    wanted = [f"{ROOT}[{name}]", *TOOLS, *more]
    if shutil.which("uv"):
        subprocess.run(["uv", "venv", "-q", "--python", sys.executable, folder], check=True)
        subprocess.run(["uv", "pip", "install", "-q", "--python", python, *wanted], check=True)
    else:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-qq", *wanted], check=True)
    command = [python, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-rs", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
    lacking = [line for line in lines if line.startswith("SKIPPED") and "could not import" in line]
    if done.returncode or lacking:
        print("\n".join(lacking or lines[-40:]))
        return f"FAILED: {lines[-1]}"
    return lines[-1]


def main(names: list[str]) -> int:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    if unknown := extras - set(TESTS) - WHOLE or set(names) - set(TESTS):
        print(f"no tests are named for {', '.join(sorted(unknown))}")
        return 2
    found = {}
    for name in names or TESTS:
        with tempfile.TemporaryDirectory(prefix=f"etrax-{name}-") as folder:
            try:
                found[name] = check(name, Path(folder) / "venv")
            except subprocess.CalledProcessError as error:
                found[name] = f"FAILED: cannot be installed ({error})"
        print(f"{name:10s} {found[name]}", flush=True)
    return int(any(text.startswith("FAILED") for text in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
