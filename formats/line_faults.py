"""What a refused line of a text file means, in words for the one who has to repair it."""

from __future__ import annotations

import re
from typing import Protocol

from headrace.formats.bad_lines import BadLine
from headrace.formats.criteo_lines import Reason
from headrace.formats.errors import BadRecordError
from headrace.formats.file_kinds import kind_of

_SEPARATORS = {
    "\t": "tabs",
    ",": "commas",
    ";": "semicolons",
    " ": "spaces",
    "|": "bars",
    "^": "carets",
    "\x01": "control-A bytes",
}
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_UTF16_HINT = "this looks like UTF-16; convert it to UTF-8"


class Layout(Protocol):
    """What a description needs of a line's layout."""

    @property
    def names(self) -> tuple[str, ...]:
        """Columns that a fault may name by their ordinal."""

    @property
    def num_columns(self) -> int:
        """Fields of a line."""

    @property
    def separator(self) -> str: ...

    @property
    def declared_by(self) -> str:
        """Who says how many fields there are: "the schema declares"."""

    def column_count_hint(self, found: int) -> str:
        """What a line of `found` fields may be, in this format; "" when nothing is known."""

    def field_reason(self, bad: BadLine) -> str:
        """What is wrong with one field."""


def describe(
    bad: BadLine, *, file: str, layout: Layout, text: memoryview, text_offset: int, max_line_bytes: int
) -> BadRecordError:
    """The error for `bad`, a line of `text`, which begins at byte `text_offset` of `file`."""
    line = bytes(text[bad.line_begin : bad.line_end])
    offending = bytes(text[bad.begin : bad.end])
    reason = Reason(bad.reason)
    if reason == Reason.COLUMN_COUNT:
        what = f"{bad.found} columns where {layout.declared_by} {layout.num_columns}"
        hint = _column_count_hint(line, bad, layout)
    elif reason == Reason.BLANK_LINE:
        what, hint = "blank line", "blank lines are accepted at the end of a file only"
    elif reason == Reason.OVERSIZED:
        what = f"row exceeds {max_line_bytes} bytes at byte {text_offset + bad.line_begin + max_line_bytes}"
        hint = "a lost line feed, or not a text file; max_line_bytes sets the limit"
    else:
        what, hint = layout.field_reason(bad), _field_hint(offending, reason, bad)
    column = layout.names[bad.column] if bad.column >= 0 else ""
    return BadRecordError(file, bad.line, column, offending, what, hint)


def _column_count_hint(line: bytes, bad: BadLine, layout: Layout) -> str:
    expected = layout.num_columns
    if kind := kind_of(line):
        return f"this is {kind}"
    if line.startswith(_UTF16_MARKS):
        return _UTF16_HINT
    if b"\0" in line:
        return "zero bytes: no text file; tar shards are --dataset tar, other forms have names of their own"
    if b"\r" in line.rstrip(b"\r"):
        return "a carriage return without line feed does not end a line"
    for separator, name in _SEPARATORS.items():
        if separator != layout.separator and bad.found == 1 and line.count(separator.encode()) >= _enough(expected):
            own = _SEPARATORS.get(layout.separator, repr(layout.separator))
            return (
                f"the columns look separated by {name} ({separator!r}); this format has {own}: open_dataset(NAME, ...) "
                "and --dataset NAME read other formats, csv text of yours with a header"
            )
    if hint := layout.column_count_hint(bad.found):
        return hint
    return f"columns are separated by {_SEPARATORS.get(layout.separator, repr(layout.separator))}, and never quoted"


def _enough(columns: int) -> int:
    """Separators in a line that tell another text format: those of half its columns, and of a narrow one's, too."""
    return max(1, min(4, (columns - 1) // 2))


def _field_hint(offending: bytes, reason: Reason, bad: BadLine) -> str:
    if b'"' in offending:
        return "quotes have no meaning in this format"
    if offending.startswith(_UTF16_MARKS):
        return _UTF16_HINT
    if offending.startswith(b"\xef\xbb\xbf"):
        return "a byte order mark is accepted at the start of a file only"
    if offending != offending.strip():
        return "blanks around a value are not stripped"
    if reason == Reason.BAD_DECIMAL and re.fullmatch(rb"-?[0-9]+\.0*", offending):
        return "an integer written as a float"
    if offending[:2] in (b"0x", b"0X"):
        return "no 0x in front"
    if bad.line == 1 and re.fullmatch(rb"[A-Za-z_]\w*", offending) and reason in (Reason.BAD_LABEL, Reason.BAD_DECIMAL):
        return "a header line? this format has none"
    return ""
