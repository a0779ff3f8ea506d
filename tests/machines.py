"""Tests of what large models do differently, on small ones: the thresholds of the machine are lowered."""

from dataclasses import replace

from etrax import _machine


def set_machine(monkeypatch, **thresholds):
    """Compile for a CPU with other thresholds."""
    monkeypatch.setattr(_machine, "CPU", replace(_machine.CPU, **thresholds))


def write_out_everything(monkeypatch):
    set_machine(monkeypatch, unrolled_product_bytes=0, unrolled_sums=((0, 64),), copied_size=0)
