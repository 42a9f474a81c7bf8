"""Files of any file system that Arrow knows, S3 and the like, by URI or by a ``pyarrow.fs.FileSystem``."""

from __future__ import annotations

import glob
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from headrace.formats.checks import check_paths, check_type
from headrace.formats.errors import StoreReadError
from headrace.formats.files import MANIFEST_NAME, PathLike, is_hidden, natural_key
from headrace.formats.manifest import MAX_MANIFEST_BYTES, Manifest, parse_manifest, stream_blake2b
from headrace.formats.range_fetcher import FetchCounts, FetchOptions, is_passing
from headrace.formats.range_file import Access, RangeFile
from headrace.formats.store import LOCAL, Store
from headrace.formats.store_threads import ask_bounded

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(/.*)?", re.DOTALL)
_QUERY = re.compile(r"(.*?)(\?[A-Za-z0-9_.-]+=[^/*]*)?", re.DOTALL)
_COMMANDS = ("pipe:",)
_NOT_COPIED = ("tls_ca_dir_path", "tls_verify_certificates", "smart_defaults")
"""Parameters of S3 that a copy of a file system does not have."""

_S3 = (
    "region", "scheme", "endpoint_override", "allow_bucket_creation", "allow_bucket_deletion", "tls_ca_file_path",
    "tls_ca_dir_path", "tls_verify_certificates", "smart_defaults",
)  # fmt: skip
_GS = ("scheme", "endpoint_override", "location", "retry_limit_seconds")
_HDFS = ("user", "replication", "buffer_size", "default_block_size", "kerb_ticket")
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "file": (), "s3": _S3, "gs": _GS, "gcs": _GS, "hdfs": _HDFS, "viewfs": _HDFS
}  # fmt: skip
"""Parameters that Arrow takes behind a URI's ``?``, by scheme."""
_HADOOP = ("hdfs", "viewfs")
_UNCHECKED = ("file", *_HADOOP)
"""Schemes of which Arrow does not refuse others: it passes them by, or sets them in Hadoop's configuration."""

_FILESYSTEM = "a pyarrow.fs.FileSystem, as fs.S3FileSystem(region=...), or a headrace.ArrowStore over one"

_T = TypeVar("_T")


