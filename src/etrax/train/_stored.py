"""The content of a checkpoint directory is data from elsewhere: it is compared with what is expected before use."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from .._arguments import foreign
from .._errors import EtraxError
from ..compiler.ir import digest_of, leaves_with_paths
from ._records import Epoch

META_BYTES = 64 << 20  # the record of a run: some hundred bytes per epoch
ARRAY_BYTES = 64 << 10  # what the format adds to each array


class CheckpointError(EtraxError, ValueError):
    """A checkpoint that is damaged, in use, cannot be written, or belongs to a different run.

    `result` holds what the run had reached, where there was a run; None otherwise.
    """

    result: object = None


def damaged(step: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {str(step)!r} is damaged: {why}. Remove that directory to continue from the epoch saved "
        "before it, or all of its parent to begin anew."
    )


def check_files(step: Path, allowed: int, part: Path | None = None, but: str | None = None) -> None:
    """Regular files and directories only, so that nothing outside is read, and no more bytes than allowed.

    Of the whole step or a part of it; `but` names a directory in it that is left out.
    """
    pending, total = [part or step], 0
    if step.is_symlink() or step.is_file():
        raise damaged(step, "it is a link" if step.is_symlink() else "it is not a directory")
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending += [] if entry.name == but else [Path(entry.path)]
                elif entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
                else:
                    raise damaged(step, f"{foreign(entry.name)!r} in it is neither a file nor a directory")
                if total > allowed:
                    raise damaged(step, f"it holds more than {allowed:,} bytes, which is more than this run can have")


def room_for(arrays: Mapping[str, jax.Array]) -> int:
    """What a checkpoint of these arrays may take at most."""
    return 2 * sum(a.nbytes + ARRAY_BYTES for a in arrays.values())


def check_arrays(step: Path, stored: Mapping[str, object], expected: Mapping[str, jax.Array]) -> None:
    """Shapes, types and chunks as stored, before memory is taken for any of them."""
    if set(stored) != set(expected):
        raise damaged(step, f"it holds {len(stored)} arrays where {len(expected)} are expected, or under other names")
    for name, a in expected.items():
        shape, dtype = getattr(stored[name], "shape", None), getattr(stored[name], "dtype", None)
        chunks = getattr(getattr(stored[name], "storage", None), "chunk_shape", None) or ()
        if shape is None or tuple(shape) != a.shape or dtype != a.dtype:
            raise damaged(step, f"array {name} is {dtype}{shape}, its record says {a.dtype}{list(a.shape)}")
        if any(c > max(n, 1) for c, n in zip(chunks, a.shape, strict=True)):
            raise damaged(step, f"array {name} of shape {list(a.shape)} is stored in chunks of {list(chunks)}")


def digest(meta: Mapping[str, object], arrays: Mapping[str, jax.Array]) -> str:
    """SHA-256 of all that a checkpoint says, array for array and bit for bit."""
    plain = json.loads(json.dumps({k: v for k, v in meta.items() if k != "digest"}))
    total = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for name in sorted(arrays):
        value = np.asarray(_gathered(arrays[name]))
        total.update(f"{name} {value.dtype} {value.shape}".encode())
        total.update(np.ascontiguousarray(value).tobytes())
    return total.hexdigest()


def digest_of_values(tree: object) -> str:
    """What a record of a run says of the numbers of a tree."""
    return f"digest {digest_of([(path, _gathered(a)) for path, a in leaves_with_paths(tree)])}"


def _gathered(a: jax.Array) -> jax.Array | np.ndarray:
    """All of an array, of which other processes may have parts."""
    if not isinstance(a, jax.Array) or a.is_fully_addressable or a.is_fully_replicated:
        return a
    from jax.experimental.multihost_utils import process_allgather

    return process_allgather(a, tiled=True)


def flush(step: Path) -> None:
    """Bring a checkpoint to the disk itself, so that it outlives a loss of power."""
    for directory, _, files in os.walk(step):
        for name in (*files, "."):  # the directory too: it says under which names the files are found
            handle = os.open(Path(directory) / name, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def epochs_of(step: Path, meta: Mapping[str, object]) -> tuple[Epoch, ...]:
    """The records of the finished epochs, each field of the type that it must have."""
    history = meta.get("history")
    if not isinstance(history, list) or not history:
        raise damaged(step, "it has no history")
    epochs: list[Epoch] = []
    for number, e in enumerate(history, start=1):
        try:
            metrics = {str(k): float(v) for k, v in e["metrics"].items()}
            cosines = {str(k): _three(v) for k, v in e.get("cosines", {}).items()}
            record = Epoch(
                int(e["epoch"]),
                int(e["step"]),
                metrics,
                float(e["seconds"]),
                float(e["samples_per_second"]),
                int(e.get("updates", 0)),
                int(e.get("samples", 0)),
                cosines=cosines,
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise damaged(step, f"its record of epoch {number} cannot be read") from error
        if record.epoch != number:
            raise damaged(step, f"its record of epoch {number} is one of epoch {record.epoch}")
        epochs.append(record)
    best = meta.get("best")
    if best is not None and not (type(best) is int and 1 <= best <= len(epochs)):
        raise damaged(step, f"its best epoch is {foreign(best)} of {len(epochs)}")
    return tuple(epochs)


def _three(values: Sequence[object]) -> tuple[float, float, float]:
    """A cosine and the ends of its interval."""
    cosine, low, high = map(float, values)  # type: ignore[arg-type]
    return cosine, low, high
