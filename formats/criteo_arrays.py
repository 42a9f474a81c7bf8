"""The binary forms in which Criteo data is passed around: records, ``.npz`` and ``.npy``, one-hot and multi-hot.

Each form opens its files as a :class:`Shard`: labels, dense values and ids of the same rows. All are positional: the
first label, 13 dense columns, 26 ids.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.formats.arrays_on_disk import (
    ArrayOnDisk,
    open_integers,
    open_npy,
    open_npz,
    open_records,
    open_values,
)
from headrace.formats.criteo import NUM_DENSE, NUM_SPARSE
from headrace.formats.errors import ColumnMismatchError, CorruptShardError
from headrace.formats.store import Store

Array = npt.NDArray[Any]

DCNV2_MULTI_HOT_SIZES = (
    3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1,
)  # fmt: skip
"""Ids a row of each feature in MLPerf's DLRM-DCNv2."""

DCNV2_TABLE_SIZES = (
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10, 2_209,
    11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36,
)  # fmt: skip
"""Rows of each table in MLPerf's DLRM-DCNv2: ids are taken modulo these."""


class ShardRows(NamedTuple):
    """Rows of a shard: labels [rows], dense [rows, 13], and the ids of each feature [rows, ids a row]."""

    labels: Array
    dense: Array
    sparse: list[Array]


class Shard(ABC):
    """The open files of one part of a dataset."""

    rows: int
    row_bytes: int

    @abstractmethod
    def read(self, first: int, rows: int) -> ShardRows:
        """Rows [first, first + rows); at most `rows` rows are held."""

    @abstractmethod
    def close(self) -> None: ...


@dataclass(frozen=True)
class ArrayForm:
    """A form: `suffix` ends the name of the file that stands for a shard, `siblings` those of the others."""

    name: str
    suffix: str
    open: Callable[[str, Store], Shard]
    siblings: tuple[str, ...] = ()

    def files(self, path: str) -> tuple[str, ...]:
        """All files of the shard that `path` stands for."""
        return (path, *(path.removesuffix(self.suffix) + sibling for sibling in self.siblings))

    def shard_of(self, path: str) -> str | None:
        """The file that stands for the shard of a sibling; None for what is no sibling."""
        for sibling in self.siblings:
            if path.endswith(sibling):
                return path.removesuffix(sibling) + self.suffix
        return None

    def parts(self) -> str:
        """In words, which files a shard is."""
        names = [f"*{end}" for end in (self.suffix, *self.siblings)]
        return f"a part of such data is {names[0]}" + (
            f" with {' and '.join(names[1:])} beside it" if names[1:] else ""
        )


class _Records(Shard):
    """int32 label, 13 dense values (int32, or the bits of float32), the ids of 26 features as int32."""

    def __init__(self, path: str, store: Store, *, float_dense: bool, hot: Sequence[int]) -> None:
        self._array = open_records(path, 1 + NUM_DENSE + sum(hot), store)
        self.rows, self.row_bytes = self._array.rows, self._array.row_bytes
        self._dense_dtype = np.dtype(np.float32 if float_dense else np.int32)
        self._ends = [1 + NUM_DENSE, *(1 + NUM_DENSE + np.cumsum(hot)).tolist()]

    def read(self, first: int, rows: int) -> ShardRows:
        words = self._array.read(first, rows)
        dense = words[:, 1 : 1 + NUM_DENSE].copy().view(self._dense_dtype)
        sparse = [words[:, begin:end] for begin, end in zip(self._ends, self._ends[1:], strict=False)]
        return ShardRows(words[:, 0], dense, sparse)

    def close(self) -> None:
        self._array.close()


class _Arrays(Shard):
    """An array of labels, one of dense values, and either one of ids or one for each feature."""

    def __init__(self, labels: ArrayOnDisk, dense: ArrayOnDisk, sparse: Sequence[ArrayOnDisk]) -> None:
        self._arrays = (labels, dense, *sparse)
        self.rows = labels.rows
        self.row_bytes = sum(a.row_bytes for a in self._arrays)
        for array in self._arrays:
            if array.rows != self.rows:
                reason = f"{array.rows} rows, but the labels in {os.path.basename(labels.path)} have {self.rows}"
                raise CorruptShardError(array.path, array.file_bytes, min(array.rows, self.rows), reason)
        for array, width, what in ((labels, 1, "labels"), (dense, NUM_DENSE, "dense")):
            if array.width != width:
                raise ColumnMismatchError(array.path, what, f"{array.width} values a row, expected {width}")
        for array in sparse:
            if array.dtype.kind not in "iu":
                reason = f"values of {array.dtype}: ids are integers, and a float cannot hold every id"
                raise ColumnMismatchError(array.path, "ids", reason)
        if len(sparse) == 1 and sparse[0].width != NUM_SPARSE:
            raise ColumnMismatchError(sparse[0].path, "ids", f"{sparse[0].width} a row, expected {NUM_SPARSE}")

    def read(self, first: int, rows: int) -> ShardRows:
        labels, dense, *sparse = (array.read(first, rows) for array in self._arrays)
        if len(sparse) == 1:
            sparse = [sparse[0][:, i : i + 1] for i in range(NUM_SPARSE)]
        return ShardRows(labels[:, 0], dense, sparse)

    def close(self) -> None:
        for array in self._arrays:
            array.close()


