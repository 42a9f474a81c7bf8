"""Row blocks to the arrays of a batch: natively where all columns are plain, as `columns.py` does otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.formats.rows import RowBlock
from headrace.formats.schema import Schema
from headrace.ingest._gather import Gatherer
from headrace.ingest.array_pool import ArrayPool
from headrace.ingest.columns import F32, Ragged, dense_matrix, label_matrix, with_policy
from headrace.ingest.features import feature_column

_LABEL, _DENSE_INT64, _DENSE_FLOAT32, _ID32, _ID64 = range(5)


@dataclass(frozen=True)
class RowArrays:
    """`dense` float32 [B, n_dense]; `labels` float32 [B], [B, n_labels] or None; the ids of each feature."""

    dense: F32
    labels: F32 | None
    ids: list[Ragged]


class RowConverter:
    """Blocks of a schema's rows as arrays, errors and all as :mod:`headrace.ingest.columns` says.

    Blocks whose columns are just the schema's, none of them a list or under a transform but log1p, are converted
    natively in one pass, those of several parts without joining them first; others, such as what a user's transform
    made, column by column.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._arrow_schema = schema.arrow_schema(labels=bool(schema.labels))
        self._tables = {t.name: i for i, t in enumerate(schema.tables)}
        self._gatherer = Gatherer(_roles(schema)) if _is_plain(schema) else None
        self._pool = ArrayPool()  # of the ids, which the index has done with a moment later

    def convert(self, block: RowBlock) -> RowArrays:
        parts = block.parts
        if self._gatherer is not None and all(p.schema.equals(self._arrow_schema) for p in parts):
            arrays = self._natively(block, self._gatherer)
            if arrays is not None:
                return arrays
        dense = dense_matrix(block, self._schema.dense)
        labels = label_matrix(block, self._schema)
        ids = [feature_column(block, self._schema, f, self._tables[f.table]) for f in self._schema.sparse]
        return RowArrays(dense, labels, ids)

    def _natively(self, block: RowBlock, gatherer: Gatherer) -> RowArrays | None:
        """None for rows that are refused: the other way says why."""
        exported = [part.__arrow_c_array__()[1] for part in block.parts]
        labels, dense, ids32, ids64, missing, nulls, refused = gatherer.gather(exported, block.num_rows, self._pool)
        if refused:
            return None
        narrow, wide = iter(ids32), iter(ids64)
        ids = []
        for feature, mask, count in zip(self._schema.sparse, missing, nulls.tolist(), strict=True):
            values = next(narrow) if feature.encoding == "hex32" else next(wide)
            ids.append(with_policy(block, feature, values, mask if count else None, self._tables[feature.table]))
        count = len(self._schema.labels)
        return RowArrays(dense, (labels[:, 0] if count == 1 else labels) if count else None, ids)


def _is_plain(schema: Schema) -> bool:
    return all(dense.transform in ("identity", "log1p") for dense in schema.dense) and not any(
        feature.multi_hot or feature.derived or feature.modulo is not None for feature in schema.sparse
    )


def _roles(schema: Schema) -> list[tuple[int, bool, float]]:
    """What becomes of each Arrow column of a plain schema."""
    roles = [(_LABEL, False, 0.0) for _ in schema.labels]
    for dense in schema.dense:
        role = _DENSE_INT64 if dense.dtype == "int64" else _DENSE_FLOAT32
        roles.append((role, dense.transform == "log1p", dense.fill))
    return roles + [(_ID32 if feature.encoding == "hex32" else _ID64, False, 0.0) for feature in schema.sparse]
