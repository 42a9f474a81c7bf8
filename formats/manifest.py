"""``manifest.json`` of a dataset folder: what files there are, how long, how many rows, which bytes.

    {"version": 1, "files": {"day_0.gz": {"bytes": 123, "rows": 4, "blake2b": "..."}}, "parameters": {...},
     "results": {...}}

It is the only thing that can tell a file cut at a gzip member boundary, or a missing file, from a whole dataset.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from io import RawIOBase
from pathlib import Path
from typing import IO, Any, Literal, get_args

from headrace.formats.atomic_file import write_atomic
from headrace.formats.checks import check_integer
from headrace.formats.errors import ManifestError
from headrace.formats.files import MANIFEST_NAME

MANIFEST_VERSION = 1
Verify = Literal["off", "size", "full"]

MAX_MANIFEST_BYTES = 64 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")
_READ_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ManifestFile:
    """A file: its size in `bytes` as stored, its `rows` (physical lines for text), the BLAKE2b-256 of its bytes."""

    bytes: int
    rows: int
    blake2b: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Files by name, and JSON-like data of whoever wrote them: what they were made from, and what was found then."""

    files: Mapping[str, ManifestFile]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)


def describe_file(path: str | Path, *, rows: int) -> ManifestFile:
    """Manifest entry of a finished file of `rows` rows; reads it once for the hash."""
    return ManifestFile(bytes=os.path.getsize(path), rows=rows, blake2b=file_blake2b(path))


def new_hasher() -> hashlib.blake2b:
    """The hash of an entry, to be fed with the file's bytes as stored."""
    return hashlib.blake2b(digest_size=32)


def file_blake2b(path: str | Path) -> str:
    """BLAKE2b-256 of the file's bytes as stored, in hex."""
    with open(path, "rb") as file:
        return stream_blake2b(file)


def stream_blake2b(file: IO[bytes] | RawIOBase) -> str:
    """BLAKE2b-256 of the bytes of an open file from where it stands to its end, in hex."""
    hasher = new_hasher()
    while chunk := file.read(_READ_BYTES):
        hasher.update(chunk)
    return hasher.hexdigest()


def write_manifest(folder: str | Path, manifest: Manifest) -> Path:
    """Write ``folder/manifest.json`` in one step: a reader sees the old one or the new one, never a part."""
    target = Path(folder) / MANIFEST_NAME
    document = {
        "version": MANIFEST_VERSION,
        "files": {name: asdict(entry) for name, entry in manifest.files.items()},
        "parameters": dict(manifest.parameters),
        "results": dict(manifest.results),
    }
    document["files"] = {name: asdict(entry) for name, entry in _validate(str(target), document).files.items()}
    write_atomic(target, json.dumps(document, indent=1, allow_nan=False).encode() + b"\n")
    return target


def read_manifest(folder: str | Path) -> Manifest | None:
    """The manifest of `folder`, None when there is none; one that cannot be trusted raises :class:`ManifestError`."""
    path = os.path.join(folder, MANIFEST_NAME)
    if not _is_there(path):
        return None
    with open(path, "rb") as file:
        return parse_manifest(path, file.read(MAX_MANIFEST_BYTES + 1))


