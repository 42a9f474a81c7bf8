"""Behaviour logs sorted by user and time, as a folder of arrays that are mapped into memory and not read.

| file | what |
|---|---|
| ``keys.npy`` | uint64 [users], ascending |
| ``offsets.npy`` | int64 [users + 1]: the rows of each user |
| ``times.npy`` | int64 [rows], ascending for each user; rows of one time are in the order of the log |
| ``value-NAME.npy`` | uint32 or uint64 [rows]: ids |
| ``missing-NAME.npy`` | bool [rows], where any id is missing |
| ``manifest.json`` | rows, bytes and hashes of these files; what they were made from |

`headrace convert --history` makes one (`history_build.py`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.formats.checks import check_integer
from headrace.formats.errors import ManifestError
from headrace.formats.files import PathLike
from headrace.formats.history_runs import I64
from headrace.formats.manifest import Verify, check_size, check_verify, read_manifest
from headrace.formats.text_values import U64, Bool

TOOL = "headrace convert --history"
I32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Histories:
    """Rows of a log for each of n samples, oldest first: lengths int32 [n], rows int64 [sum of lengths]."""

    lengths: I32
    rows: I64


class HistoryStore:
    """A sorted log. Thread-safe; only the users and their offsets (16 bytes a user) are held in memory.

    Raises ManifestError for a folder that was not written whole by `headrace convert --history`, or changed since
    (sizes; with ``verify="full"`` hashes).
    """

    def __init__(self, folder: PathLike, *, verify: Verify = "size") -> None:
        check_verify(verify)
        self.folder = Path(os.path.abspath(folder))
        manifest = read_manifest(self.folder) if self.folder.is_dir() else None
        if manifest is None or manifest.parameters.get("tool") != TOOL:
            raise ManifestError(str(self.folder), f"is no sorted log; make one with {TOOL} --out {self.folder}")
        for name, entry in manifest.files.items():
            if not (self.folder / name).is_file():
                raise ManifestError(str(self.folder), f"{name} is missing")
            check_size(entry, str(self.folder / name), verify=verify)
        self._files = manifest.files
        self.columns: tuple[str, ...] = tuple(manifest.parameters["columns"])
        self.num_rows: int = manifest.files["times.npy"].rows
        self._keys = np.asarray(self._array("keys", "r"))
        self._offsets = np.asarray(self._array("offsets", "r"))
        self._times: I64 = self._array("times", "r")
        self._values = {name: self._array(f"value-{name}", "r") for name in self.columns}
        self._missing = {name: self._array(f"missing-{name}", "r") for name in self.columns if self._has_missing(name)}

    def _has_missing(self, name: str) -> bool:
        return f"missing-{name}.npy" in self._files

    def _array(self, name: str, mode: Any) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = np.load(self.folder / f"{name}.npy", mmap_mode=mode, allow_pickle=False)
        return array

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, in the order of the manifest."""
        return tuple(str(self.folder / name) for name in self._files)

    @property
    def num_keys(self) -> int:
        return len(self._keys)

    def before(self, keys: U64, times: I64, max_length: int, *, known: Bool | None = None) -> Histories:
        """For each sample the newest `max_length` rows of its key with a time before its own.

        Rows of the very time of the sample are left out: nothing tells what came first, and a sample must not see
        itself. Keys that the log does not have, and those that are not `known`, have no rows.
        """
        check_integer("max_length", max_length, 1, 2**31 - 1)
        first, end = self._span(keys)
        if known is not None:
            end = np.where(known, end, first)
        end = self._first_not_before(first, end, times)
        lengths = np.minimum(end - first, max_length)
        starts = np.cumsum(lengths) - lengths
        inner = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
        return Histories(lengths.astype(np.int32), np.repeat(end - lengths, lengths) + inner)

    def _span(self, keys: U64) -> tuple[I64, I64]:
        """int64 [n] each: the rows [first, end) of each key."""
        if not len(self._keys):
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        found = self._keys[at] == keys
        first: I64 = self._offsets[at]
        end: I64 = np.where(found, self._offsets[at + 1], first)
        return first, end

    def _first_not_before(self, first: I64, end: I64, times: I64) -> I64:
        """int64 [n]: the first row of [first, end) whose time is not before `times`: a bisection of all at once."""
        low: I64 = first.copy()
        high: I64 = end.copy()
        while len(still := np.flatnonzero(low < high)):
            middle = (low[still] + high[still]) // 2
            before = self._times[middle] < times[still]
            low[still] = np.where(before, middle + 1, low[still])
            high[still] = np.where(before, high[still], middle)
        return low

    def values(self, column: str, rows: I64) -> tuple[U64, Bool | None]:
        """(ids uint64 [n], which are missing, or None) of rows of the log."""
        ids = self._values[column][rows].astype(np.uint64)
        missing = self._missing.get(column)
        return ids, None if missing is None else missing[rows]

    def times(self, rows: I64) -> I64:
        """int64 [n]."""
        taken: I64 = np.asarray(self._times[rows])
        return taken