class ArrowStore:
    """The files of `filesystem`; they are named ``TYPE://path`` (``s3://bucket/day_0.gz``), never with credentials.

    `paths` may be given in that form, or as the file system has them (``bucket/day_0.gz``). Folders and patterns mean
    what they mean for local files. Files are read by ranges, with retries, as `options` say.
    """

    def __init__(
        self, filesystem: fs.FileSystem, options: FetchOptions | None = None, *, counts: FetchCounts | None = None
    ) -> None:
        if not hasattr(filesystem, "open_input_file"):
            check_type("filesystem", filesystem, fs.FileSystem, _FILESYSTEM)
        check_type("options", options, (FetchOptions, type(None)), "a headrace.FetchOptions")
        check_type("counts", counts, (FetchCounts, type(None)), "the FetchCounts of another store")
        self.filesystem = filesystem
        self.options = options or FetchOptions()
        self._prefix = f"{filesystem.type_name}://"
        self._counts = counts or FetchCounts()
        self._listed: dict[str, int] = {}
        self._open: weakref.WeakSet[RangeFile] = weakref.WeakSet()
        self._opening = threading.Lock()

    def for_reader(self) -> ArrowStore:
        """The same store for one reader more, which is interrupted for itself."""
        return ArrowStore(self.filesystem, self.options)

    def find(self, paths: PathLike | Iterable[PathLike]) -> tuple[str, ...]:
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        found: list[str] = []
        for path in given:
            found += self._expand(self._inner(os.fspath(path)))
        if not found:
            raise FileNotFoundError("no files: an empty list was given")
        return tuple(self._prefix + path for path in found)

    def is_folder(self, path: str) -> bool:
        return bool(self._info(self._inner(path)).type == fs.FileType.Directory)

    def names(self, folder: str) -> dict[str, str]:
        found = self._select(self._inner(folder), recursive=False)
        files = [info for info in found if info.type == fs.FileType.File]
        self._listed.update({self._prefix + info.path: int(info.size) for info in files})
        return {os.path.basename(info.path): self._prefix + info.path for info in files}

    def sizes(self, files: Sequence[str]) -> tuple[int, ...]:
        return tuple(self._listed[file] if file in self._listed else self.size(file) for file in files)

    def size(self, file: str) -> int:
        info = self._info(self._inner(file))
        if info.type != fs.FileType.File:
            raise FileNotFoundError(f"no such file: {file}")
        return int(info.size)

    def open(self, file: str, access: Access = "forward") -> RangeFile:
        path = self._inner(file)

        def handle() -> Any:
            return self.filesystem.open_input_file(path)

        size = self.size(file)
        opened = RangeFile(file, size, handle, self.options, self._counts, access=access)
        with self._opening:
            self._open.add(opened)
        return opened

    def folder_of(self, file: str) -> str:
        folder, _, _ = file.removeprefix(self._prefix).rpartition("/")
        return self._prefix + folder

    def manifest(self, folder: str) -> Manifest | None:
        inner = folder.removeprefix(self._prefix)
        path = f"{inner}/{MANIFEST_NAME}" if inner else MANIFEST_NAME
        info = self._info(path)
        if info.type == fs.FileType.NotFound:
            return None
        with self.open(self._prefix + path) as file:
            return parse_manifest(self._prefix + path, file.read(MAX_MANIFEST_BYTES + 1))

    def blake2b(self, file: str) -> str:
        with self.open(file) as opened:
            return stream_blake2b(opened)

    def identity(self, file: str) -> dict[str, Any]:
        info = self._info(self._inner(file))
        return {"name": os.path.basename(file), "bytes": info.size, "modified_ns": info.mtime_ns}

    def counts(self) -> dict[str, int]:
        return self._counts.to_dict()

    def interrupt(self) -> None:
        with self._opening:
            opened = list(self._open)
        for file in opened:
            file.interrupt()

    def _inner(self, path: str) -> str:
        """A path as the file system has it."""
        if not isinstance(path, str) or not path:
            raise FileNotFoundError(f"no files: the path is {path!r}")
        inner = path.removeprefix(self._prefix)
        if "://" in inner:
            raise ValueError(f"{path}: not a path of the file system of type {self.filesystem.type_name!r}")
        return inner

    # ---- listing ----------------------------------------------------------------------------------------------------

    def _expand(self, path: str) -> list[str]:
        name = self._prefix + path
        info = self._info(path.rstrip("/") or path)
        if info.type == fs.FileType.File:
            self._listed[name] = int(info.size)
            return [path]
        if info.type == fs.FileType.Directory:
            return self._data_files(self._select(info.path, recursive=False), f"no data files in the folder {name}")
        if not glob.has_magic(path):
            raise FileNotFoundError(f"no such file or folder: {name}")
        parts = path.split("/")
        fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
        pattern = _pattern(parts)
        found = self._select("/".join(parts[:fixed]), recursive=fixed < len(parts) - 1 or parts[-1] == "**")
        matching = [info for info in found if pattern.fullmatch(info.path)]
        folders = [info for info in matching if info.type == fs.FileType.Directory]
        if folders and parts[-1] != "**" and not is_hidden(os.path.basename(folders[0].path)):
            folder = self._prefix + folders[0].path
            raise ValueError(f"{folder}: a folder matches the pattern; name it by itself, or match files only")
        return self._data_files(matching, f"no data files match the pattern {name}")

    def _select(self, folder: str, *, recursive: bool) -> list[Any]:
        selector = fs.FileSelector(folder, allow_not_found=True, recursive=recursive)
        return list(self._call(self._prefix + folder, lambda: self.filesystem.get_file_info(selector)))

    def _data_files(self, found: list[Any], nothing: str) -> list[str]:
        files = [info for info in found if info.type == fs.FileType.File]
        kept = [info for info in files if not is_hidden(os.path.basename(info.path))]
        if not kept:
            skipped = f" ({len(files)} files there are hidden, or manifests)" if files else ""
            raise FileNotFoundError(nothing + skipped)
        for info in kept:
            self._listed[self._prefix + info.path] = int(info.size)
        return sorted((info.path for info in kept), key=natural_key)

    def _info(self, path: str) -> Any:
        return self._call(self._prefix + path, lambda: self.filesystem.get_file_info(path))

    def _call(self, name: str, ask: Callable[[], _T]) -> _T:
        """What the file system answers, with retries, all of them together within `stall_timeout_s`."""
        done = threading.Event()
        end_s = time.monotonic() + self.options.stall_timeout_s
        for attempt in range(1, self.options.attempts + 1):
            try:
                return ask_bounded(ask, max(0.0, end_s - time.monotonic()))
            except Exception as error:
                if not is_passing(error):
                    raise
                pause_s = self.options.pause_s(attempt, name)
                if attempt == self.options.attempts or time.monotonic() + pause_s >= end_s:
                    raise StoreReadError(name, 0, 0, attempt, f"no information about it: {error}") from error
            self._counts.add(retries=1)
            done.wait(pause_s)
        raise AssertionError("there is a last attempt")


