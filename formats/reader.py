"""What every file format offers to the loader: blocks read in order, decoded anywhere, settled in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Protocol, TypeVar

from headrace.formats.rows import RowBlock
from headrace.formats.schema import Schema


@dataclass(frozen=True)
class FilePosition:
    """A place between two rows: byte `byte_offset` of the uncompressed text of file number `file`, `line` rows in."""

    file: int
    byte_offset: int
    line: int

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FilePosition:
        """Read what :meth:`to_dict` gave; anything else raises ValueError."""
        names = [f.name for f in fields(cls)]
        if not isinstance(data, Mapping) or sorted(map(str, data)) != sorted(names):
            raise ValueError(f"a file position is a mapping with the keys {', '.join(names)}, got {data!r}")
        for name in names:
            value = data[name]
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
                raise ValueError(f"file position: {name}={value!r} is not a non-negative 64-bit integer")
        return cls(**{name: data[name] for name in names})


START = FilePosition(0, 0, 0)


class BadLine(NamedTuple):
    """A row that was refused: its 1-based physical line; the column's ordinal, or -1 for the whole line; a reason code.

    [begin, end): the offending bytes, [line_begin, line_end): the line without its line feed, both in
    ``DecodedBlock.text``; `found`: its number of columns, where known.
    """

    line: int
    column: int
    reason: int
    begin: int
    end: int
    line_begin: int
    line_end: int
    found: int


@dataclass(frozen=True)
class DecodedBlock:
    """Rows [position, next_position) of a file: the good ones as `rows`, the others in `bad`, in order.

    `lines` counts both, so that ``lines == rows.num_rows + len(bad)``. `text` is the block's text when there are bad
    lines, else empty, so that good blocks do not keep it alive; `text_offset` is where in the file it begins.
    """

    rows: RowBlock
    position: FilePosition
    next_position: FilePosition
    lines: int
    bad: tuple[BadLine, ...]
    text: memoryview
    text_offset: int


BlockT = TypeVar("BlockT")


class Decoded(Protocol):
    """What the loader needs of a decoded block; :class:`DecodedBlock` is that of text files."""

    @property
    def rows(self) -> RowBlock: ...

    @property
    def next_position(self) -> FilePosition: ...


DecodedT = TypeVar("DecodedT", bound=Decoded)


class RowReader(Protocol[BlockT, DecodedT]):
    """Files of one format as decoded rows, in three stages that the loader drives:

    raw_blocks (one thread, in order)  ->  decode (many threads, any order)  ->  settle (one thread, in order)
    """

    @property
    def files(self) -> tuple[str, ...]:
        """Absolute paths; a file number is a position in it."""

    @property
    def schema(self) -> Schema: ...

    @property
    def digest(self) -> str:
        """Differs when the list of files, their order or sizes differ."""

    @property
    def num_rows(self) -> int | None:
        """Exact number of rows, bad ones counted; None when it is not known without reading."""

    @property
    def may_skip(self) -> bool:
        """Whether the policy leaves bad records out, so that fewer rows may come than there are."""

    @property
    def rows_in(self) -> int:
        """Rows settled so far, bad ones counted."""

    @property
    def rows_skipped(self) -> int:
        """Bad rows settled so far."""

    @property
    def bytes_in(self) -> int:
        """Bytes settled so far, uncompressed."""

    def raw_blocks(self, start: FilePosition | None = None) -> Iterator[BlockT]:
        """Undecoded blocks from `start` (a ``DecodedBlock.next_position``) to the end of the last file."""

    def decode(self, block: BlockT) -> DecodedT:
        """Decode a block without the GIL; thread-safe. Bad rows are listed, not raised."""

    def settle(self, decoded: DecodedT) -> RowBlock:
        """Apply the policy for bad records and count; call it once for each block, in order."""
