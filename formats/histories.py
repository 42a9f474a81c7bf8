"""The published behaviour logs that `headrace convert --history` sorts: their columns, key and time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from headrace.formats.bad_records import BadRecords
from headrace.formats.delimited_format import TextFormat
from headrace.formats.delimited_reader import DelimitedFiles
from headrace.formats.files import PathLike
from headrace.formats.schema import Schema, Sparse, Table
from headrace.formats.taobao import TAOBAO_USER_BEHAVIOR
from headrace.formats.taobao_ad import TAOBAO_BEHAVIOR_LOG


@dataclass(frozen=True)
class LogFormat:
    """Files of `text_format` with the columns `key`, `time` (int64) and the ids `columns`."""

    text_format: TextFormat
    key: str
    time: str
    columns: tuple[str, ...]

    @property
    def schema(self) -> Schema:
        return Schema(
            sparse=(
                Sparse(name=self.key, encoding="uint64", missing="raise"),
                Sparse(name=self.time, encoding="int64", missing="raise"),
                *(Sparse(name=name, encoding="uint64") for name in self.columns),
            )
        )

    def open_schema(self, *, dim: int = 16, labels: bool = False) -> Schema:
        """The schema with tables of `dim` values a row, to be read as any dataset; a log has no labels."""
        tables = tuple(Table(name=s.name, dim=dim) for s in self.schema.sparse)
        return replace(self.schema, tables=tables)

    def open(
        self, paths: PathLike | Iterable[PathLike], *, bad_records: BadRecords | str = "raise", **options: Any
    ) -> DelimitedFiles:
        """A reader of the log's files."""
        return DelimitedFiles(paths, self.schema, self.text_format, bad_records=bad_records, **options)


LOGS: dict[str, LogFormat] = {
    "taobao-behavior-log": LogFormat(TAOBAO_BEHAVIOR_LOG, "user", "time_stamp", ("btag", "cate", "brand")),
    "taobao-userbehavior": LogFormat(TAOBAO_USER_BEHAVIOR, "user", "timestamp", ("item", "category", "behavior")),
}
