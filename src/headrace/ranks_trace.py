"""The trace of a dataset or of a generated stream, for `headrace plan --ranks` and its like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from headrace.bench import BLOCK_ROWS, preset_stream, stream_batches
from headrace.cli_inputs import open_data
from headrace.formats.generate.blocks import in_order
from headrace.formats.schema import table_uid
from headrace.indexer.bench_contenders import Batch
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import U32, U64, IdColumn, IndexTable
from headrace.ingest.columns import id_column
from headrace.ingest.nodes.batch_rows import BatchRows
from headrace.ingest.nodes.read_rows import ReadRows
from headrace.ingest.plan.simulation.trace import Trace, record


def preset_trace(preset: str, *, batch_size: int, num_batches: int, num_workers: int, seed: int) -> Trace:
    """The first batches of a preset's generated stream, without files; `num_workers` threads draw it ahead."""
    names = list(preset_stream(preset, seed).preset.sparse)
    return record(
        preset_batches(preset, batch_size=batch_size, num_workers=num_workers, seed=seed, num_batches=num_batches),
        one_layout([table_uid(name) for name in names]),
        batch_size=batch_size,
        num_batches=num_batches,
    )


def preset_batches(preset: str, *, batch_size: int, num_batches: int, num_workers: int, seed: int) -> Iterator[Batch]:
    """The first batches of a preset's stream, in order."""
    if BLOCK_ROWS % batch_size:
        raise ValueError(
            f"batch_size={batch_size} (--batch-size): a generated stream is cut into batches of a power of two up to "
            f"{BLOCK_ROWS} rows"
        )
    stream = preset_stream(preset, seed)

    def draw(block: int) -> list[Batch]:
        return stream_batches(stream, BLOCK_ROWS, batch_size, first_block=block)

    for batches in in_order(draw, -(-num_batches * batch_size // BLOCK_ROWS), max(1, num_workers)):
        yield from batches


def indexed_preset(
    preset: str, *, batch_size: int, num_batches: int, num_workers: int, seed: int
) -> Iterator[tuple[U64, U32]]:
    """Locations of the unique rows (of a fresh index), and query ids, of each of the first batches."""
    names = list(preset_stream(preset, seed).preset.sparse)
    batches = preset_batches(preset, batch_size=batch_size, num_batches=num_batches, num_workers=num_workers, seed=seed)
    with DIT(one_layout([table_uid(name) for name in names])) as index:
        for columns in islice(batches, num_batches):
            found = index.index(columns)
            if found.ticket is not None:
                index.commit(found.ticket)
            yield found.groups[0].locations, found.groups[0].query_ids


def data_trace(
    data: str | list[str],
    *,
    dataset: str,
    labels: bool,
    batch_size: int,
    num_batches: int,
    num_workers: int,
) -> Trace:
    """The first whole batches of a dataset's files."""
    reader = open_data(dataset, data, labels=labels)
    found = reader.schema
    table_of = {table.name: t for t, table in enumerate(found.tables)}
    rows = BatchRows(ReadRows(reader, num_workers=num_workers), batch_size, drop_last=True)

    def batches() -> Iterator[Sequence[IdColumn]]:
        rows.reset()
        try:
            for block in rows:
                yield [id_column(block, column, table_of[column.table]).column for column in found.sparse]
        finally:
            rows.close()

    uids = [table.uid for table in found.tables]
    return record(batches(), one_layout(uids), batch_size=batch_size, num_batches=num_batches)


def one_layout(uids: Sequence[int]) -> list[IndexTable]:
    """All tables as one row layout."""
    return [IndexTable(uid=uid, group=0) for uid in uids]
