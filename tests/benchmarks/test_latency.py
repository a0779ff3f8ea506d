"""The benchmark of latency runs on tiny sizes: every way gives the losses of the step by hand, or `measure` raises."""

import jax
import pytest

from benchmarks import latency


def test_every_way_learns_the_same(capsys, monkeypatch):
    pytest.importorskip("flatbuffers")
    monkeypatch.setattr(latency, "TURN", 5)
    with jax.enable_x64(False):
        assert latency.main(["--samples", "10", "--sizes", "4x3"]) == 0
    table = capsys.readouterr().out
    assert all(f"  {name} " in table for name in (latency.BY_HAND, *latency.BARS, "artifact"))
