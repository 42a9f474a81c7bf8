"""The chain of nodes behind a :class:`DataLoader`: rows, batches, and what training or evaluation adds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torchdata.nodes import BaseNode

from headrace.formats.bad_records import BadRecords
from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.growing import GrowingFolder
from headrace.formats.rows import RowBlock
from headrace.formats.schema import Schema
from headrace.indexer.dit import DIT
from headrace.indexer.exchange.communicator import Communicator
from headrace.ingest.batch import Batch
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.prefetch import Prefetch
from headrace.ingest.indexed_rows import IndexedRows
from headrace.ingest.nodes.batch_rows import BatchRows
from headrace.ingest.nodes.batch_share import BatchShare
from headrace.ingest.nodes.index import Index
from headrace.ingest.nodes.index_ranks import IndexRanks, Uneven
from headrace.ingest.nodes.plan_window import PlanSteps
from headrace.ingest.nodes.prefetch_batches import PrefetchBatches
from headrace.ingest.nodes.read_rows import ReadRows
from headrace.ingest.nodes.to_batch import ToBatch


@dataclass(frozen=True)
class Ranks:
    """The ranks that train together, as :class:`DataLoader` has them; `facts` must be alike on all at each start."""

    communicator: Communicator
    uneven: Uneven
    node_size: int
    hot_every: int
    facts: dict[str, object]


@dataclass(frozen=True)
class Ahead:
    """How far and how a training chain looks ahead; see :class:`PlanWindow` and :class:`PrefetchBatches`."""

    window: int
    capacity: int | None
    hot_rows: int | Literal["auto"]
    verify: bool
    idle_s: float | None
    num_workers: int
    prefetch_factor: int
    pin_memory: bool
    timeout_s: float | None


def check_dataset(dataset: object) -> None:
    """TypeError for what is neither paths nor gives rows."""
    if not isinstance(dataset, (str, bytes, os.PathLike)) and not hasattr(type(dataset), "__iter__"):
        raise TypeError(
            "dataset is a path (or several), a reader as open_dataset(name, paths), or a node as RowsFrom(source, "
            f"schema), not a {type(dataset).__name__}"
        )


def row_source(
    dataset: Any, schema: Schema, *, bad_records: BadRecords | str | None, num_workers: int
) -> tuple[BaseNode[RowBlock], ReadRows | None]:
    """The node that gives the rows of files, of a reader or, itself, of a node; and the node that reads, if it does."""
    reads_itself = isinstance(dataset, BaseNode) or hasattr(dataset, "raw_blocks")
    if bad_records is not None:
        bad_records = BadRecords.of(bad_records)
    if not reads_itself and not isinstance(dataset, GrowingFolder):
        check_dataset(dataset)
    if reads_itself and bad_records is not None:
        raise ValueError("bad_records is for files: a reader or node given as the dataset brings its own policy")
    if isinstance(dataset, BaseNode):
        return dataset, None
    if not reads_itself:
        dataset = CriteoFiles(dataset, schema, bad_records=bad_records or "raise")
    elif dataset.schema != schema:
        raise ValueError("the reader was made with another schema than the loader's")
    read = ReadRows(dataset, num_workers=num_workers)
    return read, read


def sole_reader(node: Node[Any]) -> ReadRows | None:
    """The node that reads files, at or before `node`; None where there is none, or more than one."""
    found = [one for one in nodes_of(node) if isinstance(one, ReadRows)]
    return found[0] if len(found) == 1 else None


def nodes_of(node: Node[Any]) -> Iterator[Node[Any]]:
    """`node` and all before it."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node._upstream()


def batched(
    rows: BaseNode[RowBlock], batch_size: int, *, drop_last: bool, sharded_over: Communicator | None
) -> Node[RowBlock]:
    """Batches of `batch_size` rows; this rank's share of global batches where rows are sharded over ranks."""
    if sharded_over is None:
        return BatchRows(rows, batch_size, drop_last=drop_last)
    rank, world_size = sharded_over.rank, sharded_over.world_size
    return BatchShare(rows, batch_size, rank=rank, world_size=world_size, drop_last=drop_last)


def training_chain(
    batches: Node[RowBlock], schema: Schema, index: DIT, ahead: Ahead, ranks: Ranks | None
) -> tuple[Node[Batch], PlanSteps]:
    """The node that hands out planned batches, whose unseen ids get rows; and the one that plans."""
    planner = PlanSteps(
        Prefetch(_insert(batches, schema, index, ahead, ranks)),  # indexing the next batch goes on beside planning
        schema,
        window=ahead.window,
        capacity=ahead.capacity,
        hot_rows=ahead.hot_rows if ranks is None else 0,  # over ranks they are chosen where ids are asked for
        verify=ahead.verify,
        idle_s=ahead.idle_s,
    )
    root = PrefetchBatches(
        planner,
        num_workers=min(2, max(1, ahead.num_workers)),
        prefetch_factor=ahead.prefetch_factor,
        pin_memory=ahead.pin_memory,
        timeout_s=ahead.timeout_s,
    )
    return root, planner


def _insert(
    batches: Node[RowBlock], schema: Schema, index: DIT, ahead: Ahead, ranks: Ranks | None
) -> Node[IndexedRows]:
    if ranks is None:
        return Index(batches, schema, index, num_workers=min(1, ahead.num_workers))
    return IndexRanks(
        batches,
        schema,
        index,
        ranks.communicator,
        uneven=ranks.uneven,
        look_ahead=ahead.window > 0,
        hot_rows=0 if ahead.hot_rows == "auto" else ahead.hot_rows,
        hot_every=ranks.hot_every,
        node_size=ranks.node_size,
        facts=ranks.facts,
    )


def evaluation_chain(
    batches: Node[RowBlock],
    schema: Schema,
    index: DIT,
    *,
    prefetch_factor: int,
    timeout_s: float | None,
    ranks: Ranks | None,
) -> Node[Batch]:
    """The node that hands out batches without plans. Ids are looked up as a batch is handed out: what is read ahead
    would not see the steps in between."""
    ahead = Prefetch(batches, prefetch_factor=prefetch_factor, timeout_s=timeout_s)
    if ranks is None:
        return ToBatch(Index(ahead, schema, index, insert=False))
    looked_up = IndexRanks(
        ahead,
        schema,
        index,
        ranks.communicator,
        insert=False,
        uneven=ranks.uneven,
        node_size=ranks.node_size,
        facts=ranks.facts,
    )
    return ToBatch(looked_up)
