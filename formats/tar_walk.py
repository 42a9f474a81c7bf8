"""A tar archive watched as its bytes pass by: only plain files, whole headers, and an end that is marked.

Tar readers take a damaged header, or a file cut between two members, for the end of the archive. This one sees every
byte before they do, and raises instead. Extension headers can say that a member is larger than its bytes (sparse files,
a size of their own), pile up in memory, or send a reader into recursion: they are bounded, and say nothing of sizes.
"""

from __future__ import annotations

import re

from headrace.formats.errors import CorruptShardError

BLOCK_BYTES = 512
_ZERO_BLOCK = bytes(BLOCK_BYTES)
_MAX_EXTENSION_BYTES = 1 << 20  # before a member; and in the whole archive, of those that hold for all members
_MAX_EXTENSIONS = 8  # before a member: readers follow them by recursion
_REGULAR = (b"0", b"\0")
_EXTENSIONS = (b"x", b"g", b"L")  # of the header that follows: its long name, its exact time
# Records of another size than the header's, at any place: tar readers do not mind what stands before a record.
_SIZES = re.compile(rb"\d+ (?:GNU\.sparse\.|size=)")
_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"5": "a folder",
    b"6": "a pipe",
}


class TarWalk:
    """Give all bytes of an archive to :meth:`feed`, in order, then call :meth:`finish`.

    States: in a header | in the bytes and padding of a member or extension | behind the first zero block, where only
    zeros follow. `members` counts plain files whose header has passed; none is larger than `max_member_bytes`, whatever
    an extension says.
    """

    def __init__(self, path: str, *, max_member_bytes: int) -> None:
        self.members = 0
        self.bytes = 0
        self._path = path
        self._max_member_bytes = max_member_bytes
        self._header = bytearray()
        self._left = 0
        self._extension = bytearray()  # the bytes of one, as far as they have passed
        self._in_extension = False
        self._extensions = self._extension_bytes = 0  # since the last member
        self._global_bytes = 0
        self._zero_blocks = 0

    def feed(self, data: bytes | memoryview) -> None:
        """CorruptShardError for what is no archive of plain files."""
        view, at = memoryview(data), 0
        while at < len(view):
            if self._left:
                step = min(self._left, len(view) - at)
                self._left -= step
                if self._in_extension:
                    self._extension += view[at : at + step]
            else:
                step = min(BLOCK_BYTES - len(self._header), len(view) - at)
                self._header += view[at : at + step]
            at += step
            self.bytes += step
            if len(self._header) == BLOCK_BYTES:
                self._take_header(bytes(self._header))
                self._header.clear()
            if self._in_extension and not self._left:
                self._end_extension()

    def finish(self, *, end_required: bool) -> None:
        """CorruptShardError unless the archive is whole: with `end_required` two blocks of zeros end it."""
        if self._left or self._header:
            raise self._corrupt(f"cut inside member {self.members}")
        if end_required and self._zero_blocks < 2:
            raise self._corrupt("cut: the end of the archive is not marked, and no manifest vouches for its size")

    def _take_header(self, header: bytes) -> None:
        if header == _ZERO_BLOCK:
            self._zero_blocks += 1
            return
        if self._zero_blocks:
            raise self._corrupt("other bytes behind the end of the archive")
        if header[257:262] != b"ustar":
            raise self._corrupt("not a tar archive" if not self.members else f"no header behind member {self.members}")
        unsigned = sum(header[:148]) + sum(header[156:]) + 8 * ord(" ")
        if _number(header[148:156]) != unsigned:
            raise self._corrupt(f"damaged header behind member {self.members}")
        size, kind = _number(header[124:136]), header[156:157]
        if kind in _REGULAR:
            self.members += 1
        elif kind not in _EXTENSIONS:
            what = _KINDS.get(kind, f"of kind {kind!r}")
            name = header[:100].rstrip(b"\0").decode("utf-8", "backslashreplace")
            raise self._corrupt(f"member {name!r} is {what}, not a plain file")
        limit = self._max_member_bytes if kind in _REGULAR else _MAX_EXTENSION_BYTES
        if size is None or not 0 <= size <= limit:
            raise self._corrupt(f"member {self.members} says it has {size} bytes, allowed are {limit}")
        self._left = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        if kind in _REGULAR:
            self._extensions = self._extension_bytes = 0
        else:
            self._begin_extension(kind, size)

    def _begin_extension(self, kind: bytes, size: int) -> None:
        self._in_extension = True
        self._extensions += 1
        self._extension_bytes += size
        self._global_bytes += size if kind == b"g" else 0
        if self._extensions > _MAX_EXTENSIONS or max(self._extension_bytes, self._global_bytes) > _MAX_EXTENSION_BYTES:
            raise self._corrupt(
                f"too many extension headers behind member {self.members}: allowed are {_MAX_EXTENSIONS} before a "
                f"member, and {_MAX_EXTENSION_BYTES} bytes"
            )

    def _end_extension(self) -> None:
        if _SIZES.search(self._extension):
            raise self._corrupt(
                f"an extension header behind member {self.members} gives a size of its own, or makes a sparse file: "
                "write plain files, such as with tar --format=ustar"
            )
        self._extension.clear()
        self._in_extension = False

    def _corrupt(self, reason: str) -> CorruptShardError:
        return CorruptShardError(self._path, self.bytes, 0, reason)


def _number(field: bytes) -> int | None:
    """A number of a header: octal digits, or base 256 behind a set bit; None for anything else."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    text = field.strip(b" \0")
    try:
        return int(text or b"0", 8) if not text.startswith((b"+", b"-")) and b"_" not in text else None
    except ValueError:
        return None
