"""Ranges of a stored file, fetched by threads ahead of who reads them, with retries, back-off and bounded waits.

The states of a range: queued -> fetching -> here | failed; one that is no longer wanted is forgotten in any of them.
"""

from __future__ import annotations

import random
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Protocol

from headrace.formats.checks import check_integer, check_seconds
from headrace.formats.errors import CorruptShardError, ReadInterruptedError, StoreReadError
from headrace.formats.monitor import Monitor
from headrace.formats.store_threads import start_thread
from headrace.formats.uninterrupted import uninterrupted

_JOIN_TIMEOUT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """How a store is read.

    A file is fetched in ranges of `range_bytes`, up to `ahead` of them before they are asked for, by as many threads; a
    file thus holds about ``(ahead + 2) * range_bytes``. A range that fails, or comes short, is asked for again, at most
    `attempts` times without a byte that is new, after pauses that double from `first_pause_s` to `max_pause_s`.

    No read, and no question about a file, waits for longer than `stall_timeout_s` without a byte of the file, or an
    answer, however many attempts are left; a 4 MiB range must have come by then, too.
    """

    range_bytes: int = 4 << 20
    ahead: int = 4
    attempts: int = 5
    first_pause_s: float = 0.1
    max_pause_s: float = 5.0
    stall_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        check_integer("range_bytes", self.range_bytes, 1, 1 << 30)
        check_integer("ahead", self.ahead, 1, 64)
        check_integer("attempts", self.attempts, 1, 1000)
        for name in ("first_pause_s", "max_pause_s", "stall_timeout_s"):
            check_seconds(name, getattr(self, name), 0, 86_400)
        if not self.stall_timeout_s:
            raise ValueError("stall_timeout_s=0: every read would fail")

    def pause_s(self, attempt: int, seed: str) -> float:
        """Seconds before attempt `attempt` + 1: between a half and the whole of the doubled pause, by `seed`."""
        whole = min(self.max_pause_s, self.first_pause_s * 2.0 ** (attempt - 1))
        return whole * (0.5 + 0.5 * random.Random(f"{seed} {attempt}").random())


@dataclass
class FetchCounts:
    """What a store was asked for: bytes that came, requests for ranges, requests that had to be made again."""

    bytes_fetched: int = 0
    requests: int = 0
    retries: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, *, bytes_fetched: int = 0, requests: int = 0, retries: int = 0) -> None:
        with self._lock:
            self.bytes_fetched += bytes_fetched
            self.requests += requests
            self.retries += retries

    def to_dict(self) -> dict[str, int]:
        return {"bytes_fetched": self.bytes_fetched, "requests": self.requests, "retries": self.retries}


class Handle(Protocol):
    """An open file of a store, such as a ``pyarrow.NativeFile``."""

    def size(self) -> int: ...
    def read_at(self, nbytes: int, offset: int) -> bytes: ...
    def close(self) -> None: ...


def is_passing(error: BaseException) -> bool:
    """Whether another attempt may succeed: not when the file is not there, or may not be read.

    Libraries wrap what a connection raises in errors of their own: of these the cause tells (L107).
    """
    if isinstance(error, (FileNotFoundError, PermissionError, CorruptShardError, NotImplementedError)):
        return False
    if any(word in str(error) for word in ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "NO_SUCH_BUCKET", "NO_SUCH_KEY")):
        return False
    if isinstance(error, (OSError, HTTPException)):
        return True
    return error.__cause__ is not None and is_passing(error.__cause__)


class _Range:
    """A part of a file: neither data nor an error while it is queued or fetched."""

    def __init__(self) -> None:
        self.data: bytes | bytearray | None = None
        self.error: BaseException | None = None


