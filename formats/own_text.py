"""Delimited text of anyone's, as a dataset by name: a header names the columns, the schema says what they hold."""

from __future__ import annotations

from typing import Any

from headrace.formats.delimited_format import TextFormat
from headrace.formats.delimited_reader import DelimitedFiles
from headrace.formats.file_reader import Paths
from headrace.formats.schema import Schema

NAME = "csv"


def own_text(paths: Paths, schema: Schema, *, separator: str = ",", **options: Any) -> DelimitedFiles:
    """A reader of files whose first line names their columns; those of the schema are taken by name, in any order.

    `options` are those of :class:`DelimitedFiles`, which reads more (words, dates, lists, files without a header).
    """
    return DelimitedFiles(paths, schema, TextFormat(name=NAME, separator=separator, header=True), **options)


def no_schema(**options: Any) -> Schema:
    """ValueError: nobody but the user knows what the columns hold."""
    raise ValueError(f"dataset {NAME!r} has no schema of its own: give one (schema=, --schema)")
