"""Checkpoints: directories of `etrax.save` and of a training run, each file damaged, replaced, linked, or lying."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import etrax
from etrax.train._stored import digest

from .. import runs
from .damage import EVIL, Rng, changed, damaged

EPOCHS = 2
META = Path("meta") / "metadata"


def _files(step: Path) -> list[Path]:
    return sorted(p for p in step.rglob("*") if p.is_file() and not p.is_symlink())


class _Directory:
    """A right directory, of which every attempt is a copy with something wrong in its last save."""

    def __init__(self, place: Path, last: str):
        self.whole, self.broken, self.last = place / "whole", place / "broken", last

    def attempt(self, rng: Rng) -> tuple[str, Callable[[], str | None]]:
        shutil.rmtree(self.broken, ignore_errors=True)
        shutil.copytree(self.whole, self.broken, symlinks=True)
        acts = {
            "bytes": self._bytes, "record": self._record, "link": self._link, "files": self._entries,
            "places": self._steps, "sizes": self._sizes,
        }  # fmt: skip
        name = str(rng.choice(list(acts), p=[0.5, 0.25, 0.05, 0.08, 0.07, 0.05]))
        return f"{name}: {acts[name](rng, self.broken / self.last)}", self.judge

    def judge(self) -> str | None:
        raise NotImplementedError

    def arrays(self) -> dict[str, Any]:
        """The arrays as they are stored."""
        raise NotImplementedError

    def _bytes(self, rng: Rng, step: Path) -> str:
        files = _files(step)
        path = files[int(rng.integers(len(files)))]
        what, data = damaged(rng, path.read_bytes())
        path.write_bytes(data)
        return f"{path.relative_to(step)}, {what}"

    def _record(self, rng: Rng, step: Path) -> str:
        """What the save says of itself, changed; half of them under a digest that is right."""
        meta = json.loads((step / META).read_text())
        found = changed(rng, {k: v for k, v in meta.items() if k != "digest"})
        sealed = isinstance(found, dict) and rng.random() < 0.5
        if isinstance(found, dict):
            found["digest"] = digest(found, self.arrays()) if sealed else meta["digest"]
        (step / META).write_text(json.dumps(found))
        return "lies under a right digest" if sealed else "lies"

    def _link(self, rng: Rng, step: Path) -> str:
        options = [*_files(step), step / "arrays", step / "meta", step]
        path = options[int(rng.integers(len(options)))]
        outside = self.broken.with_name("outside")
        shutil.rmtree(outside, ignore_errors=True)
        path.rename(outside) if path.is_dir() else (outside.mkdir(), path.rename(outside / "file"))
        path.symlink_to(outside if path == step or not (outside / "file").is_file() else outside / "file")
        return str(path.relative_to(self.broken))

    def _entries(self, rng: Rng, step: Path) -> str:
        act = int(rng.integers(5))
        if act == 0:
            path = _files(step)[int(rng.integers(len(_files(step))))]
            path.unlink()
        elif act == 1:
            shutil.rmtree(step / str(rng.choice(["arrays", "meta"])))
        elif act == 2:
            os.mkfifo(step / "arrays" / "pipe")
        elif act == 3:
            path = _files(step)[int(rng.integers(len(_files(step))))]
            path.unlink()
            path.mkdir()
        else:
            for path in _files(step):
                path.write_bytes(b"")
        return ("a file is gone", "a folder is gone", "a pipe", "a folder for a file", "all files empty")[act]

    def _steps(self, rng: Rng, step: Path) -> str:
        """Other entries beside the saves."""
        name = str(
            rng.choice(["99999999999999999999999", "-1", "\u0663", "1e3", "0x5", EVIL, "7", "3.orbax-checkpoint-tmp"])
        )
        if rng.random() < 0.2:
            name = str(rng.choice(["metadata", "_CHECKPOINT_METADATA", "_ROOT_METADATA", "descriptor", "lock"]))
            (self.broken / name).touch()
            os.truncate(self.broken / name, 1 << int(rng.integers(30, 44)))
            return f"{name} beside them is huge"
        act = int(rng.integers(3))
        place = self.broken / name
        if place.exists():
            return "there already"
        if act == 0:
            place.mkdir()
        elif act == 1:
            place.write_bytes(rng.bytes(100))
        else:
            shutil.copytree(step, place)
        return f"{name!a} as {('a folder', 'a file', 'a copy')[act]}"

    def _sizes(self, rng: Rng, step: Path) -> str:
        files = _files(step)
        path = files[int(rng.integers(len(files)))]
        os.truncate(path, 1 << int(rng.integers(30, 44)))
        return f"{path.relative_to(step)} is huge"


class Saves(_Directory):
    """`etrax.restore`: what was saved, bit for bit, or words."""

    def __init__(self, place: Path):
        super().__init__(place / "saves", "0")
        self.tree = {"w": jnp.arange(600.0).reshape(20, 30), "key": jax.random.key(1), "n": jnp.zeros((), jnp.int32)}
        etrax.save(self.whole, params=self.tree)
        self.bits = runs.bits(self._plain(self.tree))

    def _plain(self, tree: Any) -> Any:
        return {**tree, "key": jax.random.key_data(tree["key"])}

    def arrays(self) -> dict[str, Any]:
        leaves = jax.tree.leaves({"params": self._plain(self.tree)})
        return {str(i): a for i, a in enumerate(leaves)}

    def judge(self) -> str | None:
        found = etrax.restore(self.broken, like={"params": self.tree})["params"]
        return None if runs.bits(self._plain(found)) == self.bits else "other numbers"


class Runs(_Directory):
    """`Trainer.fit(checkpoint=)` of a run that has ended: its result, bit for bit, or words."""

    def __init__(self, place: Path):
        super().__init__(place / "runs", str(EPOCHS))
        self.trainer = runs.make_trainer()
        result = runs.fit(self.trainer, 0, EPOCHS, self.whole)
        self.result = result

    def arrays(self) -> dict[str, Any]:
        tree = {
            "params": self.result.last_params,
            "opt_state": self.result.opt_state,
            "learned": (),
            "best_params": None,
        }
        return {str(i): a for i, a in enumerate(jax.tree.leaves(tree))}

    def judge(self) -> str | None:
        found = runs.fit(self.trainer, 0, EPOCHS, self.broken)
        if runs.bits((found.params, found.opt_state)) != runs.bits((self.result.params, self.result.opt_state)):
            return "other parameters"
        told = all(isinstance(v, float) for e in found.history for v in e.metrics.values())
        return None if told and len(found.history) == EPOCHS else "another history"
