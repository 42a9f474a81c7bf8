"""Rows as an error message names them."""

from __future__ import annotations

from headrace.formats.rows import Source

_MAX_RANGES = 3


def describe_rows(source: Source) -> str:
    """'rows 100..199 of a.tsv' (0-based physical lines); long lists are cut after three ranges."""
    if source.num_rows == 0:
        return "no rows"
    if source.ranges is None:
        file, row = source.locate(0)
        return f"{source.num_rows} shuffled rows, the first is row {row} of {file}"
    ranges = [r for r in source.ranges if r.rows]
    texts = [f"rows {r.first_row}..{r.first_row + r.rows - 1} of {source.files[r.file]}" for r in ranges[:_MAX_RANGES]]
    more = len(ranges) - _MAX_RANGES
    return ", ".join(texts) + (f" and {more} more ranges" if more > 0 else "")
