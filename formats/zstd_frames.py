"""Zstandard files, frame after frame, in bounded memory; damage is an error that says where."""

from __future__ import annotations

from io import RawIOBase

import pyarrow as pa

from headrace.formats.errors import CorruptShardError

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_MAX_READ_BYTES = 1 << 20


class ZstdFrames:
    """Decompressed bytes of a Zstandard file: all frames, one after the other; an empty file has no bytes.

    A file that ends inside a frame, or goes on with other bytes behind one, is a :class:`CorruptShardError` (with
    ``rows_salvaged=0``: this class knows no rows). Frames need not hold a checksum: a flipped bit in one without is
    found only where it breaks the format, or by a manifest with ``verify_manifest="full"``.
    """

    def __init__(self, path: str, file: RawIOBase | None = None) -> None:
        self.path = path
        self._file = file if file is not None else open(path, "rb", buffering=0)  # noqa: SIM115 (closed by close)
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._file, mode="r"), "zstd")

    def read_piece(self, max_bytes: int = _MAX_READ_BYTES) -> bytes:
        """The next bytes, at most `max_bytes` (1 or more) and 1 MiB; none at the end of the file."""
        try:
            return bytes(self._stream.read(min(max_bytes, _MAX_READ_BYTES)))
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = f"damaged or cut Zstandard data ({error})"
            raise CorruptShardError(self.path, self._file.tell(), 0, reason) from error

    def close(self) -> None:
        self._stream.close()
        self._file.close()
