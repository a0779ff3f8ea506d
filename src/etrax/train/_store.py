"""Numbered trees of arrays in a directory, by orbax: written completely or not at all, used by one run at a time."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from .._arguments import check_path, foreign
from .._compat import is_extended
from .._errors import MissingPackageError
from .._install import install_advice
from ..compiler.ir import PyTree
from ._stored import META_BYTES, CheckpointError, check_arrays, check_files, damaged, digest, flush, room_for

if TYPE_CHECKING:
    from orbax.checkpoint import CheckpointManager

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

KEPT = 2  # where a disk loses the last one, the one before is there
Arrays = dict[str, jax.Array]


class _OrbaxSilence(logging.Filter):
    """Keeps what orbax logs from the user's terminal while a store works.

    What fails in a save or a restore is raised, and said by `CheckpointError`. Orbax also logs, with tracebacks, what
    its threads meet on the way and get over.
    """

    def __init__(self, package: Path):
        super().__init__()
        self.package = f"{package}{os.sep}"

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.pathname.startswith(self.package)


class Lock:
    """Lets one run at a time use a directory, from `take` to `release`.

    The system takes it back when the process ends, however that happens.
    """

    def __init__(self, directory: Path, argument: str = "checkpoint"):
        """`argument` is what the user calls the directory."""
        self.directory, self.argument, self.handle = directory, argument, -1

    def take(self) -> None:
        """Take it, or raise if another run has it. Of the processes of one run, the first takes it for all."""
        if fcntl is None or jax.process_index():
            return
        # A link that somebody put in its place is not followed, and programs that the process starts do not inherit it.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(self.directory / "lock", flags, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise CheckpointError(
                f"`{self.argument}` {str(self.directory)!r} is in use by another run. Wait until it has ended, or use "
                "another directory."
            ) from None
        self.handle = handle

    def release(self) -> None:
        """The file stays: a lock on a file that another process removed would guard nothing."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


