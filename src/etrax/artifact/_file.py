"""The file of an artifact: an archive of a program and its manifest, held against all that it says before it is used.

Both members are stored as they are, so that nothing in the archive is larger than the file, and a digest in the
manifest covers both.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .._arguments import foreign
from .._errors import ArtifactError

FORMAT = 2
PROGRAM, MANIFEST = "update.stablehlo", "manifest.json"
MANIFEST_BYTES = 16 << 20
PARTS = ("params", "opt_state", "state", "inputs", "targets")
RESET = "reset"  # a part that only programs have that can start again
DEPTH = 64  # of the structure of an output
# Targets of calls that lead back into a running Python; `jax.export` never writes them.
_CALLBACKS = (b"_python_cpu_callback", b"_python_gpu_callback", b"_python_tpu_callback")


def sealed(manifest: Mapping[str, object], program: bytes) -> dict[str, object]:
    """The manifest with a digest of all of it and of the program."""
    plain = {k: v for k, v in manifest.items() if k != "sha256"}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    digest.update(program)
    return {**plain, "sha256": digest.hexdigest()}


def write_archive(path: Path, manifest: Mapping[str, object], program: bytes) -> None:
    """All of it, or nothing: written beside its place and renamed."""
    members = {MANIFEST: json.dumps(manifest, indent=1).encode(), PROGRAM: program}
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            part = Path(file.name)
            try:
                with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                    for name, data in members.items():
                        archive.writestr(name, data)
                file.flush()
                os.fsync(file.fileno())
                part.replace(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be written ({error.strerror}).") from error


def read_archive(path: Path) -> tuple[dict[str, Any], bytes]:
    """The manifest and the program of a file, as they were written."""
    try:
        text, program = _members(path)
        fields = json.loads(text)
    except ArtifactError:
        raise
    except Exception as error:  # zipfile, zlib and json raise many kinds for bytes that they did not write
        raise ArtifactError(f"{str(path)!r} is no artifact of Etrax, or was cut short. Export it again.") from error
    _check_manifest(path, fields)
    if fields["sha256"] != sealed(fields, program)["sha256"] or fields["bytes"]["program"] != len(program):
        raise ArtifactError(f"{str(path)!r} is damaged: its content is not what was written. Export it again.")
    if any(name in program for name in _CALLBACKS):
        raise ArtifactError(f"the program of {str(path)!r} calls back into Python, which no artifact does.")
    return fields, program


def _members(path: Path) -> tuple[bytes, bytes]:
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        if sorted(archive.namelist()) != sorted((MANIFEST, PROGRAM)):
            raise ArtifactError(f"{str(path)!r} is an archive, but no artifact of Etrax.")
        if _is_first_format(archive):
            raise _other_format(path, 1)
        for name, most in ((MANIFEST, MANIFEST_BYTES), (PROGRAM, size)):
            member = archive.getinfo(name)
            plain = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1
            if not plain or member.file_size != member.compress_size or member.file_size > most:
                raise ArtifactError(
                    f"{str(path)!r} is no artifact of Etrax: `{name}` in it is packed, or larger than {most:,} bytes."
                )
        return archive.read(MANIFEST), archive.read(PROGRAM)


def _is_first_format(archive: zipfile.ZipFile) -> bool:
    """The format before this one packed its members; its manifest says so."""
    member = archive.getinfo(MANIFEST)
    if member.compress_type != zipfile.ZIP_DEFLATED:
        return False
    with archive.open(member) as opened:
        return opened.read(64).replace(b" ", b"").startswith(b'{\n"format":1,')


def _other_format(path: Path, number: object) -> ArtifactError:
    return ArtifactError(
        f"{str(path)!r} is an artifact of format {foreign(number)}; this version of Etrax reads format {FORMAT}. "
        "Export it again, or load it with the version that wrote it."
    )


def _check_manifest(path: Path, manifest: object) -> None:
    """Every field is there and of its type, so that nothing later trips over it."""
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise ArtifactError(f"{str(path)!r} is an archive, but no artifact of Etrax.")
    if type(manifest["format"]) is not int or manifest["format"] != FORMAT:
        raise _other_format(path, manifest["format"])
    if others := set(manifest) - set(_FIELDS) - {"format"}:
        raise ArtifactError(f"the manifest of {str(path)!r} is not Etrax's: it has {foreign(sorted(others))}.")
    for name, is_right in _FIELDS.items():
        if name not in manifest or not is_right(manifest[name]):
            is_what = f"is {foreign(manifest[name])}" if name in manifest else "is missing"
            raise ArtifactError(f"the manifest of {str(path)!r} is not Etrax's: `{name}` {is_what}. Export it again.")


def _whole(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _number(value: object) -> bool:
    return value is None or _whole(value) or (isinstance(value, float) and math.isfinite(value))


def _texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())


def _leaf(value: object) -> bool:
    """One array: where it stands, its shape and its type."""
    if not isinstance(value, dict) or set(value) != {"path", "shape", "dtype"}:
        return False
    texts = isinstance(value["path"], str) and isinstance(value["dtype"], str)
    return texts and isinstance(value["shape"], list) and all(map(_whole, value["shape"]))


def _arguments(value: object) -> bool:
    if not isinstance(value, dict) or set(value) - {RESET} != set(PARTS):
        return False
    return all(isinstance(part, list) and all(map(_leaf, part)) for part in value.values())


def parts_of(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """The arguments of a program, in their order."""
    return (*PARTS, RESET) if RESET in manifest["arguments"] else PARTS


def _sizes(value: object) -> bool:
    return isinstance(value, dict) and {*PARTS, "trace", "program"} <= set(value) and all(map(_whole, value.values()))


def _skeleton(value: object) -> bool:
    try:
        count_arrays(value)
    except ValueError:
        return False
    return True


def count_arrays(skeleton: object, depth: int = DEPTH) -> int:
    """How many arrays an output has, by the structure that the manifest gives of it; ValueError if it is none."""
    if skeleton is None:
        return 0
    if isinstance(skeleton, str) and skeleton == "array":
        return 1
    if not isinstance(skeleton, dict) or len(skeleton) != 1 or not depth:
        raise ValueError("no structure of an output")
    ((kind, inner),) = skeleton.items()
    if kind == "dict" and isinstance(inner, dict):
        return sum(count_arrays(v, depth - 1) for v in inner.values())
    if kind in ("list", "tuple") and isinstance(inner, list):
        return sum(count_arrays(v, depth - 1) for v in inner)
    raise ValueError("no structure of an output")


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "versions": lambda v: _texts(v) and {"etrax", "jax"} <= set(v),
    "platforms": lambda v: isinstance(v, list) and bool(v) and all(isinstance(p, str) for p in v),
    "rule": lambda v: isinstance(v, str),
    "window": lambda v: _whole(v) and v > 0,
    "verdicts": _texts,
    "arguments": _arguments,
    "output": _skeleton,
    "bytes": _sizes,
    "flops": _number,
    "sha256": lambda v: isinstance(v, str),
}
