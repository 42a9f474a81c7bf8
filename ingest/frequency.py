"""Ids that occur too rarely as one id: the `frequency_threshold` of published preprocessing. Off unless it is applied.

headrace needs no vocabulary, and gives every id a row of its own. Published results that were trained on ids with a
threshold are reproduced by counting the training data once and mapping its ids by what was counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrow_buffers import null_mask, primitive_values
from headrace.formats.arrow_arrays import to_arrow
from headrace.formats.checks import check_integer
from headrace.formats.id_counts import DEFAULT_MAX_ENTRIES, IdCounters
from headrace.formats.rows import RowBlock
from headrace.formats.schema import Schema, Sparse
from headrace.ingest.columns import as_ids, column_mask, list_ids, one_hot
from headrace.ingest.derived_ids import U64, Bool

RARE_ID = 1
FIRST_CONTIGUOUS_ID = 2
"""TorchRec's numbers: 1 is what occurs too rarely (and 0 is free), the others count from 2 in the order of their first
appearance."""


@dataclass(frozen=True)
class _Known:
    """Ids that occur often enough, ascending, and what each of them becomes."""

    ids: U64
    becomes: U64


class FrequencyThreshold:
    """A transform RowBlock -> RowBlock: an id that was counted less than `threshold` times becomes `RARE_ID`.

    With ``contiguous=True`` the others become 2, 3, .. in the order of their first appearance in the counted rows, so
    that ids are those of TorchRec's ``sparse_to_contiguous``; otherwise they stay what they are (an id that is 1
    itself shares the row of rare ones then). A missing value stays one, except with ``missing="zero"``, where it is
    counted as, and is, id 0. Columns of lists are mapped element by element; crosses and buckets are made of the mapped
    ids.
    """

    def __init__(self, schema: Schema, known: Mapping[str, _Known]) -> None:
        self.schema = schema
        self._known = dict(known)

    @classmethod
    def count(
        cls,
        blocks: Iterable[RowBlock],
        schema: Schema,
        threshold: int | Mapping[str, int],
        *,
        contiguous: bool = False,
        max_entries: int = DEFAULT_MAX_ENTRIES,
        folder: str | Path | None = None,
    ) -> FrequencyThreshold:
        """Count the ids of `blocks`, such as a node of the training data, for all features or those of a mapping.

        Rarer ids are counted on disk where they do not fit (see :class:`IdCounters`); those that are kept, 16 bytes
        each, are held in memory, and with `contiguous` the first place of all ids, 16 bytes each, is too.
        """
        thresholds = _thresholds(schema, threshold)
        features = [s for s in schema.stored_sparse if s.name in thresholds]
        first = {s.name: _FirstSeen() for s in features if contiguous}
        with IdCounters(list(thresholds), max_entries=max_entries, folder=folder) as counters:
            for block in blocks:
                for feature in features:
                    ids = _counted(block, feature)
                    counters.add(feature.name, ids)
                    if contiguous:
                        first[feature.name].add(ids)
            known = {}
            for name, least in thresholds.items():
                kept = [run.ids[run.counts >= least] for run in counters.blocks(name)]
                ids = np.concatenate([np.zeros(0, np.uint64), *kept])
                known[name] = _Known(ids, first[name].numbered(ids) if contiguous else ids)
        return cls(schema, known)

    def kept_ids(self, feature: str) -> int:
        """How many ids of a feature occurred often enough."""
        return len(self._known[feature].ids)

    def __call__(self, block: RowBlock) -> RowBlock:
        data = block.data
        for feature in self.schema.stored_sparse:
            if feature.name in self._known:
                position = data.schema.get_field_index(feature.name)
                data = data.set_column(position, data.schema.field(position), self._mapped(block, feature))
        return RowBlock(data, block.source)

    def _mapped(self, block: RowBlock, feature: Sparse) -> pa.Array:
        array = block.data.column(block.data.schema.get_field_index(feature.name))
        values, missing, dtype = _elements(block, feature)
        known = self._known[feature.name]
        words = values.astype(np.uint64, copy=False)
        if len(known.ids):
            at = np.minimum(np.searchsorted(known.ids, words), len(known.ids) - 1)
            found = np.where(known.ids[at] == words, known.becomes[at], np.uint64(RARE_ID))
        else:
            found = np.full(len(words), RARE_ID, np.uint64)
        kind = array.type.value_type if feature.multi_hot else array.type
        mapped = to_arrow(found.astype(dtype), missing, kind)
        if not feature.multi_hot:
            return mapped
        lengths = list_ids(block, feature)[1]
        offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int64() if _is_large(array.type) else pa.int32())
        mask = column_mask(block, feature.name)
        kind_of_lists = pa.LargeListArray if _is_large(array.type) else pa.ListArray
        return kind_of_lists.from_arrays(
            offsets, mapped, type=array.type, mask=None if mask is None else pa.array(mask)
        )


class _FirstSeen:
    """Distinct ids in the order of their first appearance."""

    def __init__(self) -> None:
        self._ids = np.zeros(0, np.uint64)  # ascending
        self._place = np.zeros(0, np.int64)
        self._seen = 0

    def add(self, ids: U64) -> None:
        new, first = np.unique(ids, return_index=True)
        if len(self._ids):
            at = np.minimum(np.searchsorted(self._ids, new), len(self._ids) - 1)
            unseen = self._ids[at] != new
            new, first = new[unseen], first[unseen]
        if len(new):
            where = np.searchsorted(self._ids, new)
            self._ids = np.insert(self._ids, where, new)
            self._place = np.insert(self._place, where, first + self._seen)
        self._seen += len(ids)

    def numbered(self, kept: U64) -> U64:
        """2, 3, .. for the ids `kept` (ascending) by first appearance; in the order of `kept`."""
        order = np.argsort(self._place[np.searchsorted(self._ids, kept)])
        numbers = np.empty(len(kept), np.uint64)
        numbers[order] = np.arange(FIRST_CONTIGUOUS_ID, FIRST_CONTIGUOUS_ID + len(kept), dtype=np.uint64)
        return numbers


def _elements(block: RowBlock, feature: Sparse) -> tuple[npt.NDArray[Any], Bool | None, npt.DTypeLike]:
    """(ids as unsigned words, missing or None, dtype of the column) of all elements, ``missing="zero"`` applied."""
    if feature.multi_hot:
        flat, _ = list_ids(block, feature)
        values, missing = as_ids(primitive_values(flat), feature.name), null_mask(flat)
    else:
        values, missing = one_hot(block, feature)
    if missing is not None and feature.missing == "zero":
        values, missing = np.where(missing, values.dtype.type(0), values), None
    return values, missing, values.dtype


def _counted(block: RowBlock, feature: Sparse) -> U64:
    values, missing, _ = _elements(block, feature)
    ids: U64 = (values if missing is None else values[~missing]).astype(np.uint64, copy=False)
    return ids


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_list(kind))


def _thresholds(schema: Schema, threshold: int | Mapping[str, int]) -> dict[str, int]:
    names = [s.name for s in schema.stored_sparse]
    given = dict(threshold) if isinstance(threshold, Mapping) else dict.fromkeys(names, threshold)
    if unknown := sorted(set(given) - set(names)):
        raise ValueError(f"frequency threshold of {unknown[0]!r}, which is no sparse column of the files")
    return {name: check_integer(f"frequency threshold of {name!r}", n, 1, 2**62) for name, n in given.items()}
