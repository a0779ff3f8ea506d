"""Every Python block of the README runs, in the default precision that a reader has, and prints what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
TEXT = README.read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
PRINTED = re.findall(r"```text\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs(number, tmp_path):
    block = BLOCKS[number]
    if "brainstate" in block:
        pytest.importorskip("brainstate")
    (tmp_path / "first.py").write_text(block)
    command = [sys.executable, "first.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Etrax report" in done.stdout
    if number == 0:
        assert done.stdout.startswith(PRINTED[0].rstrip()), done.stdout


def test_there_are_blocks():
    assert len(BLOCKS) >= 2 and len(PRINTED) >= 1
