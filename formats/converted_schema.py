"""The schema that a converted dataset was written with, as its manifest tells it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow.fs as fs

from headrace.formats.arrow_store import store_of
from headrace.formats.convert_folder import TOOL
from headrace.formats.files import PathLike
from headrace.formats.schema import Schema
from headrace.formats.store import Store


def converted_schema(
    paths: PathLike | Iterable[PathLike],
    *,
    dim: int,
    labels: bool,
    filesystem: fs.FileSystem | Store | None = None,
) -> Schema | None:
    """That of the manifests beside `paths`, with tables of `dim` values a row; without `labels`, with no label.

    None where a file has no manifest of a conversion, or where two were converted with different schemas: nobody can
    tell which was meant. SchemaError for a schema that this program does not read.
    """
    store, found = store_of(paths, filesystem)
    told: list[Any] = []
    for folder in sorted({store.folder_of(file) for file in store.find(found)}):
        manifest = store.manifest(folder)
        if manifest is None or manifest.parameters.get("tool") != TOOL:
            return None
        told.append(manifest.parameters.get("schema"))
    if not told or told[0] is None or any(other != told[0] for other in told):
        return None
    schema = Schema.from_dict(told[0])
    tables = tuple(replace(table, dim=dim) for table in schema.tables)
    return replace(schema, tables=tables, labels=schema.labels if labels else ())