def _open_npz_of_dlrm(path: str, store: Store) -> Shard:
    with contextlib.ExitStack() as on_error:
        (labels,) = open_npz(path, ("y",), store)
        on_error.callback(labels.close)
        dense, sparse = open_npz(path, ("X_int", "X_cat"), store, rows=labels.rows)
        for array in (dense, sparse):
            on_error.callback(array.close)
        shard = _Arrays(labels, dense, [sparse])
        on_error.pop_all()
        return shard


def _open_npy_files(path: str, store: Store) -> Shard:
    with contextlib.ExitStack() as on_error:
        arrays = []
        for name in (*TORCHREC_NPY.files(path)[1:], path):
            arrays.append(open_npy(name, store))
            on_error.callback(arrays[-1].close)
        shard = _Arrays(arrays[0], arrays[1], arrays[2:])
        on_error.pop_all()
        return shard


def _open_multi_hot(path: str, store: Store) -> Shard:
    with contextlib.ExitStack() as on_error:
        arrays = []
        for name in DCNV2_NPZ.files(path)[1:]:
            arrays.append(open_npy(name, store))
            on_error.callback(arrays[-1].close)
        features = open_npz(path, [str(i) for i in range(NUM_SPARSE)], store, rows=arrays[0].rows)
        for array in features:
            on_error.callback(array.close)
        shard = _Arrays(arrays[0], arrays[1], features)
        on_error.pop_all()
        return shard


def _open_split(path: str, store: Store) -> Shard:
    with contextlib.ExitStack() as on_error:
        label, numerical, *features = NVIDIA_SPLIT.files(path)
        arrays = [open_values(label, dtype=np.dtype(np.uint8), width=1, store=store)]
        on_error.callback(arrays[0].close)
        arrays.append(open_values(numerical, dtype=np.dtype("<f2"), width=NUM_DENSE, store=store))
        on_error.callback(arrays[1].close)
        for feature in features:
            arrays.append(open_integers(feature, rows=arrays[0].rows, store=store))
            on_error.callback(arrays[-1].close)
        shard = _Arrays(arrays[0], arrays[1], arrays[2:])
        on_error.pop_all()
        return shard


_ONE_HOT = (1,) * NUM_SPARSE

DLRM_BIN = ArrayForm("dlrm-bin", ".bin", lambda path, store: _Records(path, store, float_dense=False, hot=_ONE_HOT))
"""DLRM v1's ``train_data.bin`` ..: 40 int32, 160 bytes a row; dense values as counted, the log is taken when read."""

PACKED_BIN = ArrayForm("packed-bin", ".bin", lambda path, store: _Records(path, store, float_dense=True, hot=_ONE_HOT))
"""TorchRec's and NVIDIA's packed records: int32, 13 float32, 26 int32, 160 bytes a row."""

DCNV2_BIN = ArrayForm(
    "dcnv2-bin", ".bin", lambda path, store: _Records(path, store, float_dense=True, hot=DCNV2_MULTI_HOT_SIZES)
)
"""HugeCTR's raw form of DLRM-DCNv2: int32, 13 float32, 214 int32, 912 bytes a row."""

DLRM_NPZ = ArrayForm("dlrm-npz", ".npz", _open_npz_of_dlrm)
"""DLRM v1's ``*_reordered.npz`` and ``*_processed.npz``: ``X_int``, ``X_cat``, ``y``."""

TORCHREC_NPY = ArrayForm("torchrec-npy", "_sparse.npy", _open_npy_files, siblings=("_labels.npy", "_dense.npy"))
"""TorchRec's ``day_i_{dense,sparse,labels}.npy``; dense values are transformed already, by constants of each file."""

DCNV2_NPZ = ArrayForm("dcnv2-npz", "_sparse_multi_hot.npz", _open_multi_hot, siblings=("_labels.npy", "_dense.npy"))
"""MLPerf's DLRM-DCNv2: ``day_i_sparse_multi_hot.npz`` with an array a feature, dense values and labels beside it."""

NVIDIA_SPLIT = ArrayForm(
    "nvidia-split",
    "label.bin",
    _open_split,
    siblings=("numerical.bin", *(f"cat_{i}.bin" for i in range(NUM_SPARSE))),
)
"""NVIDIA's DLRM after its split: for each part a folder of ``label.bin`` (a byte a row), ``numerical.bin`` (13 float16
a row, transformed already) and ``cat_0.bin`` .. ``cat_25.bin``, each of the smallest signed integers for its ids."""
