"""Configs of `etrax train`: every key with nonsense, sections that are none, bytes that are no TOML."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etrax import ArgumentError
from etrax.cli import _config, _limits, main
from etrax.tasks import _shared

from .damage import Rng, damaged

BASE: dict[str, dict[str, str]] = {
    "data": {"task": '"copy"', "size": "20", "key": "0", "length": "1", "delay": "2", "test": "0.2"},
    "model": {"cell": '"MiniGRU"', "neurons": "4"},
    "rule": {"name": '"d_rtrl"'},
    "optimizer": {"name": '"adam"', "learning_rate": "0.003"},
    "training": {"window": "2", "epochs": "1", "batch": "4", "seed": "0", "directory": '"run"'},
}
MORE = {
    "data": ("symbols", "steps", "rate", "cue", "channels", "hold", "order", "extra"),
    "model": ("activation", "name", "n_in", "tau", "extra"),
    "rule": ("decay", "kappa", "feedback", "key", "n", "fan_out", "hops", "rules", "credit"),
    "optimizer": ("b1", "b2", "eps", "mu_dtype", "nesterov", "weight_decay", "mask", "momentum"),
    "training": ("extra",), "mesh": ("shape", "axes", "shard"), "nodel": ("a",),
}  # fmt: skip
NAMES = {
    "task": ("integrator", "delayed_match", "short_evidence", "small_digits", "spoken_digits"), "cell": _config.CELLS,
    "name": (*_config.OPTIMIZERS, "tbptt", "e_prop", "pp_prop", "snap", "uoro", "partition", "rtrl", "ottt"),
}  # fmt: skip
VALUES = (
    "nan", "-inf", "0", "-1", "1", "2.5", "true", '""', '"  "', '"x"', '"\\u001b[2J\\u202e"', '"\\u0000"', "[]",
    "[1, 2]",
    "{a = 1}", "2024-01-01", "1e400", "1e308", "99999999999999999999", "1000000000000", "9" * 400, "3000000",
    "2147483647", "-9223372036854775808", "0x7fffffffffffffff", '["a", "a"]', '["batch"]', '"batch"', "[[[[[]]]]]",
    '"../x"', "1e-320",
)  # fmt: skip
BUDGET = 256 << 20  # bytes that data and network may take: more is a config's good right on a machine that has it
COMPILED = 0.01  # share of the configs that fit whose learner is compiled and whose run begins


class _Fits(BaseException):
    """The config was taken, up to the compiler."""


class Configs:
    """A config is refused in words with exit code 2, or taken."""

    def __init__(self, place: Path):
        os.chdir(place)
        _shared.default_budget = _limits.default_budget = lambda: float(BUDGET)
        self.file, self.compile = place / "file.toml", _config.compile_learner

    def attempt(self, rng: Rng) -> tuple[str, Callable[[], str | None]]:
        run = rng.random() < COMPILED
        if rng.random() < 0.25:
            what, data = damaged(rng, _text(BASE).encode())
            self.file.write_bytes(data)
            return what, lambda: self._judge(run)
        found = {name: dict(section) for name, section in BASE.items()}
        changes = []
        for _ in range(int(rng.integers(1, 3))):
            section = str(rng.choice([*BASE, *MORE]))
            keys = [*BASE.get(section, ()), *MORE.get(section, ())]
            key = str(rng.choice(keys))
            choice = [f'"{n}"' for n in NAMES.get(key, ())] if rng.random() < 0.5 else []
            new = str(rng.choice(choice or list(VALUES)))
            found.setdefault(section, {})[key] = new
            changes.append(f"{section}.{key} = {new}")
        self.file.write_text(_text(found), encoding="utf-8")
        return "; ".join(changes), lambda: self._judge(run)

    def _judge(self, run: bool) -> str | None:
        out, err = io.StringIO(), io.StringIO()
        _config.compile_learner = self.compile if run else _refuse
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main(["train", str(self.file)])
        except _Fits:
            return None
        finally:
            _config.compile_learner = self.compile
        text = out.getvalue() + err.getvalue()
        if re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text):
            return "what a terminal obeys was printed"
        if code == 2 and ("Run it again with --debug" in text or not text.startswith("etrax: ")):
            return f"leaked: {text[:300]}"
        if code == 2:
            raise ArgumentError(text)  # counted as words
        return None if code == 0 else f"exit code {code}"


def _refuse(*_: Any, **__: Any) -> Any:
    raise _Fits


def _text(sections: dict[str, dict[str, str]]) -> str:
    return "\n".join(f"[{n}]\n" + "\n".join(f"{k} = {v}" for k, v in keys.items()) for n, keys in sections.items())
