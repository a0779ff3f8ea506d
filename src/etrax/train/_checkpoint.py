"""A run on disk, by orbax: the state at the end of the last finished epoch, and what the run was made of."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from .._errors import MissingPackageError
from ..ir import PyTree
from ._batch import Live
from ._lock import Lock
from ._records import Epoch
from ._stored import (
    META_BYTES,
    CheckpointError,
    check_arrays,
    check_files,
    damaged,
    digest,
    epochs_of,
    flush,
    room_for,
    shown,
)

FORMAT = 2
KEPT = 2  # where a disk loses the last one, the one before is there


@dataclass(frozen=True)
class Point:
    """A run between two epochs: all that the next one needs, since the order of its samples follows from its number."""

    live: Live
    best_params: PyTree
    best: int | None = None
    history: tuple[Epoch, ...] = ()

    @property
    def step(self) -> int:
        return self.history[-1].step if self.history else 0


class Saver:
    """Saves points in a directory, of which it is the only user while it is entered; the last two are kept.

    A point becomes visible by one rename, once all of it is written, and carries a digest of all that it holds: one
    that was cut short does not count, and one that was changed is refused. `settings` name what makes two runs the
    same: a checkpoint with others is refused.
    """

    def __init__(self, directory: str | Path, settings: Mapping[str, PyTree]):
        try:
            import orbax.checkpoint as ocp
        except ImportError as error:
            raise MissingPackageError(
                "`checkpoint=` needs orbax-checkpoint: install it with `pip install 'etrax[train]'`."
            ) from error
        self.ocp, self.directory, self.settings = ocp, Path(directory).resolve(), dict(settings)
        if self.directory.exists() and not self.directory.is_dir():
            raise CheckpointError(f"`checkpoint` is {str(directory)!r}, which is a file; expected a directory.")
        self._lock = Lock(self.directory)

    def __enter__(self) -> Saver:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock.take()
        except OSError as error:
            raise CheckpointError(
                f"`checkpoint` {str(self.directory)!r} cannot be written to ({error.strerror}); use another directory."
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _manager(self) -> PyTree:
        # Nobody else writes here, so what an earlier process left unfinished can go.
        options = self.ocp.CheckpointManagerOptions(
            max_to_keep=KEPT, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        return self.ocp.CheckpointManager(self.directory, options=options)

    def save(self, point: Point) -> None:
        ocp, arrays = self.ocp, _arrays(point)
        history = [{k: v for k, v in vars(e).items() if k != "params"} for e in point.history]
        meta = {"format": FORMAT, "run": self._run(point), "best": point.best, "history": history}
        meta["digest"] = digest(meta, arrays)
        number = len(history)
        try:
            with self._manager() as manager:
                args = ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), meta=ocp.args.JsonSave(meta))
                if not manager.save(number, args=args):
                    found = manager.latest_step()
                    raise CheckpointError(f"it holds epoch {found} already, which this run has not made")
            flush(self.directory / str(number))
        except Exception as error:  # orbax and tensorstore raise all kinds of errors
            self._clear(number)
            raise CheckpointError(
                f"epoch {number} could not be saved in {str(self.directory)!r}: {shown(_reason(error))}. What was "
                "saved before it is intact: make room there, and the same call goes on from that. The parameters are "
                "in `.result.last_params` of this error."
            ) from error

    def _clear(self, number: int) -> None:
        """Give back the room that a failed save took."""
        for left in self.directory.glob(f"{number}.*tmp*"):
            shutil.rmtree(left, ignore_errors=True)

    def load(self, like: Point) -> Point | None:
        """The last point, with the structure of `like`; None if there is none yet."""
        with self._manager() as manager:
            number = manager.latest_step()
            if number is None:
                return None
            step, arrays = self.directory / str(number), _arrays(like)
            check_files(step, META_BYTES, but="arrays")
            meta = self._restored(manager, step, meta=self.ocp.args.JsonRestore()).meta
            self._check(step, meta, like)
            check_files(step, room_for(arrays), step / "arrays")
            history = epochs_of(step, meta)
            if len(history) != number:
                raise damaged(step, f"its record is one of epoch {len(history)}")
            found = self._restored_arrays(manager, step, arrays)
        if digest(meta, found) != meta.get("digest"):
            raise damaged(step, "its content is not what was written")
        tree = _put_back(like, found)
        return Point(best_params=tree.pop("best_params"), live=Live(**tree), best=meta["best"], history=history)

    def _restored_arrays(self, manager: Any, step: Path, arrays: Mapping[str, PyTree]) -> dict[str, PyTree]:
        try:
            stored = self.ocp.StandardCheckpointHandler().metadata(step / "arrays").tree
        except Exception as error:
            raise damaged(step, f"its arrays cannot be read ({shown(_reason(error))})") from error
        check_arrays(step, stored, arrays)
        want = {k: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for k, a in arrays.items()}
        return self._restored(manager, step, arrays=self.ocp.args.StandardRestore(want)).arrays

    def _restored(self, manager: Any, step: Path, **items: Any) -> PyTree:
        try:
            return manager.restore(int(step.name), args=self.ocp.args.Composite(**items))
        except Exception as error:  # whatever orbax raises, the files are not those that were written
            raise damaged(step, f"it cannot be read ({shown(_reason(error))})") from error

    def _run(self, point: Point) -> dict[str, PyTree]:
        return {name: f"{a.dtype}{list(a.shape)}" for name, a in _leaves(point)} | self.settings

    def _check(self, step: Path, meta: PyTree, like: Point) -> None:
        if not isinstance(meta, dict) or not isinstance(meta.get("run"), dict):
            raise damaged(step, "it does not say what run it is of")
        if meta.get("format") != FORMAT:
            raise CheckpointError(f"`checkpoint` {str(self.directory)!r} was written by another version of Etrax.")
        was, now = meta["run"], self._run(like)
        wrong = [
            f"{shown(k)}: {shown(was.get(k, 'absent'))} there, {shown(now.get(k, 'absent'))} here"
            for k in {**was, **now}
            if was.get(k) != now.get(k)
        ]
        if wrong:
            lines = "\n".join(f"  {line}" for line in wrong[:8]) + ("\n  …" if len(wrong) > 8 else "")
            raise CheckpointError(
                f"`checkpoint` {str(self.directory)!r} holds another run than this one:\n{lines}\n"
                "Run with the settings it was made with, or use another directory."
            )


def _tree(point: Point) -> dict[str, PyTree]:
    return {**point.live._asdict(), "best_params": point.best_params}


def _leaves(point: Point) -> list[tuple[str, jax.Array]]:
    flat, _ = jax.tree_util.tree_flatten_with_path(_tree(point))
    return [(path[0].key + jax.tree_util.keystr(path[1:]), leaf) for path, leaf in flat]


def _is_key(a: jax.Array) -> bool:
    return jnp.issubdtype(a.dtype, jax.dtypes.prng_key)


def _arrays(point: Point) -> dict[str, PyTree]:
    """What is written, by number: names of a model are no names of files. Keys go as their numbers.

    Orbax takes no arrays of size zero.
    """
    leaves = [a for _, a in _leaves(point)]
    return {str(i): jax.random.key_data(a) if _is_key(a) else a for i, a in enumerate(leaves) if a.size}


def _put_back(like: Point, found: Mapping[str, PyTree]) -> dict[str, PyTree]:
    def value(name: str, a: jax.Array) -> PyTree:
        if name not in found:
            return a
        return jax.random.wrap_key_data(found[name], impl=jax.random.key_impl(a)) if _is_key(a) else found[name]

    tree = jax.tree.structure(_tree(like))
    return jax.tree.unflatten(tree, [value(str(i), a) for i, (_, a) in enumerate(_leaves(like))])


def _reason(error: Exception) -> str:
    """What went wrong, without the paths and tracebacks that the messages of orbax and tensorstore are made of."""
    code = re.search(r"os_error_code='(\d+)'", str(error))
    if code or (isinstance(error, OSError) and error.errno):
        return os.strerror(int(code[1]) if code else error.errno)  # type: ignore[attr-defined]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__
