"""Tests of what large models do differently, on small ones: the thresholds of the machine are lowered."""

from dataclasses import replace

from etrax._machine import MACHINES


def set_machine(monkeypatch, **thresholds):
    """Compile for a CPU with other thresholds."""
    monkeypatch.setitem(MACHINES, "cpu", replace(MACHINES["cpu"], **thresholds))


def write_out_everything(monkeypatch):
    set_machine(monkeypatch, unrolled_product_bytes=0, unrolled_sums=((0, 64),), copied_size=0)
