"""What every file format offers to the loader: blocks read in order, decoded anywhere, settled in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

from headrace.formats.bad_lines import BadLines
from headrace.formats.checks import check_integer
from headrace.formats.rows import RowBlock
from headrace.formats.schema import Schema


@dataclass(frozen=True)
class FilePosition:
    """A place between two rows: byte `byte_offset` of the uncompressed text of file number `file`, `line` rows in.

    In formats without text `line` alone says where, and `byte_offset` counts the bytes given out before.
    """

    file: int
    byte_offset: int
    line: int

    def to_dict(self) -> dict[str, int]:
        return {"file": self.file, "byte_offset": self.byte_offset, "line": self.line}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FilePosition:
        """Read what :meth:`to_dict` gave; anything else raises ValueError."""
        names = [f.name for f in fields(cls)]
        if not isinstance(data, Mapping) or sorted(map(str, data)) != sorted(names):
            raise ValueError(f"a file position is a mapping with the keys {', '.join(names)}, got {data!r}")
        try:
            return cls(**{name: check_integer(f"file position: {name}", data[name], 0, 2**63 - 1) for name in names})
        except TypeError as error:
            raise ValueError(str(error)) from None


START = FilePosition(0, 0, 0)


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
    bad: BadLines
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

    A reader that waits has `interrupt`, which wakes it from any thread with ReadInterruptedError, and one whose files
    grow has ``digest_at(position)``, the digest of the files begun up to there; the loader uses them where they exist.
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
        """Rows settled in this pass, bad ones counted."""

    @property
    def rows_skipped(self) -> int:
        """Bad rows settled in this pass."""

    @property
    def bytes_in(self) -> int:
        """Bytes settled in this pass, uncompressed."""

    def begin(self, *, rows_in: int = 0, rows_skipped: int = 0) -> None:
        """Say what was settled before the pass that :meth:`raw_blocks` starts (a resume); limits count from there."""

    def raw_blocks(self, start: FilePosition | None = None) -> Iterator[BlockT]:
        """Undecoded blocks from `start` (a ``DecodedBlock.next_position``) to the end of the last file.

        The call starts a new pass: the counts are 0, or what :meth:`begin` was told just before it.
        """

    def decode(self, block: BlockT) -> DecodedT:
        """Decode a block without the GIL; thread-safe. Bad rows are listed, not raised."""

    def settle(self, decoded: DecodedT) -> RowBlock:
        """Apply the policy for bad records and count; call it once for each block, in order."""
