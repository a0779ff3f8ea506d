"""What people are told is what was read and found good: `messages.txt` is written by `messages.py`."""

import os

from tests.bad_input.messages import FILE, MISTAKES, told, written


def test_messages_are_those_that_were_read():
    if os.environ.get("WRITE_MESSAGES"):
        FILE.write_text(written(), encoding="utf-8")
    read = dict(part.split("\n\n", 1) for part in FILE.read_text(encoding="utf-8").split("## ")[1:])
    assert read.keys() == MISTAKES.keys()
    for name, mistake in MISTAKES.items():
        assert told(mistake) == read[name].strip("\n"), name
