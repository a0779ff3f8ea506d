"""Every Python block of the README runs, in the default precision that a reader has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs(number):
    block = BLOCKS[number]
    if "brainstate" in block:
        pytest.importorskip("brainstate")
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Etrax report" in done.stdout


def test_there_are_blocks():
    assert len(BLOCKS) >= 2