def parse_manifest(path: str, data: bytes) -> Manifest:
    """The manifest in the bytes of a file; `path` is for errors, as those of :func:`read_manifest`."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise ManifestError(path, f"longer than {MAX_MANIFEST_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ManifestError(path, f"not UTF-8: {error}") from error
    try:
        document = json.loads(text, object_pairs_hook=_refuse_repeated)
    except (ValueError, RecursionError) as error:
        raise ManifestError(path, f"not JSON: {error}") from error
    return _validate(path, document)


def _is_there(path: str) -> bool:
    """Whether there is a manifest; ManifestError for a name that leads to no file (opening a pipe might wait)."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError as error:
        if os.path.islink(path):
            raise ManifestError(path, "a symbolic link to nothing") from error
        return False
    except NotADirectoryError:
        raise
    except OSError as error:
        raise ManifestError(path, f"cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise ManifestError(path, "not a regular file")
    return True


def check_size(
    manifest_file: ManifestFile,
    path: str,
    *,
    verify: Verify,
    size_of: Callable[[str], int] = os.path.getsize,
    blake2b_of: Callable[[str], str] | None = None,
) -> None:
    """Compare the file at `path` with its entry: the size, with ``verify="full"`` also the hash (reads the file).

    `size_of` and `blake2b_of` say how to learn them of a file that is not a local one.
    """
    if verify == "off":
        return
    size = size_of(path)
    if size != manifest_file.bytes:
        raise ManifestError(path, f"{size} bytes, the manifest says {manifest_file.bytes}: cut, or changed since")
    if verify == "full" and (found := (blake2b_of or file_blake2b)(path)) != manifest_file.blake2b:
        raise ManifestError(path, f"BLAKE2b is {found}, the manifest says {manifest_file.blake2b}: changed since")


def check_folder(folder: Path, manifest: Manifest, *, verify: Verify) -> None:
    """All files of a folder's manifest are there, and as it says (:func:`check_size`); ManifestError."""
    for name, entry in manifest.files.items():
        if not (folder / name).is_file():
            raise ManifestError(str(folder), f"{name} is missing")
        check_size(entry, str(folder / name), verify=verify)


def check_rows(manifest_file: ManifestFile, path: str, rows: int, *, verify: Verify) -> None:
    """Compare the number of rows read (bad ones counted) with the entry, once the whole file has been read."""
    if verify != "off" and rows != manifest_file.rows:
        raise ManifestError(path, f"{rows} rows, the manifest says {manifest_file.rows}: cut, or changed since")


def check_verify(verify: str) -> None:
    if not isinstance(verify, str) or verify not in get_args(Verify):
        raise ValueError(f"verify={verify!r} is not one of {', '.join(map(repr, get_args(Verify)))}")


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _validate(path: str, document: Any) -> Manifest:
    if isinstance(document, dict):
        document = {"results": {}, **document}
    _check_keys(path, "the manifest", document, {"version", "files", "parameters", "results"})
    version = document["version"]
    if isinstance(version, bool) or version != MANIFEST_VERSION:
        raise ManifestError(path, f"version {version!r} is unknown, this program reads {MANIFEST_VERSION}")
    for name in ("files", "parameters", "results"):
        if not isinstance(document[name], dict):
            raise ManifestError(path, f"{name} is a mapping, got {type(document[name]).__name__}")
    return Manifest(
        files={name: _validate_file(path, name, entry) for name, entry in document["files"].items()},
        parameters=document["parameters"],
        results=document["results"],
    )


def _validate_file(path: str, name: str, entry: Any) -> ManifestFile:
    if name in ("", ".", "..", MANIFEST_NAME) or any(c in name for c in "/\\\0"):
        raise ManifestError(path, f"{name!r} is not a plain file name")
    _check_keys(path, f"file {name!r}", entry, {"bytes", "rows", "blake2b"})
    sizes = {}
    for key in ("bytes", "rows"):
        try:
            sizes[key] = check_integer(f"file {name!r}: {key}", entry[key], 0, 2**63 - 1)
        except (TypeError, ValueError) as error:
            raise ManifestError(path, str(error)) from None
    if not isinstance(entry["blake2b"], str) or not _DIGEST.fullmatch(entry["blake2b"]):
        raise ManifestError(path, f"file {name!r}: blake2b={entry['blake2b']!r} is not 64 hexadecimal digits")
    return ManifestFile(**sizes, blake2b=entry["blake2b"])


def _check_keys(path: str, owner: str, value: Any, keys: set[str]) -> None:
    if not isinstance(value, dict):
        raise ManifestError(path, f"{owner} is a mapping, got {type(value).__name__}")
    if value.keys() != keys:
        raise ManifestError(path, f"{owner} has the keys {sorted(map(str, value))}, expected {sorted(keys)}")
