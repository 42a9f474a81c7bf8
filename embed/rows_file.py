"""The written rows of one group as an Arrow IPC file: location uint64, row fixed-size list of float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.embed.arrays import F32, U64
from headrace.embed.run_folder import CheckpointError

_BATCH_ROWS = 1 << 16


def write_rows(path: Path, locations: U64, rows: F32) -> None:
    """Write locations uint64 [n] and rows float32 [n, width]."""
    width = rows.shape[1]
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), width)
    table = pa.table({"location": pa.array(locations), "row": column})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=_BATCH_ROWS)


def read_rows(path: Path) -> tuple[U64, F32]:
    """What :func:`write_rows` wrote; CheckpointError, which names the file, for anything else."""
    try:
        with pa.OSFile(str(path), "rb") as source, pa.ipc.open_file(source) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (pa.lib.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:  # the system's, not Arrow's
            raise
        raise CheckpointError(f"{path}: not a file of rows: {error}") from error
    _check_columns(path, table)
    width = table.schema.field("row").type.list_size
    locations = table.column("location").to_numpy()
    values = table.column("row").combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return locations.astype(np.uint64, copy=False), values.reshape(len(locations), width)


def _check_columns(path: Path, table: pa.Table) -> None:
    if table.schema.names != ["location", "row"]:
        raise CheckpointError(f"{path}: columns {table.schema.names} are not those of rows")
    location, row = (table.schema.field(name).type for name in ("location", "row"))
    floats = pa.types.is_fixed_size_list(row) and row.value_type == pa.float32()
    if location != pa.uint64() or not floats:
        raise CheckpointError(f"{path}: locations of {location} and rows of {row}, not uint64 and lists of float")
    values = table.column("row").combine_chunks().flatten()
    if table.column("location").null_count or table.column("row").null_count or values.null_count:
        raise CheckpointError(f"{path}: locations and rows have no nulls, these have")