def _pattern(parts: Sequence[str]) -> re.Pattern[str]:
    """A glob pattern by its parts; ``**`` stands for any number of folders."""
    found = []
    for i, part in enumerate(parts):
        last = i == len(parts) - 1
        if part == "**":
            found.append(".*" if last else "(?:[^/]+/)*")
        else:
            found.append(_component(part) + ("" if last else "/"))
    return re.compile("".join(found), re.DOTALL)


def _component(part: str) -> str:
    """A regular expression for one part of a glob pattern: ``*``, ``?`` and ``[...]`` stand for anything but ``/``."""
    translated, at = "", 0
    while at < len(part):
        end = part.find("]", at + 2) if part[at] == "[" else -1
        if end > 0:
            inside = part[at + 1 : end].replace("\\", "\\\\")
            inside = "^" + inside[1:] if inside.startswith("!") else inside.replace("^", "\\^")
            translated += f"(?!/)[{inside}]"
            at = end + 1
            continue
        translated += {"*": "[^/]*", "?": "[^/]"}.get(part[at], re.escape(part[at]))
        at += 1
    return translated


def store_of(
    paths: PathLike | Iterable[PathLike], filesystem: fs.FileSystem | Store | None
) -> tuple[Store, PathLike | Iterable[PathLike]]:
    """The store that holds `paths`, and the paths as it has them; all of one store, or ValueError.

    With a `filesystem` it is that one's (or the store itself); otherwise URIs (``s3://bucket/day_*.gz``) are looked up,
    and other paths are local ones. Behind a ``?`` a URI may have parameters of ``pyarrow.fs.FileSystem.from_uri``, and
    the fields of :class:`FetchOptions` (``?region=eu-west-1&stall_timeout_s=20``). Nothing that would run a command is
    a URI here.
    """
    check_paths(paths)
    if isinstance(filesystem, ArrowStore):
        return filesystem.for_reader(), paths
    if isinstance(filesystem, fs.FileSystem):
        return ArrowStore(filesystem), paths
    if filesystem is not None:
        if not hasattr(type(filesystem), "open"):
            check_type("filesystem", filesystem, fs.FileSystem, _FILESYSTEM)
        return filesystem, paths
    if isinstance(paths, (str, bytes, os.PathLike)):
        given: list[Any] = [paths]
    else:
        paths = given = list(paths)
    uris = [path for path in given if isinstance(path, str) and _is_uri(path)]
    if not uris:
        return LOCAL, paths
    if len(uris) < len(given):
        raise ValueError(f"{uris[0]}: local paths and URIs cannot be read by one reader")
    opened = [_open_uri(uri) for uri in uris]
    first, _, options = opened[0]
    if any(not found.equals(first) or other != options for found, _, other in opened[1:]):
        raise ValueError(f"{uris[0]} and others are of several file systems; one reader reads one")
    inner = [path for _, path, _ in opened]
    return ArrowStore(first, options), inner if len(inner) != 1 else inner[0]