class Store:
    """A directory of which it is the only user while it is entered; the last two trees are kept.

    A tree becomes visible by one rename, once all of it is written, and carries a digest of all that it holds: one
    that was cut short does not count, and one that was changed is refused. `argument` is what the user calls the
    directory.
    """

    def __init__(self, directory: str | Path, argument: str):
        try:
            import orbax.checkpoint as ocp
        except ImportError as error:
            raise MissingPackageError(
                f"`{argument}` needs orbax-checkpoint, which is not installed: {install_advice('train')}."
            ) from error
        self.ocp, self.argument, self.directory = ocp, argument, check_path(argument, directory).resolve()
        if self.directory.exists() and not self.directory.is_dir():
            raise CheckpointError(f"`{argument}` is {str(directory)!r}, which is a file; expected a directory.")
        self._lock = Lock(self.directory, argument)
        # Looked up after orbax is imported: absl, which it imports, replaces the logger of this name by a special one.
        self._log, self._silence = logging.getLogger("absl"), _OrbaxSilence(Path(ocp.__file__).parent)

    def __enter__(self) -> Store:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock.take()
            self._log.addFilter(self._silence)
        except OSError as error:
            raise CheckpointError(
                f"`{self.argument}` {str(self.directory)!r} cannot be written to ({error.strerror}); use another "
                "directory."
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._log.removeFilter(self._silence)
        self._lock.release()

    def _manager(self, writes: bool = False) -> CheckpointManager:
        self._check_all()
        # Nobody else writes here, so what an earlier process left unfinished can go. It goes in a thread, which only a
        # manager that writes waits for: that of another would take what the next one has begun.
        options = self.ocp.CheckpointManagerOptions(
            max_to_keep=KEPT, enable_async_checkpointing=False, cleanup_tmp_directories=writes
        )
        return self.ocp.CheckpointManager(self.directory, options=options)

    def _check_all(self) -> None:
        """No save is larger than one can be: a manager reads what every one of them says of itself."""
        for step in self.directory.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process of the same run removes old ones
                if step.name.isdigit():
                    check_files(step, META_BYTES, but="arrays")
                elif step.is_file() and step.stat().st_size > META_BYTES:
                    raise CheckpointError(f"{str(step)!r} is too large for a file beside checkpoints: remove it.")

    def latest(self) -> int | None:
        """The number of the last tree."""
        with self._manager() as manager:
            return manager.latest_step()

    def write(self, number: int, tree: object, meta: dict[str, object]) -> None:
        """Write a tree with its record; if it cannot be, the error says why and nothing of it is left."""
        ocp, arrays = self.ocp, _arrays(tree)
        meta["digest"] = digest(meta, arrays)
        try:
            with self._manager(writes=True) as manager:
                # Orbax takes no empty tree; one without arrays is a record alone.
                items = {"arrays": ocp.args.StandardSave(arrays)} if arrays else {}
                if not manager.save(number, args=ocp.args.Composite(**items, meta=ocp.args.JsonSave(meta))):
                    raise CheckpointError(f"it holds {manager.latest_step()} already, which was not made here")
            flush(self.directory / str(number))
        except Exception as error:  # orbax and tensorstore raise all kinds of errors
            for unfinished in self.directory.glob(f"{number}.*tmp*"):  # give back the room that it took
                shutil.rmtree(unfinished, ignore_errors=True)
            raise CheckpointError(foreign(_reason(error))) from error

    def read(self, like: object, check: Callable[[Path, object], None]) -> tuple[int, dict[str, PyTree], PyTree] | None:
        """The last tree, with the structure of `like`, and its record; None if there is none yet.

        `check(step, meta)` raises for a record of something else, before any array is read.
        """
        with self._manager() as manager:
            number = manager.latest_step()
            if number is None:
                return None
            step, arrays = self.directory / str(number), _arrays(like)
            meta = self._restored(manager, step, meta=self.ocp.args.JsonRestore()).meta
            check(step, meta)
            stored = self._restored_arrays(manager, step, arrays) if arrays else {}
        if digest(meta, stored) != meta.get("digest"):
            raise damaged(step, "its content is not what was written")
        return number, meta, _put_back(like, stored)

    def _restored_arrays(self, manager: CheckpointManager, step: Path, arrays: Arrays) -> Arrays:
        if not (step / "arrays").is_dir():
            raise damaged(step, "it holds no arrays")
        check_files(step, room_for(arrays), step / "arrays")
        try:
            stored = self.ocp.StandardCheckpointHandler().metadata(step / "arrays").tree
        except Exception as error:
            raise damaged(step, f"its arrays cannot be read ({foreign(_reason(error))})") from error
        check_arrays(step, stored, arrays)
        structs = {k: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for k, a in arrays.items()}
        return self._restored(manager, step, arrays=self.ocp.args.StandardRestore(structs)).arrays

    def _restored(self, manager: CheckpointManager, step: Path, **items: object) -> PyTree:
        try:
            return manager.restore(int(step.name), args=self.ocp.args.Composite(**items))
        except Exception as error:  # whatever orbax raises, the files are not those that were written
            raise damaged(step, f"it cannot be read ({foreign(_reason(error))})") from error


def shapes_of(tree: Mapping[str, object]) -> dict[str, str]:
    """The type and shape of every leaf of a dictionary of trees, by its name, as a record says them."""
    flat, _ = jax.tree_util.tree_flatten_with_path(dict(tree))
    return {path[0].key + jax.tree_util.keystr(path[1:]): f"{a.dtype}{list(a.shape)}" for path, a in flat}


def _arrays(tree: object) -> Arrays:
    """What is written, by number: names in a model need not be legal names of files. Keys are written as their numbers.

    Orbax takes no arrays of size zero.
    """
    leaves = jax.tree.leaves(tree)
    return {str(i): jax.random.key_data(a) if is_extended(a) else a for i, a in enumerate(leaves) if a.size}


def _put_back(like: object, stored: Arrays) -> PyTree:
    """The tree `like` with the stored arrays in place of its own; those of size zero were not stored."""

    def value(name: str, a: jax.Array) -> jax.Array:
        if name not in stored:
            return a
        return jax.random.wrap_key_data(stored[name], impl=jax.random.key_impl(a)) if is_extended(a) else stored[name]

    leaves, tree = jax.tree.flatten(like)
    return jax.tree.unflatten(tree, [value(str(i), a) for i, a in enumerate(leaves)])


def _reason(error: Exception) -> str:
    """What went wrong, without the paths and tracebacks that the messages of orbax and tensorstore are made of."""
    code = re.search(r"os_error_code='(\d+)'", str(error))
    if code or (isinstance(error, OSError) and error.errno):
        return os.strerror(int(code[1]) if code else error.errno)  # type: ignore[attr-defined]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__
