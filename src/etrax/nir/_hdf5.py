"""The content of a NIR file: its own groups and arrays, and nothing else that an HDF5 file can lead to.

A file is data from elsewhere. Links to other files and to other places, arrays whose numbers lie in other files or are
made up of other arrays, and arrays that are larger than such a file can hold are refused before anything of them is
read.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .._arguments import foreign, format_bytes
from .._errors import ArgumentError

if TYPE_CHECKING:
    import h5py

Content = dict[str, object]

DEPTH = 32  # groups within groups
OBJECTS = 100_000  # groups and arrays
LEAST_ROOM = 64 << 20  # bytes that any file may unpack to
RATIO = 32  # how many times its own size a larger file may unpack to
STRING_COLUMNS = 16
DEFLATE, SHUFFLE, CHECKSUM, LZF = 1, 2, 3, 32000  # the filters that `nir.write` uses, by their numbers in HDF5


def read_content(file: Path) -> Content:
    """The group `node` of a file as nested dictionaries of arrays and texts; ArgumentError names what cannot be."""
    import h5py

    try:
        with h5py.File(file, "r") as stored:
            content = _Reader(file).child(stored, "node", ())
    except ArgumentError:
        raise
    except Exception as error:  # h5py and what it reads with raise many kinds
        text = str(error).splitlines()
        raise ArgumentError(
            f"{str(file)!r} is not a NIR file, or was cut short ({foreign(text[0] if text else type(error).__name__)})."
        ) from error
    if not isinstance(content, dict):
        raise ArgumentError(f"{str(file)!r} is not a NIR file: `node` in it is not a group.")
    return content


class _Reader:
    """Reads groups and arrays, and counts what was read."""

    def __init__(self, file: Path):
        self.file, self.size = str(file), file.stat().st_size
        self.room = max(LEAST_ROOM, RATIO * self.size)
        self.objects = OBJECTS

    def refuse(self, path: tuple[str, ...], why: str) -> ArgumentError:
        """An error that names the node and its field."""
        names = [name for name in path[:-1] if name not in ("node", "nodes")]
        node = f" of node {foreign('.'.join(names))!r}" if names else ""
        return ArgumentError(f"`{foreign(path[-1])}`{node} in {self.file!r} {why}.")

    def child(self, group: h5py.Group, name: str, path: tuple[str, ...]) -> object:
        """A group as a dictionary, an array as numpy's, a text as Python's."""
        import h5py

        path = (*path, name)
        if name not in group:
            raise self.refuse(path, "is missing")
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise self.refuse(path, "is a link to another place or file; only what the file itself holds is read")
        self.objects -= 1
        if self.objects < 0 or len(path) > DEPTH:
            raise self.refuse(
                path, f"is one of too many: more than {OBJECTS:,}, or more than {DEPTH} within each other"
            )
        item = group[name]
        if isinstance(item, h5py.Group):
            return {str(key): self.child(item, str(key), path) for key in item}
        if not isinstance(item, h5py.Dataset):
            raise self.refuse(path, "is neither a group nor an array")
        value = self._array(item, path)
        if isinstance(value, bytes):
            try:
                return value.decode("utf8")
            except UnicodeDecodeError as error:
                raise self.refuse(path, "is not text") from error
        return value

    def _array(self, dataset: h5py.Dataset, path: tuple[str, ...]) -> object:
        import h5py

        if dataset.is_virtual or dataset.external:
            raise self.refuse(path, "has its numbers in other files or arrays; only what the file itself holds is read")
        if dataset.shape is None:
            raise self.refuse(path, "holds nothing")
        text = h5py.check_string_dtype(dataset.dtype)
        if text is None and dataset.dtype.kind not in "biufS":
            raise self.refuse(path, f"is of type {foreign(dataset.dtype)}; expected numbers or text")
        self._take(path, dataset.dtype.itemsize * int(np.prod(dataset.shape, dtype=object)))
        if dataset.chunks is not None:
            self._check_chunks(dataset, dataset.chunks, path)
        if text is not None and text.length is None:
            return self._texts(dataset, path)
        return dataset[()]

    def _take(self, path: tuple[str, ...], size: int) -> None:
        """Count bytes before they are read."""
        self.room -= size
        if self.room < 0:
            raise self.refuse(
                path,
                f"makes this file of {format_bytes(self.size)} unpack to more than "
                f"{format_bytes(max(LEAST_ROOM, RATIO * self.size))}; if you trust it, read it by `nir.read` and "
                "pass the graph",
            )

    def _check_chunks(self, dataset: h5py.Dataset, chunks: tuple[int, ...], path: tuple[str, ...]) -> None:
        """What a chunk unpacks to is what an array of its shape takes: HDF5 itself would unpack whatever comes."""
        plan = dataset.id.get_create_plist()
        filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
        if len(set(filters)) < len(filters) or not set(filters) <= {DEFLATE, SHUFFLE, CHECKSUM, LZF}:
            raise self.refuse(path, "is packed in a way that `nir.write` does not use")
        size = dataset.dtype.itemsize * int(np.prod(chunks, dtype=object))
        if size > LEAST_ROOM:
            raise self.refuse(path, f"is stored in pieces of {format_bytes(size)}")
        if DEFLATE not in filters:
            return
        for number in range(dataset.id.get_num_chunks()):
            stored = dataset.id.get_chunk_info(number)
            if stored.size > self.size:
                raise self.refuse(path, "is cut short")
            mask, packed = dataset.id.read_direct_chunk(stored.chunk_offset)
            if not mask >> filters.index(DEFLATE) & 1 and len(zlib.decompressobj().decompress(packed, size + 1)) > size:
                raise self.refuse(path, "unpacks to more than its own size")

    def _texts(self, dataset: h5py.Dataset, path: tuple[str, ...]) -> object:
        """Texts of any length: each says in the file how long it is, and HDF5 takes memory for whatever it says."""
        assert dataset.size is not None  # what holds nothing was refused before
        if dataset.ndim > 2 or dataset.size > OBJECTS or max(dataset.shape[1:], default=1) > STRING_COLUMNS:
            raise self.refuse(path, f"is a table of texts of shape {list(dataset.shape)}")
        size, start = dataset.id.get_storage_size(), dataset.id.get_offset()
        if size and dataset.size:
            if start is None or size % dataset.size or size > self.size:
                raise self.refuse(path, "is packed in a way that `nir.write` does not use")
            with open(self.file, "rb") as raw:
                raw.seek(start)
                data = np.frombuffer(raw.read(size), np.uint8)
            if len(data) < size:
                raise self.refuse(path, "is cut short")
            lengths = data.reshape(dataset.size, -1)[:, :4].copy().view("<u4")  # before the address of the text
            if lengths.max() > self.size:
                raise self.refuse(path, "is longer than the file")
            self._take(path, int(lengths.sum(dtype=np.int64)))
        return dataset[()]
