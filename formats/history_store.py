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
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.formats.checks import check_integer
from headrace.formats.errors import ManifestError
from headrace.formats.files import PathLike
from headrace.formats.history_runs import I64
from headrace.formats.manifest import Verify, check_folder, check_verify, read_manifest
from headrace.formats.text_values import U64, Bool

TOOL = "headrace convert --history"
I32 = npt.NDArray[np.int32]
_CHECKED_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Histories:
    """Rows of a log for each of n samples, oldest first: lengths int32 [n], rows int64 [sum of lengths]."""

    lengths: I32
    rows: I64


class HistoryStore:
    """A sorted log. Thread-safe; only the users and their offsets (16 bytes a user) are held in memory.

    Raises ManifestError for a folder that was not written whole by `headrace convert --history`, or changed since
    (sizes; with ``verify="full"`` hashes), and for arrays that do not belong together. `made_from` says in its message
    what the command is to sort.
    """

    def __init__(self, folder: PathLike, *, verify: Verify = "size", made_from: str = "LOG --dataset NAME") -> None:
        check_verify(verify)
        self.folder = Path(os.path.abspath(folder))
        manifest = read_manifest(self.folder) if self.folder.is_dir() else None
        if manifest is None or manifest.parameters.get("tool") != TOOL:
            command = f"headrace convert {made_from} --history --out {shlex.quote(str(self.folder))}"
            raise ManifestError(str(self.folder), f"is no sorted log; make one with {command}")
        check_folder(self.folder, manifest, verify=verify)
        self._files = manifest.files
        columns = manifest.parameters.get("columns")
        if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
            raise ManifestError(str(self.folder), "its manifest does not say which columns the log has")
        self.columns: tuple[str, ...] = tuple(columns)
        self._times: I64 = self._array("times", "i8")
        self.num_rows: int = len(self._times)
        self._keys = self._array("keys", "u8")
        self._offsets = self._array("offsets", "i8")
        self._values = {name: self._array(f"value-{name}", "u4", "u8", rows=self.num_rows) for name in self.columns}
        kept = [name for name in self.columns if f"missing-{name}.npy" in self._files]
        self._missing = {name: self._array(f"missing-{name}", "b1", rows=self.num_rows) for name in kept}
        self._check_users()

    def _array(self, name: str, *dtypes: str, rows: int | None = None) -> npt.NDArray[Any]:
        """A file's values, mapped; ManifestError unless they are a row of one of the `dtypes`, `rows` long."""
        file = f"{name}.npy"
        if file not in self._files:
            raise ManifestError(str(self.folder), f"its manifest has no {file}")
        try:
            mapped = np.load(self.folder / file, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise ManifestError(str(self.folder / file), f"is no array: {error}") from error
        array: npt.NDArray[Any] = np.asarray(mapped)
        if array.ndim != 1 or array.dtype not in map(np.dtype, dtypes) or rows not in (None, len(array)):
            wanted = f"{'any' if rows is None else rows} values of {' or '.join(dtypes)}"
            raise ManifestError(str(self.folder / file), f"has {array.shape} values of {array.dtype}, not {wanted}")
        return array

    def _check_users(self) -> None:
        """Each user has rows, those behind the last one's, and the users ascend: a look-up trusts in it."""
        users, offsets = self._keys, self._offsets
        if len(offsets) != len(users) + 1 or offsets[0] != 0 or offsets[-1] != self.num_rows:
            raise ManifestError(str(self.folder), "offsets.npy is not of these users and rows: damaged")
        for at in range(0, len(users), _CHECKED_AT_ONCE):
            part = slice(at, at + _CHECKED_AT_ONCE + 1)
            if (offsets[part][1:] <= offsets[part][:-1]).any() or (users[part][1:] <= users[part][:-1]).any():
                raise ManifestError(str(self.folder), "keys.npy or offsets.npy does not ascend: damaged")

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
