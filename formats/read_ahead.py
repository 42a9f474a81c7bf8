"""Decompression in a thread of its own, a few pieces ahead of who takes them: others parse meanwhile."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from typing import Protocol

from headrace.formats._criteo import copy_bytes
from headrace.formats.monitor import Monitor
from headrace.formats.uninterrupted import uninterrupted

PIECES_AHEAD = 4
JOIN_TIMEOUT_S = 5.0


Entry = bytes | memoryview | BaseException


class Pieces(Protocol):
    """A stream of bytes in pieces of bounded size."""

    def read_piece(self) -> bytes | memoryview:
        """The next bytes, as many as come at once; none at the end."""

    def close(self) -> None: ...


class ReadAhead:
    """Bytes of `source`, read by one thread, at most `PIECES_AHEAD` pieces ahead; its errors come in their place.

    The thread starts with the first `readinto`, knows the pieces but not this object, and ends with the stream, with
    `close`, when this object goes, or when the interpreter exits.
    """

    def __init__(self, source: Pieces) -> None:
        self._source = source
        self._lane = _Lane(source)
        self._piece = memoryview(b"")
        self._finalizer = weakref.finalize(self, self._lane.stop)

    def readinto(self, target: memoryview) -> int:
        """Fill a part of `target`; number of bytes, 0 at the end."""
        if not self._piece and len(target):
            self._piece = memoryview(self._lane.take())
        used = copy_bytes(target, self._piece)  # without the GIL, for which the other thread would have to wait
        self._piece = self._piece[used:]
        return used

    def close(self) -> None:
        """Stop the thread and close the source."""
        self._finalizer()
        self._lane.join()
        self._source.close()


class _Lane:
    """What the thread and the taker share. The last entry is the end, b"", or an error."""

    def __init__(self, source: Pieces) -> None:
        self._source = source
        self._entries: deque[Entry] = deque()
        self._monitor = Monitor()  # a finalizer may run while its lock is held
        self._stopping = False
        self._thread: threading.Thread | None = None

    def take(self) -> bytes | memoryview:
        """The next piece, b"" at the end and ever after."""
        with self._monitor.lock:
            if self._thread is None and not self._stopping:
                self._start()
            if not self._entries and not self._stopping and self._thread is not None and not self._thread.is_alive():
                raise RuntimeError("the thread that decompresses is gone; after a fork, open the files in the child")
        self._monitor.wait_for(lambda: self._entries or self._stopping)
        with self._monitor.lock:
            if not self._entries:
                raise ValueError("read after close")
            entry = self._entries[0]
            if isinstance(entry, BaseException):
                raise entry
            if entry:
                self._entries.popleft()
                self._monitor.changed()
            return entry

    def _start(self) -> None:
        with uninterrupted():  # a thread that is known and was not started looks as if it had ended
            self._thread = threading.Thread(target=_run, args=(self,), name="headrace-read-ahead", daemon=True)
            self._thread.start()
            _RUNNING.add(self)

    def put(self, entry: Entry) -> bool:
        """Wait for room; False when nothing more is wanted."""
        with self._monitor.lock:
            self._entries.append(entry)
            self._monitor.changed()
        self._monitor.wait_for(lambda: len(self._entries) < PIECES_AHEAD or self._stopping)
        return bool(entry) and not isinstance(entry, BaseException) and not self._stopping

    def stop(self) -> None:
        with self._monitor.lock:
            self._stopping = True
            self._monitor.changed()

    def join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_TIMEOUT_S)

    def read(self) -> Entry:
        try:
            return self._source.read_piece()
        except BaseException as error:
            return error


def _run(lane: _Lane) -> None:
    while lane.put(lane.read()):
        pass


_RUNNING: weakref.WeakSet[_Lane] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Threads are not left to be cut off in the middle of native code."""
    for lane in list(_RUNNING):
        lane.stop()
        lane.join()
