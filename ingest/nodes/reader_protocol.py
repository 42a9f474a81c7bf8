"""What `ReadRows` needs of a reader of files: the seam between a format and the loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from headrace.formats.rows import RowBlock
from headrace.formats.schema import Schema

RawBlock = TypeVar("RawBlock")


class FilePosition(Protocol):
    """A place between two records: file number `file`, `byte_offset` in it, 0-based physical `line`."""

    @property
    def file(self) -> int: ...

    @property
    def byte_offset(self) -> int: ...

    @property
    def line(self) -> int: ...

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a state."""


@dataclass(frozen=True)
class ResumePosition:
    """A :class:`FilePosition` read back from a state."""

    file: int
    byte_offset: int
    line: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ResumePosition:
        """Read plain data; anything but the three counts raises ValueError."""
        values = {key: data.get(key) for key in ("file", "byte_offset", "line")}
        for key, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"a position's {key!r} is a count, got {value!r}")
        return cls(**values)  # type: ignore[arg-type]


class DecodedBlock(Protocol):
    """A stretch of a file, decoded: its good rows, where it begins and where the next one does."""

    @property
    def rows(self) -> RowBlock: ...

    @property
    def position(self) -> FilePosition: ...

    @property
    def next_position(self) -> FilePosition: ...

    @property
    def lines(self) -> int:
        """Physical lines, good, bad and blank."""

    @property
    def bad(self) -> Any:
        """Bad records, for ``settle``."""


class RowReader(Protocol[RawBlock]):
    """Reads the files of a dataset in order: cut into raw blocks, decode, settle what is bad.

    ======================== ======================================================================================
    `raw_blocks(start)`      single-threaded, ordered, lazy; from the beginning when `start` is None; `start` has the
                             attributes of :class:`FilePosition` and need not be the reader's own class
    `decode(block)`          thread-safe, without the GIL; raises nothing for bad records
    `settle(decoded)`        by one thread, in order: applies the bad-record policy (raises, skips or sets aside)
                             and counts in `rows_in`, `rows_skipped`, `bytes_in`
    ======================== ======================================================================================

    Reading from a position gives the same rows as reading past it; where blocks are cut may differ.
    """

    @property
    def files(self) -> Sequence[Any]: ...

    @property
    def schema(self) -> Schema: ...

    @property
    def digest(self) -> str:
        """Differs when the list of files, or anything else that changes rows or their order, differs."""

    @property
    def num_rows(self) -> int | None: ...

    @property
    def rows_in(self) -> int: ...

    @property
    def rows_skipped(self) -> int: ...

    @property
    def bytes_in(self) -> int: ...

    def raw_blocks(self, start: Any | None) -> Iterator[RawBlock]: ...

    def decode(self, block: RawBlock) -> DecodedBlock: ...

    def settle(self, decoded: Any) -> RowBlock: ...
