"""What is shown: a line per epoch in a file, a bar on a terminal, nothing if not wanted."""

import io
import re
import sys

from tests.train.common import class_trainer, classes

from etrax.train import _progress

VALUES = r"loss [\d.]+  val_loss [\d.]+  val_accuracy [\d.]+"
LINE = r"epoch {}/2  " + VALUES + r"  [\d,]+ samples/s  [\d,]+ MB  [\d.]+ m?s an epoch{}"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, stream, **options):
    monkeypatch.setattr(sys, "stdout", stream)
    class_trainer().fit(classes(), 2, validation=classes(), **options)
    return stream.getvalue()


def test_line_per_epoch(monkeypatch):
    lines = shown(monkeypatch, io.StringIO()).splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r"all 2 epochs done; the best val_loss is that of epoch \d", lines[2])
    assert re.fullmatch(LINE.format(1, r"  [\d.]+ m?s left"), lines[0]) and re.fullmatch(LINE.format(2, ""), lines[1])


def test_silent(monkeypatch):
    assert shown(monkeypatch, io.StringIO(), progress=False) == ""


def test_bar_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown(monkeypatch, Terminal()))
    for epoch, end in ((1, r"  [\d.]+ m?s left"), (2, "")):
        assert re.search(LINE.format(epoch, end), text)
    assert re.search(r"epoch 2/2 ━+.* batch 3/3  loss [\d.]+  [\d,]+ samples/s  [\d,]+ MB", text)


def test_lines_on_a_terminal_without_rich(monkeypatch):
    monkeypatch.setattr(_progress, "find_spec", lambda name: None)
    text = shown(monkeypatch, Terminal())
    assert "\x1b" not in text and len(text.splitlines()) == 3


def test_duration():
    want = {0.04: "40 ms", 0.9996: "1.0 s", 59.96: "1 min 0 s", 3599.7: "1 h 0 min"}
    assert {seconds: _progress.duration(seconds) for seconds in want} == want


def test_memory_is_that_of_the_process():
    before, held = _progress.resident_memory(), bytearray(200 * 2**20)
    held[::4096] = b"x" * len(held[::4096])
    number = lambda shown: int(shown.split()[0].replace(",", ""))
    assert number(_progress.resident_memory()) - number(before) > 150
