"""A folder of generated files: written as a whole, described by its manifest, replaced only when it is ours.

States of a folder: empty -> files under temporary names -> all files under their names -> manifest. A folder with a
manifest is complete; one that was interrupted has none, and only temporary names but for a moment.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.formats.atomic_file import AtomicFile, is_partial, sync_folder
from headrace.formats.errors import ManifestError
from headrace.formats.files import MANIFEST_NAME, is_hidden
from headrace.formats.generate.parameters import made_by_generate
from headrace.formats.generate.presets import load_preset, preset_names
from headrace.formats.manifest import Manifest, ManifestFile, new_hasher, read_manifest


class FileSet:
    """Writes files one after the other; they get their names together when `commit` is called, else vanish on exit.

    `empty` is the content of a file to which nothing is appended.
    """

    def __init__(self, folder: Path, names: Sequence[str], *, empty: bytes = b"") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._names = tuple(names)
        self._empty = empty
        self._current: AtomicFile | None = None
        self._digest = new_hasher()
        self._rows = self._bytes = 0
        self._done: dict[str, ManifestFile] = {}
        self._files: list[AtomicFile] = []
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> FileSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def append(self, number: int, rows: int, data: bytes) -> None:
        """Append `data` (`rows` rows) to file `number`; numbers never go down, those left out become empty files."""
        if number < len(self._done):
            raise ValueError(f"file {number} is already complete")
        while len(self._done) < number:
            self._finish_current()
        file = self._current or self._open_current()
        file.write(data)
        self._digest.update(data)
        self._rows += rows
        self._bytes += len(data)

    def commit(self) -> dict[str, ManifestFile]:
        """Complete all files, flush them to disk and name them; returns the manifest's ``files``."""
        while len(self._done) < len(self._names):
            self._finish_current()
        for file in self._files:
            file.publish()
        sync_folder(self._folder)
        return self._done

    def _open_current(self) -> AtomicFile:
        self._current = self._cleanup.enter_context(AtomicFile(self._folder / self._names[len(self._done)]))
        self._files.append(self._current)
        return self._current

    def _finish_current(self) -> None:
        if self._current is None and self._empty:
            self.append(len(self._done), 0, self._empty)
        (self._current or self._open_current()).finish()
        name = self._names[len(self._done)]
        self._done[name] = ManifestFile(bytes=self._bytes, rows=self._rows, blake2b=self._digest.hexdigest())
        self._current = None
        self._digest = new_hasher()
        self._rows = self._bytes = 0


@contextlib.contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other runs out of it; FileExistsError when one is at work there.

    The lock is on the folder itself and goes with the process: nothing is left behind, whatever happens.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder}: is a file, not a folder to write to")
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(f"{folder}: another run is writing into this folder; wait for it") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)


def manifest_of(folder: Path) -> Manifest | None:
    """The manifest of a folder; None when there is none, or it is not one that can be trusted."""
    try:
        return read_manifest(folder)
    except (ManifestError, NotADirectoryError):
        return None


def holds_exactly(folder: Path, parameters: Mapping[str, Any], *, subfolders: Sequence[str] = ()) -> bool:
    """Whether the folder has a manifest of equal parameters and its files, of the recorded sizes, and nothing else."""
    manifest = manifest_of(folder)
    if manifest is None or manifest.parameters != dict(parameters):
        return False
    if set(os.listdir(folder)) != {MANIFEST_NAME, *manifest.files, *subfolders}:
        return False
    return all((folder / name).stat().st_size == entry.bytes for name, entry in manifest.files.items())


def refuse_unless_empty(folder: Path, *, subfolder: str = "") -> None:
    """FileExistsError when the folder holds anything; `subfolder` is the part of it that a run writes first.

    The message says what helps: overwriting, unless that would be refused, too.
    """
    found = sorted(os.listdir(folder)) if folder.exists() else []
    if not found:
        return
    refuse_unless_replaceable(folder)
    refuse_others_data(folder)
    interrupted = all(is_partial(name) or (name == subfolder and is_ours(folder / name)) for name in found)
    unfinished = ", as an interrupted run leaves it" if interrupted else ""
    raise FileExistsError(
        f"{folder}: is not empty and is not the result of a run with equal parameters "
        f"(it holds {found[0]!r}{unfinished}); give another folder, "
        "or overwrite=True (--overwrite) to replace what an earlier run wrote"
    )


def is_ours(folder: Path) -> bool:
    """Whether the folder has a manifest that :func:`generate` wrote."""
    manifest = manifest_of(folder)
    return manifest is not None and made_by_generate(manifest.parameters)


def refuse_unless_replaceable(folder: Path) -> None:
    """FileExistsError when the folder holds a manifest, or files named like generated ones, that no run accounts for.

    Such files may be somebody's data (the originals have the same names), or what a run left that was killed just
    before it wrote its manifest: they are neither removed nor mixed with new ones.
    """
    if not folder.exists():
        return
    names, manifest = os.listdir(folder), manifest_of(folder)
    if MANIFEST_NAME in names and not is_ours(folder):
        raise FileExistsError(f"{folder}: its {MANIFEST_NAME} was not written by generate; give another folder")
    listed = manifest.files if manifest is not None else {}
    unknown = sorted(name for name in names if _is_generated_name(name) and name not in listed)
    if unknown:
        raise FileExistsError(
            f"{folder}: holds {unknown[0]!r}, which no manifest of generate lists: left by an interrupted run, or data "
            "of another origin; remove it, or give another folder"
        )


def refuse_others_data(folder: Path) -> None:
    """FileExistsError for a folder without a manifest of ours that holds files which a reader of the folder takes.

    With a manifest beside them they would be files that it does not list, and the folder could not be read any more.
    """
    if not folder.exists() or is_ours(folder):
        return
    found = sorted(path.name for path in folder.iterdir() if path.is_file() and not is_hidden(path.name))
    if found:
        raise FileExistsError(
            f"{folder}: holds {found[0]!r}, which generate did not write, and which could not be read any more with a "
            f"{MANIFEST_NAME} beside it; give another folder"
        )


def clear(folder: Path, *, remove: bool = False) -> None:
    """Remove what an earlier run wrote: the manifest first, the files it lists, temporary files; nothing else.

    With `remove` the folder goes too if that leaves it empty. FileExistsError, and nothing is removed, when
    :func:`refuse_unless_replaceable` says so.
    """
    if not folder.exists():
        return
    refuse_unless_replaceable(folder)
    manifest = manifest_of(folder)
    names = [MANIFEST_NAME, *(manifest.files if manifest else ())]
    names += filter(is_partial, os.listdir(folder))
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder / name)
    if remove and not os.listdir(folder):
        folder.rmdir()


def _is_generated_name(name: str) -> bool:
    """Whether any preset may write a file of that name."""
    patterns = {p for preset in preset_names() for p in load_preset(preset).file_names.values() if p is not None}
    return any(re.fullmatch(re.escape(p).replace(r"\{\}", "[0-9]+") + r"(\.gz)?", name) for p in patterns)
