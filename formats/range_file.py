"""A file of a store as a file object, read by ranges that are fetched ahead."""

from __future__ import annotations

import io
from typing import Any, Literal

from headrace.formats.range_fetcher import FetchCounts, FetchOptions, RangeFetcher

Access = Literal["forward", "columns", "array"]
"""How a file is going to be read: from one place on; in places that move on side by side (the columns of Parquet); one
array of many in a file."""

_COLUMN_RANGE_BYTES = 1 << 20
_COLUMN_RANGES = 96  # one in use and one ahead for each of 48 columns


class RangeFile(io.RawIOBase):
    """The `size` bytes of the file at `path`; one thread at a time reads, any may call :meth:`interrupt`.

    Memory: ``ahead + 2`` ranges for "forward", 3 of at most 1 MiB for "array", 96 of at most 1 MiB for "columns".
    """

    def __init__(
        self, path: str, size: int, open_handle: Any, options: FetchOptions, counts: FetchCounts, *, access: Access
    ) -> None:
        super().__init__()
        self.path = path
        self.size = size
        forward = access == "forward"
        self._range_bytes = options.range_bytes if forward else min(options.range_bytes, _COLUMN_RANGE_BYTES)
        self._always_ahead = access != "columns"
        self._position = 0
        self._fetcher = RangeFetcher(
            path, size, open_handle, options, counts,
            range_bytes=self._range_bytes,
            ahead=options.ahead if forward else 1,
            held=_COLUMN_RANGES if access == "columns" else 0,
        )  # fmt: skip

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError(f"{self.path}: no position {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, target: Any) -> int:
        """Fill a part of `target`, up to the end of a range; 0 at the end of the file."""
        if self.closed:
            raise ValueError(f"{self.path}: read after close")
        view = memoryview(target).cast("B")
        if self._position >= self.size or not len(view):
            return 0
        number, skip = divmod(self._position, self._range_bytes)
        data = self._fetcher.get(number, ahead=self._always_ahead or self._fetcher.follows(number))
        count = min(len(view), len(data) - skip)
        view[:count] = memoryview(data)[skip : skip + count]
        self._position += count
        return count

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes, fewer at the end of the file only."""
        left = max(0, self.size - self._position)
        buffer = bytearray(left if size < 0 else min(size, left))
        view, done = memoryview(buffer), 0
        while done < len(view) and (read := self.readinto(view[done:])):
            done += read
        return bytes(view[:done])

    def interrupt(self) -> None:
        """End the reading from any thread, now: whoever waits gets ReadInterruptedError."""
        self._fetcher.stop(interrupted=True)

    def close(self) -> None:
        if not self.closed:
            self._fetcher.stop()
            self._fetcher.join()
        super().close()
