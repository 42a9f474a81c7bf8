"""Gzip files, member after member, in bounded memory; damage is an error that says where."""

from __future__ import annotations

from io import RawIOBase
from types import TracebackType

from isal import isal_zlib

from headrace.formats.errors import CorruptShardError

GZIP_MAGIC = b"\x1f\x8b"
_INPUT_BYTES = 1 << 18
_OUTPUT_BYTES = 1 << 20
_GZIP_WBITS = 31
# The package's stub declares an instance where the class is.
_ISAL_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]


class GzipMembers:
    """Decompressed bytes of a gzip file: of the one at `path`, or of `file`, which is open and called `path` in errors.

    - all members are read, one after the other; an empty file has none, and no bytes;
    - zero padding after a member is accepted, other bytes there are an error;
    - checksum and length of each member are verified when its end is met (by ISA-L);
    - a file that ends inside a member is an error; one that was cut between two members cannot be told from a whole
      one: only a manifest can.

    States: between members (``_member is None``), inside a member, at the end. An error is a `CorruptShardError` with
    ``rows_salvaged=0``: this class knows no rows. No step holds more than 256 KiB of input and 1 MiB of output.
    """

    def __init__(self, path: str, file: RawIOBase | None = None) -> None:
        self.path = path
        self._file = file if file is not None else open(path, "rb", buffering=0)  # noqa: SIM115 (closed by close)
        self._input = b""
        self._bytes_read = 0
        self._members = 0
        self._member: isal_zlib.Decompress | None = None

    def read_piece(self, max_bytes: int = _OUTPUT_BYTES) -> bytes:
        """The next bytes, at most `max_bytes` (1 or more) and 1 MiB; none at the end of the file."""
        while self._member is not None or self._begin_member():
            if output := self._step(min(max_bytes, _OUTPUT_BYTES)):
                return output
            if self._member is not None and not self._input and not self._fetch():
                raise self._corrupt("the file ends inside a gzip member")
        return b""

    def _step(self, max_bytes: int) -> bytes:
        """At most `max_bytes` more bytes of the current member; leaves the member at its end."""
        member = self._member
        assert member is not None
        try:
            output: bytes = member.decompress(self._input, max_bytes)
        except _ISAL_ERROR as error:
            raise self._corrupt(f"damaged gzip data ({error})") from error
        if member.eof:
            self._input = member.unused_data
            self._member = None
        else:
            self._input = member.unconsumed_tail
        return output

    def _begin_member(self) -> bool:
        """False at the end of the file."""
        if self._members:
            self._skip_padding()
        while len(self._input) < len(GZIP_MAGIC) and self._fetch():
            pass
        if not self._input:
            return False
        if not GZIP_MAGIC.startswith(self._input[: len(GZIP_MAGIC)]):
            raise self._corrupt("other bytes follow a gzip member" if self._members else "not a gzip file")
        self._members += 1
        self._member = isal_zlib.decompressobj(_GZIP_WBITS)
        return True

    def _skip_padding(self) -> None:
        self._input = self._input.lstrip(b"\0")
        while not self._input and self._fetch():
            self._input = self._input.lstrip(b"\0")

    def _fetch(self) -> bool:
        """Append more of the file to the input; False at its end."""
        more = self._file.read(_INPUT_BYTES) or b""
        self._bytes_read += len(more)
        self._input += more
        return bool(more)

    def _corrupt(self, reason: str) -> CorruptShardError:
        return CorruptShardError(self.path, self._bytes_read - len(self._input), 0, reason)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> GzipMembers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