class RangeFetcher:
    """The ranges of one file of `size` bytes; `held` of them are kept at most. One thread at a time takes them.

    Threads start when there is something to fetch, and end when :meth:`stop` is called; they hold this object, never
    the file object on top of it, so that dropping that one stops them.
    """

    def __init__(
        self, path: str, size: int, open_handle: Callable[[], Handle], options: FetchOptions, counts: FetchCounts, *,
        range_bytes: int, ahead: int, held: int,
    ) -> None:  # fmt: skip
        self.path = path
        self.size = size
        self._open_handle = open_handle
        self._options = options
        self._counts = counts
        self._range_bytes = range_bytes
        self._ahead = ahead
        self._held = max(held, ahead + 2)
        self._monitor = Monitor()  # of what follows
        self._ranges: OrderedDict[int, _Range] = OrderedDict()
        self._queue: deque[int] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._taking = False
        self._last_bytes_s = 0.0  # when bytes of any range came last
        self._stopped = threading.Event()
        self._interrupted = False
        self._handle: Handle | None = None
        self._opening = threading.Lock()

    def get(self, number: int, *, ahead: bool) -> bytes | bytearray:
        """Range `number`; with `ahead` the next ones are asked for, too. StoreReadError, or what opening raised.

        RuntimeError while another thread is in here: its range could be forgotten before it came.
        """
        mine = False
        try:
            with self._monitor.lock:
                if self._taking:
                    raise RuntimeError(f"{self.path}: read by two threads at a time; open it for each of them")
                mine = self._taking = True
            return self._wait_for(number, self._ask_for(number, ahead))
        finally:
            if mine:
                self._taking = False

    def follows(self, number: int) -> bool:
        """Whether the range before `number` was used lately: reading goes on from there."""
        return number - 1 in self._ranges

    def stop(self, *, interrupted: bool = False) -> None:
        """Wake whoever waits (ReadInterruptedError) and let the threads end; waits for nothing, may come twice."""
        with self._monitor.lock:
            self._interrupted = self._interrupted or interrupted
            self._stopped.set()
            self._queue.clear()
            self._ranges.clear()
            self._monitor.changed()

    def join(self) -> None:
        """Wait for the threads for a second in all: what is left then is inside a request of the store's library."""
        deadline = time.monotonic() + _JOIN_TIMEOUT_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _last(self) -> int:
        return max(0, self.size - 1) // self._range_bytes

    def _bounds(self, number: int) -> tuple[int, int]:
        begin = number * self._range_bytes
        return begin, min(begin + self._range_bytes, self.size)

    # ---- the reader's side ------------------------------------------------------------------------------------------

    def _ask_for(self, number: int, ahead: bool) -> _Range:
        with self._monitor.lock, uninterrupted():  # a range that is known and not queued would never come
            self._want(number, first=True)
            if ahead:
                for later in range(number + 1, min(number + self._ahead, self._last()) + 1):
                    self._want(later, first=False)
            self._forget_oldest(number)
            return self._ranges[number]

    def _want(self, number: int, *, first: bool) -> None:
        if number in self._ranges:
            self._ranges.move_to_end(number)
            if first and number in self._queue:
                self._queue.remove(number)
                self._queue.appendleft(number)
            return
        self._ranges[number] = _Range()
        (self._queue.appendleft if first else self._queue.append)(number)
        if self._idle < len(self._queue) and len(self._threads) < self._ahead + 1:
            self._threads.append(start_thread(_work, self, name="headrace-fetch", owner=self))
        self._monitor.changed()

    def _forget_oldest(self, wanted: int) -> None:
        while len(self._ranges) > self._held:
            oldest = next(number for number in self._ranges if number != wanted)
            del self._ranges[oldest]
            if oldest in self._queue:
                self._queue.remove(oldest)

    def _wait_for(self, number: int, wanted: _Range) -> bytes | bytearray:
        def over() -> bool:
            if wanted.data is None and self._stopped.is_set():
                raise ReadInterruptedError(f"{self.path}: closed while it was read")
            if wanted.data is None and wanted.error is not None:
                self._ranges.pop(number, None)  # who reads on tries again
                raise wanted.error
            return wanted.data is not None

        began_s = time.monotonic()
        while wanted.data is None:
            # what comes for other ranges shows that this one waits for its turn, and not for a store that is silent
            left = max(began_s, self._last_bytes_s) + self._options.stall_timeout_s - time.monotonic()
            if not self._monitor.wait_for(over, left) and left <= 0:
                begin, end = self._bounds(number)
                reason = f"nothing came for {self._options.stall_timeout_s:g} s"
                raise StoreReadError(self.path, begin, end - 1, 1, reason)
        return wanted.data

    # ---- the threads' side ------------------------------------------------------------------------------------------

    def _take(self) -> tuple[int, _Range] | None:
        """The next range to fetch; None when it is over."""
        with self._monitor.lock:
            self._idle += 1
        found = self._monitor.wait_for(self._first_queued)
        return found if isinstance(found, tuple) else None

    def _first_queued(self) -> tuple[int, _Range] | bool:
        """What an idle thread goes on with; False while there is nothing, True when it is over."""
        if self._stopped.is_set() or not self._queue:
            return self._stopped.is_set()
        self._idle -= 1
        number = self._queue.popleft()
        return number, self._ranges[number]

    def _settle(self, wanted: _Range, data: bytes | bytearray | None, error: BaseException | None) -> None:
        with self._monitor.lock:
            wanted.data, wanted.error = data, error
            self._monitor.changed()

    def _fetch(self, number: int, wanted: _Range) -> bytes | bytearray:
        begin, end = self._bounds(number)
        got = bytearray()
        reason: object = ""
        failed = 0  # attempts since the last one that brought bytes
        while failed < self._options.attempts and not self._stopped.is_set():
            if failed or got:
                self._counts.add(retries=1)
                self._stopped.wait(self._options.pause_s(max(failed, 1), f"{self.path} {begin}"))
            try:
                data = self._opened().read_at(end - begin - len(got), begin + len(got))
            except Exception as error:
                self._drop_handle()
                if not is_passing(error):
                    raise
                reason = error
                failed += 1
                continue
            self._counts.add(bytes_fetched=len(data), requests=1)
            if data:
                self._last_bytes_s = time.monotonic()
            if len(data) == end - begin:
                return data
            got += data
            if len(got) == end - begin:
                return got
            reason = f"a short read, {len(got)} of {end - begin} bytes"
            self._drop_handle()
            failed = 0 if data else failed + 1
        raise StoreReadError(self.path, begin, end - 1, failed, str(reason)) from (
            reason if isinstance(reason, Exception) else None
        )

    def _opened(self) -> Handle:
        if (handle := self._handle) is not None:
            return handle
        with self._opening:  # one for all threads: to open costs a request
            if (handle := self._handle) is not None:
                return handle
            handle = self._open_handle()
            if (size := handle.size()) != self.size:
                handle.close()
                changed = f"changed since it was opened ({self.size} bytes then, {size} now)"
                raise CorruptShardError(self.path, min(size, self.size), 0, changed)
            self._handle = handle
            return handle

    def _drop_handle(self) -> None:
        self._handle = None  # another thread may still be reading from it


def _work(fetcher: RangeFetcher) -> None:
    while (taken := fetcher._take()) is not None:
        number, wanted = taken
        try:
            data = fetcher._fetch(number, wanted)
        except BaseException as error:
            fetcher._settle(wanted, None, error)
        else:
            fetcher._settle(wanted, data, None)
        del taken, wanted
