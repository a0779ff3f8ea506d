"""What is in `dist/`, looked at before it is published: its files, and the README's example in an empty environment.

python .ci/release.py contents
PYTHON .ci/release.py example          # PYTHON is that of an environment with the wheel and nothing else
"""

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_OURS = re.compile(r"(^|/)(__pycache__|\.venv|\.git|\.pytest_cache|build|dist|site|out|node_modules)(/|$)|\.pyc$")
NEEDED = ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "src/etrax/py.typed", "src/etrax/report/page.css")


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
    """Whether the README's first block runs with what `pip install etrax` brings."""
    block = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0]
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run([sys.executable, "-c", block], cwd=directory, capture_output=True, text=True)
    return [] if done.returncode == 0 and "exact" in done.stdout else [done.stderr or done.stdout]


if __name__ == "__main__":
    found = {"contents": contents, "example": example}[sys.argv[1]]()
    print("\n".join(found) or f"{sys.argv[1]}: fine")
    sys.exit(bool(found))
