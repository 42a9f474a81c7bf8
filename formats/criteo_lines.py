"""Whole lines of tab-separated click logs -> Arrow columns: the layout of a line, and the parser's checked front.

The grammar is strict, and is the same for the native parser and its pure-Python twin:

- a line ends at a line feed; one carriage return before it belongs to the line end. A carriage return elsewhere is a
  byte like any other, which no value may contain: files with lone carriage returns as line ends are refused;
- a tab separates two fields, always: there are no quotes and no escapes;
- label: ``0`` or ``1``; int64 and uint64: decimal digits, int64 with an optional ``-``; hex32: 1 to 8 of
  ``[0-9a-fA-F]``; hex64: 1 to 16 of them. No sign, prefix, space, underscore or other script;
- an empty field is a missing value (null); an empty label is refused, and so is an empty id with ``missing="raise"``;
- a line with no bytes is a blank line, and refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa

from headrace.formats import _criteo
from headrace.formats.bad_lines import BadLine, BadLines
from headrace.formats.batch_message import MessageHead
from headrace.formats.checks import check_integer
from headrace.formats.schema import Schema, SchemaError
from headrace.formats.text_blocks import DEFAULT_MAX_LINE_BYTES


class Kind(IntEnum):
    """What a column holds; the first five numbers are those of ``criteo_parser.hpp``, which knows no other kind."""

    LABEL = 0
    INT64 = 1
    UINT64 = 2
    HEX32 = 3
    HEX64 = 4
    FLOAT32 = 5


class Reason(IntEnum):
    """Why a row is refused; the first eight numbers are those of ``criteo_parser.hpp``, the others of other formats."""

    BLANK_LINE = 1
    COLUMN_COUNT = 2
    OVERSIZED = 3
    BAD_LABEL = 4
    BAD_DECIMAL = 5
    OUT_OF_RANGE = 6
    BAD_HEX = 7
    MISSING_ID = 8
    BAD_FLOAT = 9
    BAD_WORD = 10
    BAD_TIME = 11
    NO_LABEL = 12
    NOT_FINITE = 13
    NOT_WHOLE = 14
    BAD_FEATURE = 15
    FEATURE_COUNT = 16
    BOUGHT_UNCLICKED = 17
    SEVERAL_IDS = 18
    ROUNDED = 19


def field_reason(reason: Reason, kind: Kind, *, holds_numbers: bool = False) -> str:
    """Why a field of that kind was refused, in words; `holds_numbers`: the format takes labels with binary=False."""
    if reason == Reason.BAD_LABEL or (reason == Reason.OUT_OF_RANGE and kind == Kind.LABEL):
        return "a label is 0 or 1" + ("; declare it with binary=False to take any number" if holds_numbers else "")
    if reason == Reason.MISSING_ID:
        return "no id, and the schema says missing='raise'"
    if reason == Reason.BAD_HEX:
        return f"not 1 to {8 if kind == Kind.HEX32 else 16} hexadecimal digits"
    if reason == Reason.OUT_OF_RANGE:
        return f"does not fit into {kind.name.lower()}"
    return _REASONS.get(reason, "not a decimal integer")


_REASONS = {
    Reason.BAD_FLOAT: "not a decimal number",
    Reason.BAD_WORD: "none of the words that the format knows",
    Reason.BAD_TIME: "no such date and hour",
    Reason.NO_LABEL: "the label is missing",
    Reason.NOT_FINITE: "not finite",
    Reason.NOT_WHOLE: "not a whole number",
    Reason.BAD_FEATURE: "not a field, \\x02, an id, \\x03 and a number",
    Reason.FEATURE_COUNT: "another number of features than the list has",
    Reason.BOUGHT_UNCLICKED: "bought without a click, which the dataset says is invalid",
    Reason.ROUNDED: "an integer that float32 would round; declare the column int64, or write it as a float",
    Reason.SEVERAL_IDS: "several ids of a field that is not declared multi_hot",
}


SPARSE_KIND = {"hex32": Kind.HEX32, "hex64": Kind.HEX64, "uint64": Kind.UINT64, "int64": Kind.INT64}


class ParsedLines(NamedTuple):
    """The accepted rows in the schema's types, how many, the number of lines (bad ones counted), the refused lines."""

    batch: pa.RecordBatch
    rows: int
    lines: int
    faults: BadLines

    @property
    def columns(self) -> list[pa.Array]:
        """In schema order."""
        return list(self.batch.columns)