def _is_uri(path: str) -> bool:
    if path.startswith(_COMMANDS) and not os.path.lexists(path):
        raise ValueError(f"{path!r} is a command, and none is run here; see TarFiles(allow_commands=...)")
    return _URI.match(path) is not None


def _open_uri(uri: str) -> tuple[fs.FileSystem, str, FetchOptions]:
    """The file system of a URI, the path (or pattern) in it, and how to fetch from there."""
    match = _URI.fullmatch(uri)
    assert match is not None
    scheme, authority, rest = match[1], match[2], match[3] or ""
    split = _QUERY.fullmatch(rest if rest else authority)
    assert split is not None
    query, options = _take_options(split[2] or "")
    authority, path = (authority, split[1]) if rest else (split[1], "")
    shown = f"{scheme}://{authority.rpartition('@')[2]}{path}"  # without credentials
    if unknown := _unknown_parameters(scheme.lower(), query):
        raise ValueError(f"{shown}: {unknown[0]} is none of the parameters {_known_parameters(scheme.lower())}")
    try:
        base = f"{scheme}://{authority}{'/' if not authority else ''}{query}"
        filesystem, root = ask_bounded(lambda: fs.FileSystem.from_uri(base), options.stall_timeout_s)
    except TimeoutError as error:  # where no region is given, the store is asked for it
        raise StoreReadError(shown, 0, 0, 1, str(error)) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0].replace(base, shown)
        if "unexpected query parameter" in reason.lower():  # newer releases of Arrow may know more than we
            reason += f"; known are {_known_parameters(scheme.lower())}"
        raise ValueError(f"{shown}: no file system for it ({type(error).__name__}: {reason})") from None
    if filesystem.type_name == "s3" and not any(f"{name}=" in query for name in _NOT_COPIED):
        filesystem = _asked_once(filesystem)
    root = root.rstrip("/")
    return filesystem, f"{root}{path}" if path else root, options


def _unknown_parameters(scheme: str, query: str) -> list[str]:
    """Names that Arrow would pass by, or hand on to a store that does; other schemes' it refuses by itself."""
    if scheme not in _UNCHECKED:
        return []
    names = [parameter.partition("=")[0] for parameter in query.removeprefix("?").split("&") if parameter]
    is_hadoop = scheme != "file"
    return [name for name in names if name not in _PARAMETERS[scheme] and not (is_hadoop and "." in name)]


def _known_parameters(scheme: str) -> str:
    """In words."""
    names = ", ".join((*_PARAMETERS.get(scheme, ()), *asdict(FetchOptions())))
    return f"{names}, nor a name of Hadoop's configuration (with a dot)" if scheme in _HADOOP else names


def _asked_once(filesystem: fs.FileSystem) -> fs.FileSystem:
    """The same, without retries of the library's own: of a URI it makes ten, which take over a minute, and we retry."""
    rebuild, arguments, *_ = filesystem.__reduce__()
    once = fs.AwsStandardS3RetryStrategy(max_attempts=1)
    found: fs.FileSystem = rebuild({**arguments[0], "retry_strategy": once})
    return found


def _take_options(query: str) -> tuple[str, FetchOptions]:
    """``?a=1&attempts=3`` -> ("?a=1", FetchOptions(attempts=3)); ValueError for a value that is no number, or none of
    those allowed."""
    defaults, taken, left = asdict(FetchOptions()), {}, []
    for parameter in query.removeprefix("?").split("&") if query else ():
        name, _, value = parameter.partition("=")
        if name not in defaults:
            left.append(parameter)
            continue
        try:
            taken[name] = type(defaults[name])(value)
        except ValueError:
            raise ValueError(f"{parameter}: not a number") from None
    return "?" + "&".join(left) if left else "", FetchOptions(**taken)
