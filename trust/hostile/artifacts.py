"""Artifacts: archives that were damaged, that lie under a right digest, or that unpack to much."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import etrax
from etrax.artifact._file import MANIFEST, PROGRAM, sealed

from .damage import EVIL, Rng, changed, damaged

CALLED = 0.03  # share of the accepted files whose program is run: it is compiled anew for each


def _step(p: Any, h: Any, x: Any) -> tuple[Any, Any]:
    h = 0.9 * h + jnp.tanh(x @ p["w"] + p["b"])
    return h, {"out": h @ p["out"], "rates": (h,)}


def _loss(output: Any, target: Any) -> Any:
    return jnp.mean((output["out"] - target) ** 2)


class Artifacts:
    """Made from one right file; a file that is accepted must say, and compute, what that one does."""

    def __init__(self, place: Path):
        params = {"w": jnp.ones((3, 4)), "b": jnp.zeros(4), "out": jnp.ones((4, 2))}
        learner = etrax.compile(_step, "d_rtrl", jnp.ones(3), params=params, hidden=jnp.zeros(4))
        optimizer = optax.adam(0.1)
        self.file = place / "file.etrax"
        learner.export(self.file, optimizer, _loss, target=jnp.zeros(2))
        self.data = self.file.read_bytes()
        with zipfile.ZipFile(self.file) as archive:
            self.program = archive.read(PROGRAM)
        self.manifest = etrax.load(self.file).manifest
        self.given = (params, optimizer.init(params), learner.init(), jnp.ones(3), jnp.zeros(2))
        self.right = jax.tree.leaves(etrax.load(self.file)(*self.given))

    @cached_property
    def bomb(self) -> bytes:
        """200 MB of zeros, packed."""
        return zlib.compress(bytes(200 << 20), 9)

    def attempt(self, rng: Rng) -> tuple[str, Callable[[], str | None]]:
        kinds: list[tuple[float, Callable[[Rng], tuple[str, bytes]]]] = [
            (0.45, lambda rng: damaged(rng, self.data)), (0.35, self._lying), (0.1, self._archive),
            (0.1, self._program),
        ]  # fmt: skip
        pick = int(rng.choice(len(kinds), p=[p for p, _ in kinds]))
        what, data = kinds[pick][1](rng)
        self.file.write_bytes(data)
        run = pick < 3 and rng.random() < CALLED
        return what, lambda: self._judge(pick != 3, run)

    def _packed(self, manifest: Any, program: bytes, **options: Any) -> bytes:
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w", **options) as archive:
            archive.writestr(MANIFEST, manifest if isinstance(manifest, bytes) else json.dumps(manifest))
            archive.writestr(PROGRAM, program)
        return held.getvalue()

    def _lying(self, rng: Rng) -> tuple[str, bytes]:
        """Another manifest; most of them under a digest that is right."""
        found = changed(rng, {k: v for k, v in self.manifest.items() if k != "sha256"})
        if isinstance(found, dict) and rng.random() < 0.9:
            found = sealed(found, self.program)
        return "a manifest that lies", self._packed(found, self.program)

    def _program(self, rng: Rng) -> tuple[str, bytes]:
        """Another program under a digest that is right; it is read, and not run."""
        what, program = damaged(rng, self.program)
        found = sealed({**self.manifest, "bytes": self.manifest["bytes"] | {"program": len(program)}}, program)
        return f"a program with {what}", self._packed(found, program)

    def _archive(self, rng: Rng) -> tuple[str, bytes]:
        text = json.dumps(self.manifest).encode()
        made: dict[str, Callable[[], bytes]] = {
            "packed members": lambda: self._packed(self.manifest, self.program, compression=zipfile.ZIP_DEFLATED),
            "packed by lzma": lambda: self._packed(self.manifest, self.program, compression=zipfile.ZIP_LZMA),
            "packed by bzip2": lambda: self._packed(self.manifest, self.program, compression=zipfile.ZIP_BZIP2),
            "a bomb": lambda: _deflated({MANIFEST: zlib.compress(text), PROGRAM: self.bomb}, 200 << 20),
            "a bomb for a manifest": lambda: _deflated({MANIFEST: self.bomb, PROGRAM: zlib.compress(b"")}, 200 << 20),
            "brackets": lambda: self._packed(b"[" * int(rng.integers(1, 1 << 20)), self.program),
            "digits": lambda: self._packed(b'{"format": ' + b"9" * int(rng.integers(1, 1 << 20)) + b"}", b""),
            "no text": lambda: self._packed(bytes(rng.bytes(200)), self.program),
            "other names": lambda: _named([f"../../{MANIFEST}", PROGRAM]),
            "names twice": lambda: _named([MANIFEST, MANIFEST, PROGRAM]),
            "names that terminals obey": lambda: _named([EVIL, PROGRAM]),
            "many members": lambda: _named([str(i) for i in range(int(rng.integers(1, 5000)))]),
        }
        name = str(rng.choice(list(made)))
        return name, made[name]()

    def _judge(self, same: bool, run: bool) -> str | None:
        found = etrax.load(self.file)
        repr(found)
        if not same:  # whoever writes a whole program may write another
            return None
        if {**found.manifest, "sha256": ""} != {**self.manifest, "sha256": ""} and not _harmless(found.manifest):
            return "another manifest was taken"
        if run:
            outs = jax.tree.leaves(found(*self.given))
            if len(outs) != len(self.right) or any(map(_differ, outs, self.right)):
                return "other numbers"
        return None


def _harmless(manifest: dict[str, Any]) -> bool:
    """Fields that only tell (rule, verdicts, versions, sizes, names) may say what they like, in their own types."""
    return all(isinstance(v, str) for v in manifest["versions"].values()) and isinstance(manifest["rule"], str)


def _differ(a: Any, b: Any) -> bool:
    return np.asarray(a).tobytes() != np.asarray(b).tobytes()


def _named(names: list[str]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name in dict.fromkeys(names):
            archive.writestr(name, b"{}")
    data = held.getvalue()
    return data if len(set(names)) == len(names) else data.replace(PROGRAM.encode(), MANIFEST.ljust(16, "x").encode())


def _deflated(members: dict[str, bytes], size: int) -> bytes:
    """An archive of members that are deflated already: their bytes go in as they are, and the headers name a size."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data[2:-4])
        for member in archive.infolist():
            member.compress_type, member.file_size = zipfile.ZIP_DEFLATED, size
    return held.getvalue()
