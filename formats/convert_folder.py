"""The output folder of a conversion: what is whole, what it was made from, and what does not belong there.

States: empty -> files, each with a record of what it was made from -> manifest (complete; the records are gone).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.formats.atomic_file import is_partial, write_atomic
from headrace.formats.errors import ManifestError
from headrace.formats.files import MANIFEST_NAME
from headrace.formats.manifest import (
    Manifest,
    ManifestFile,
    Verify,
    check_folder,
    file_blake2b,
    read_manifest,
    write_manifest,
)

TOOL = "headrace convert"

Identity = list[dict[str, Any]]
"""Name, size and time of change of each file that the rows of a source come from."""

_RECORD_SUFFIX = ".converted"


@dataclass(frozen=True)
class FileReport:
    """What became of a source: ``rows_in == rows_out + rows_skipped``."""

    source: str
    rows_in: int
    rows_skipped: int
    rows_out: int
    bytes_in: int


def refuse_own_sources(folder: Path, sources: Iterable[str]) -> None:
    """FileExistsError when a source lies in the output folder: overwriting would remove it before it is read.

    Links are followed. Local files have an absolute path, in a store as ``local://`` behind the scheme.
    """
    out = os.path.realpath(folder)
    for source in sources:
        path = source.removeprefix("local://")
        if os.path.isabs(path) and os.path.dirname(os.path.realpath(path)) == out:
            raise FileExistsError(f"{folder}: holds {source}, which is to be read; give another folder")


def check_complete_folder(folder: Path, manifest: Manifest, *, verify: Verify) -> None:
    """ManifestError, with what helps, for a folder that was complete and of which something is gone or changed."""
    try:
        check_folder(folder, manifest, verify=verify)
    except ManifestError as error:
        hint = "; overwrite=True makes the folder anew"
        raise ManifestError(error.path, error.reason + hint) from None


class ConversionFolder:
    """A folder that one run has for itself; `parameters` (with the sources) are what makes two conversions equal."""

    def __init__(self, folder: Path, parameters: Mapping[str, Any]) -> None:
        self.path = folder
        self._parameters: dict[str, Any] = json.loads(json.dumps(parameters))
        self._key = {k: v for k, v in self._parameters.items() if k != "sources"}

    def prepare(self, targets: Sequence[str], identities: Sequence[Identity], *, overwrite: bool) -> None:
        """Make the folder one that the run may go on in; FileExistsError, and nothing is written, when it is not.

        `overwrite` removes what an earlier conversion wrote, complete or not; first the files, then what accounts for
        them, so that a run that is killed meanwhile leaves nothing that the next one would take for somebody's.
        """
        manifest = read_manifest(self.path)
        if manifest is not None and manifest.parameters.get("tool") != TOOL:
            raise FileExistsError(f"{self.path}: its {MANIFEST_NAME} was not written by {TOOL}; give another folder")
        names = os.listdir(self.path)
        records = {name for name in names if name.startswith(".") and name.endswith(_RECORD_SUFFIX)}
        recorded = {name[1 : -len(_RECORD_SUFFIX)] for name in records}
        written = {MANIFEST_NAME, *records, *recorded, *(manifest.files if manifest else ())}
        if unknown := sorted(n for n in names if n not in written and n not in targets and not is_partial(n)):
            raise FileExistsError(
                f"{self.path}: holds {unknown[0]!r}, which is none of the files to write; give another folder"
            )
        self._remove(name for name in names if is_partial(name))
        if overwrite:
            self._remove(sorted(written - {MANIFEST_NAME} - records))
            self._remove(sorted(records))
            self._remove([MANIFEST_NAME])
            manifest = None
        if left := sorted(n for n in recorded - set(targets) if manifest is None and (self.path / n).exists()):
            raise FileExistsError(
                f"{self.path}: holds {left[0]!r}, which an interrupted conversion of other sources wrote; "
                "give another folder, or overwrite=True (--overwrite)"
            )
        if manifest is not None:
            self._check_complete(manifest)
            self._recreate_records(manifest)
        for target, identity in zip(targets, identities, strict=True):
            self._record_of(target, identity)

    def _check_complete(self, manifest: Manifest) -> None:
        """FileExistsError, with what differs, unless the folder is the result of a run with equal parameters;
        ManifestError where a file of it is gone, or another size."""
        found, wanted = manifest.parameters, self._parameters
        if found != wanted:
            differing = sorted(k for k in {*wanted, *found} if found.get(k) != wanted.get(k))
            raise FileExistsError(
                f"{self.path}: holds a conversion with other {', '.join(map(_named, differing))}; "
                "give another folder, or overwrite=True (--overwrite)"
            )
        check_complete_folder(self.path, manifest, verify="size")

    def _recreate_records(self, manifest: Manifest) -> None:
        """A complete folder is gone on with like one whose last file was just finished."""
        for (name, entry), source in zip(manifest.files.items(), manifest.parameters["sources"], strict=True):
            self.record(name, source, entry, FileReport(**manifest.results["files"][name]))

    def kept(self, target: str, identity: Identity) -> tuple[ManifestFile, FileReport] | None:
        """What an earlier run recorded of a file that is whole; None when it is to be made.

        FileExistsError for a file that no record of this conversion accounts for, or that changed since.
        """
        record = self._record_of(target, identity)
        if record is None:
            return None
        entry = ManifestFile(**record["entry"])
        if file_blake2b(self.path / target) != entry.blake2b:
            raise FileExistsError(
                f"{self.path / target}: changed since it was converted; remove it, or give overwrite=True (--overwrite)"
            )
        return entry, FileReport(**record["report"])

    def _record_of(self, target: str, identity: Identity) -> dict[str, Any] | None:
        path = self.path / target
        if not path.exists():
            return None
        record = _read_record(self.path / _record_name(target))
        if record is None or record["key"] != self._key or record["source"] != identity:
            sources = ", ".join(source["name"] for source in identity)
            raise FileExistsError(
                f"{path}: is there, but was not made from {sources} as it is now with these arguments; give another "
                "folder, or overwrite=True (--overwrite), which removes it if a conversion wrote it, or remove it"
            )
        return record

    def record(self, target: str, identity: Identity, entry: ManifestFile, report: FileReport) -> None:
        """Store what a file is made from, before it gets its name."""
        record = {"key": self._key, "source": identity, "entry": asdict(entry), "report": asdict(report)}
        write_atomic(self.path / _record_name(target), json.dumps(record).encode())

    def complete(self, entries: Mapping[str, ManifestFile], reports: Mapping[str, FileReport]) -> None:
        """Write the manifest, unless it is there, and remove the records."""
        if not (self.path / MANIFEST_NAME).exists():
            results = {"files": {name: asdict(report) for name, report in reports.items()}}
            write_manifest(self.path, Manifest(files=entries, parameters=self._parameters, results=results))
        self._remove(map(_record_name, entries))

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path / name)


def _named(parameter: str) -> str:
    """A parameter, with the option of the command line that gives it."""
    has_option = parameter in ("bad_records", "compression", "dataset", "row_group_rows", "schema", "to")
    return f"{parameter} (--{parameter.replace('_', '-')})" if has_option else parameter


def _record_name(target: str) -> str:
    return f".{target}{_RECORD_SUFFIX}"


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return record if isinstance(record, dict) and record.keys() == {"key", "source", "entry", "report"} else None
