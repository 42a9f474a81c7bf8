"""ToBatch: indexed rows as the batch that a model takes, without a plan (evaluation)."""

from __future__ import annotations

from torchdata.nodes import BaseNode

from headrace.ingest.batch import Batch
from headrace.ingest.engine.node import Node
from headrace.ingest.indexed_rows import IndexedRows
from headrace.ingest.rank_rows import RankRows


class ToBatch(Node[Batch]):
    """Give each indexed row block its final dtypes, offsets and transpose; ``batch.plan`` is None."""

    def __init__(self, source: BaseNode[IndexedRows] | BaseNode[RankRows]) -> None:
        super().__init__(source)

    def _next(self) -> Batch:
        rows: IndexedRows | RankRows = self._pull()
        return rows.to_batch(None)
