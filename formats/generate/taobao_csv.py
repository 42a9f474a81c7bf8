"""Lines of Taobao UserBehavior: ``user,item,cate,behavior,timestamp``; decimal ids from 1, UTC seconds, LF, no header.

The label is "more than a page view": 0 is written as ``pv``, 1 as ``cart``, ``fav`` or ``buy`` in the shares of the
full file (5,530,446, 2,888,258 and 2,015,839 of 10,434,543). Time runs evenly, one day every `day_rows` rows, from
midnight of 25 November 2017 in China (UTC+8); rows are in order of time, where the original is in order of users.
"""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from headrace.formats.generate.mixing import U32
from headrace.formats.generate.popularity import I64

BEHAVIOURS = ("pv", "cart", "fav", "buy")
FIRST_SECOND = 1_511_539_200
_SHARES = np.cumsum([5_530_446, 2_888_258, 2_015_839]) / 10_434_543

U8 = npt.NDArray[np.uint8]


def draw_behaviours(generator: np.random.Generator, labels: U8) -> U8:
    """uint8 [rows] position in :data:`BEHAVIOURS`; takes one double a row."""
    chosen = 1 + np.searchsorted(_SHARES[:-1], generator.random(len(labels)), side="right")
    return np.where(labels == 1, chosen, 0).astype(np.uint8)


def timestamps(first_row: int, rows: int, day_rows: int) -> I64:
    """int64 [rows] UTC seconds of the rows from `first_row` on."""
    return FIRST_SECOND + np.arange(first_row, first_row + rows, dtype=np.int64) * 86_400 // day_rows


def format_taobao(ids: U32, behaviours: U8, seconds: I64) -> bytes:
    """Text of rows.

    ids: uint32 [3, rows] (user, item, category; 1 is added); behaviours: uint8 [rows]; seconds: int64 [rows]
    """
    if ids.ndim != 2 or len(ids) != 3 or behaviours.shape != seconds.shape or ids.shape[1:] != seconds.shape:
        raise ValueError(f"shapes: ids {ids.shape}, behaviours {behaviours.shape}, seconds {seconds.shape}")
    if not seconds.size:
        return b""
    names = pa.DictionaryArray.from_arrays(pa.array(behaviours.astype(np.int32)), pa.array(BEHAVIOURS))
    columns = [pa.array(column.astype(np.int64) + 1) for column in ids]
    table = pa.table(
        [*columns, names.dictionary_decode(), pa.array(seconds)], ["user", "item", "cate", "behavior", "time"]
    )
    sink = io.BytesIO()
    options = pa.csv.WriteOptions(include_header=False, quoting_style="none", batch_size=65_536)
    pa.csv.write_csv(table, sink, options)
    return sink.getvalue()