# What a parser accepts: anything contiguous with the buffer interface.
BytesLike = bytes | bytearray | memoryview


@dataclass(frozen=True)
class LineLayout:
    """The columns of a line in order: labels, dense, sparse. `kinds` and `required` hold a byte a column."""

    names: tuple[str, ...]
    kinds: bytes
    required: bytes
    num_labels: int
    arrow_schema: pa.Schema

    @classmethod
    def from_schema(cls, schema: Schema) -> LineLayout:
        """Layout of `schema`; a column that this text format cannot hold raises :class:`SchemaError`."""
        for label in schema.labels:
            if not label.binary:
                raise SchemaError(f"label {label.name!r}: Criteo text holds 0 or 1, not the numbers of binary=False")
        for dense in schema.dense:
            if dense.dtype != "int64":
                raise SchemaError(f"dense {dense.name!r}: Criteo text holds int64, not {dense.dtype}")
        for sparse in schema.stored_sparse:
            if sparse.multi_hot:
                raise SchemaError(f"sparse {sparse.name!r}: Criteo text has one id a field, multi_hot needs a list")
        names = schema.column_names
        if not names:
            raise SchemaError("a schema without columns describes no line")
        kinds = [Kind.LABEL] * len(schema.labels) + [Kind.INT64] * len(schema.dense)
        kinds += [SPARSE_KIND[s.encoding] for s in schema.stored_sparse]
        required = [True] * len(schema.labels) + [False] * len(schema.dense)
        required += [s.missing == "raise" for s in schema.stored_sparse]
        return cls(
            names=names,
            kinds=bytes(kinds),
            required=bytes(required),
            num_labels=len(schema.labels),
            arrow_schema=schema.arrow_schema(labels=bool(schema.labels)),
        )

    @property
    def num_columns(self) -> int:
        return len(self.names)

    @property
    def separator(self) -> str:
        return "\t"

    @property
    def declared_by(self) -> str:
        return "the schema declares"

    def column_count_hint(self, found: int) -> str:
        if self.num_labels and found == self.num_columns - self.num_labels:
            return "this looks like a file without label; declare the schema without labels (labels=False, --no-labels)"
        if not self.num_labels and found == self.num_columns + 1:
            return "this looks like a file with a label; declare it in the schema"
        return ""

    def field_reason(self, bad: BadLine) -> str:
        return field_reason(Reason(bad.reason), Kind(self.kinds[bad.column]))

    @cached_property
    def message_head(self) -> MessageHead:
        return MessageHead.of(self.arrow_schema)

    def record_batch(self, columns: list[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    def empty_batch(self) -> pa.RecordBatch:
        return self.record_batch([pa.array([], field.type) for field in self.arrow_schema])


def parse_lines(
    data: BytesLike,
    layout: LineLayout,
    *,
    first_line: int = 0,
    lines: int | None = None,
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
    tiles: bool = True,
) -> ParsedLines:
    """Parse `data` (bytes-like, whole lines; the last one may lack its line feed) natively, without the GIL.

    The batch owns its memory (one allocation for all of it) and does not refer to `data`. `first_line` is the
    0-based number of the first line; `lines`, where it is known, saves counting them (more of them raise ValueError). A
    line of more than `max_line_bytes` bytes (line feed aside) is refused. Bad lines raise nothing: they are listed.
    ``tiles=False`` takes every line by itself, as on a machine without AVX2; for tests, the result is the same.
    """
    check_integer("max_line_bytes", max_line_bytes, 1, 2**62)
    buffer, rows, lines, table = _criteo.parse_block(
        data, layout.kinds, layout.required, layout.message_head, max_line_bytes, -1 if lines is None else lines, tiles
    )
    table[:, 0] += first_line + 1
    return ParsedLines(layout.message_head.read(buffer), rows, lines, BadLines(table))
