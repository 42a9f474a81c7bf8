"""Reading a stored file by ranges: the right bytes whatever fails on the way, within bounded time and memory."""

from __future__ import annotations

import gc
import io
import pickle
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import IncompleteRead
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats import range_fetcher
from headrace.formats.arrow_store import ArrowStore
from headrace.formats.errors import CorruptShardError, ReadInterruptedError, StoreReadError
from headrace.formats.range_fetcher import FetchCounts, FetchOptions, is_passing
from headrace.formats.range_file import Access, RangeFile
from tests.support.faulty_files import FaultyFiles
from tests.support.interrupts import InterruptAt

DATA = random.Random(0).randbytes(10_000)
QUICK = FetchOptions(range_bytes=256, ahead=3, attempts=4, first_pause_s=0.001, max_pause_s=0.004)


class Bytes:
    """A handle over bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def size(self) -> int:
        return len(self.data)

    def read_at(self, nbytes: int, offset: int) -> bytes:
        return self.data[offset : offset + nbytes]

    def close(self) -> None: ...


def open_bytes(data: bytes = DATA, *, access: Access = "forward", options: FetchOptions = QUICK) -> RangeFile:
    return RangeFile("x", len(data), lambda: Bytes(data), options, FetchCounts(), access=access)


def faulty(folder: Path, fault: Any, options: FetchOptions = QUICK) -> tuple[FaultyFiles, ArrowStore]:
    (folder / "f").write_bytes(DATA)
    files = FaultyFiles(folder, fault)
    return files, ArrowStore(files, options)  # type: ignore[arg-type]


def read_in_a_thread(file: RangeFile, files: FaultyFiles) -> tuple[threading.Thread, list[BaseException]]:
    """A thread that has begun to read a byte, and the error that it will have met."""
    caught: list[BaseException] = []

    def read() -> None:
        try:
            file.read(1)
        except BaseException as error:
            caught.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    while not files.reads:
        threading.Event().wait(0.002)
    return reader, caught


def fetching() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "headrace-fetch" and t.is_alive()]


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(0, 3000),
    range_bytes=st.integers(1, 700),
    ahead=st.integers(1, 5),
    access=st.sampled_from(get_args(Access)),
    steps=st.lists(st.tuples(st.integers(0, 3100), st.integers(-1, 900)), max_size=12),
)
def test_any_reads_at_any_places(size: int, range_bytes: int, ahead: int, access: Any, steps: Any) -> None:
    options = FetchOptions(range_bytes=range_bytes, ahead=ahead)
    expected = io.BytesIO(DATA[:size])
    with open_bytes(DATA[:size], access=access, options=options) as file:
        for place, count in steps:
            assert file.seek(place) == expected.seek(place)
            assert file.read(count) == expected.read(count)
            assert file.tell() == min(expected.tell(), max(size, place)) or place > size
        file.seek(0)
        assert file.read() == DATA[:size]


def test_ranges_ahead_are_fetched_before_they_are_asked_for(tmp_path: Path) -> None:
    files, store = faulty(tmp_path, lambda *_: "")
    with store.open("f") as file:
        assert file.read(10) == DATA[:10]
        deadline = time.monotonic() + 10
        while len(files.reads) < 4 and time.monotonic() < deadline:
            threading.Event().wait(0.005)
        assert sorted(files.reads) == [(0, 256), (256, 256), (512, 256), (768, 256)]  # the first, and 3 ahead
        assert file.read() == DATA[10:]
    assert len(files.reads) == -(-len(DATA) // 256)  # each range once
    assert store.counts() == {"bytes_fetched": 10_000, "requests": 40, "retries": 0}


def test_ranges_are_fetched_side_by_side(tmp_path: Path) -> None:
    together = threading.Barrier(4)  # passes once four reads are under way: one alone would wait for ever

    def fault(path: str, offset: int, nbytes: int) -> str:
        if offset < 4 * 256:
            together.wait(60)
        return ""

    _, store = faulty(tmp_path, fault)
    with store.open("f") as file:
        assert file.read() == DATA
    assert store.counts()["retries"] == 0


@pytest.mark.parametrize(("access", "held"), [("forward", 5), ("array", 3), ("columns", 96)])
def test_memory_is_bounded(access: Any, held: int) -> None:
    data = bytes(64 * 256 * 3)
    with open_bytes(data, access=access) as file:
        for place in range(0, len(data), 100):
            file.seek(place)
            file.read(1)
            assert len(file._fetcher._ranges) <= held


def test_columns_are_read_side_by_side_without_fetching_a_range_twice(tmp_path: Path) -> None:
    files, store = faulty(tmp_path, lambda *_: "")
    with store.open("f", "columns") as file:
        for step in range(20):
            for column in range(10):
                place = column * 1000 + step * 50
                file.seek(place)
                assert file.read(50) == DATA[place : place + 50]
    assert len(files.reads) == len(set(files.reads))


@pytest.mark.parametrize("what", ["error", "short", "empty"])
@pytest.mark.parametrize("times", [1, 3])
def test_what_fails_is_asked_for_again(tmp_path: Path, what: str, times: int) -> None:
    seen: dict[int, int] = {}

    def fault(path: str, offset: int, nbytes: int) -> str:
        begin = offset // 256 * 256
        seen[begin] = seen.get(begin, 0) + 1
        return what if begin in (0, 512, 9984) and seen[begin] <= times else ""

    _, store = faulty(tmp_path, fault)
    with store.open("f") as file:
        assert file.read() == DATA
    counts = store.counts()
    assert counts["retries"] == 3 * times
    assert counts["bytes_fetched"] == len(DATA)


@pytest.mark.parametrize("what", ["error", "empty"])
def test_what_goes_on_failing_names_file_and_range(tmp_path: Path, what: str) -> None:
    files, store = faulty(tmp_path, lambda path, offset, nbytes: what if 512 <= offset < 768 else "")
    with store.open("f") as file:
        assert file.read(512) == DATA[:512]
        message = r"^f: bytes 512\.\.767 did not come in 4 attempts: "
        with pytest.raises(StoreReadError, match=message) as caught:
            file.read(1)
    error = caught.value
    assert (error.path, error.first_byte, error.last_byte, error.attempts) == ("f", 512, 767, 4)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert sum(512 <= offset < 768 for offset, _ in files.reads) == 4
    assert not fetching()


def test_attempts_that_bring_bytes_do_not_count(tmp_path: Path) -> None:
    # L107, L109: each read is cut after half of what it was asked for, and all goes on from there; 4 attempts would
    # have brought 240 of 256 bytes
    files, store = faulty(tmp_path, lambda path, offset, nbytes: "short" if 512 <= offset < 768 and nbytes > 1 else "")
    with store.open("f") as file:
        assert file.read() == DATA
    asked = sorted(read for read in files.reads if 512 <= read[0] < 768)
    assert asked == [(512, 256), (640, 128), (704, 64), (736, 32), (752, 16), (760, 8), (764, 4), (766, 2), (767, 1)]
    assert store.counts() == {"bytes_fetched": 10_000, "requests": 40 + 8, "retries": 8}


def test_after_an_error_the_file_can_be_read_on(tmp_path: Path) -> None:
    broken = [True]
    _, store = faulty(tmp_path, lambda path, offset, nbytes: "error" if broken[0] else "")
    with store.open("f") as file:
        with pytest.raises(StoreReadError):
            file.read(1)
        broken[0] = False
        while True:  # ranges ahead that failed meanwhile are reported, too, each once
            try:
                assert file.read(len(DATA) - file.tell()) == DATA[: len(DATA)]
            except StoreReadError:
                file.seek(0)
            else:
                break


def test_a_read_that_never_comes_back_ends_in_bounded_time(tmp_path: Path) -> None:
    options = FetchOptions(range_bytes=256, ahead=1, stall_timeout_s=0.2)
    files, store = faulty(tmp_path, lambda *_: "stall", options)
    file = store.open("f")
    began = time.monotonic()
    with pytest.raises(StoreReadError, match=r"bytes 0\.\.255 .* nothing came for 0\.2 s"):
        file.read(1)
    assert time.monotonic() - began < 10
    file.close()  # a thread that is stuck is left behind
    assert time.monotonic() - began < 15
    files.released.set()


def test_attempts_that_bring_nothing_do_not_prolong_the_wait(tmp_path: Path) -> None:
    options = FetchOptions(range_bytes=256, ahead=1, attempts=1000, first_pause_s=0.01, stall_timeout_s=0.5)
    files, store = faulty(tmp_path, lambda *_: "error", options)
    began = time.monotonic()
    with store.open("f") as file, pytest.raises(StoreReadError, match=r"bytes 0\.\.255 .* nothing came for 0\.5 s"):
        file.read(1)
    assert time.monotonic() - began < 10
    assert len(files.reads) > 2


def test_ranges_that_come_prolong_the_wait_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the first range comes last, 250 s after it was asked for; a silence of 60 s is an error, but there was none
    now_s, others, lock, files = [0.0], threading.Semaphore(0), threading.Lock(), []

    def fault(path: str, offset: int, nbytes: int) -> str:
        if offset == 0:
            for _ in range(5):
                assert others.acquire(timeout=60)
        with lock:
            for _ in range(60_000):  # until what came before is known to have come: 50 s pass between two, not 100
                if files[0]._fetcher._last_bytes_s == now_s[0]:
                    break
                time.sleep(0.001)
            now_s[0] += 50
        others.release()
        return ""

    monkeypatch.setattr(range_fetcher, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    _, store = faulty(tmp_path, fault, FetchOptions(range_bytes=256, ahead=5))
    with store.open("f") as file:
        files.append(file)
        assert file.read(10) == DATA[:10]
    assert now_s[0] == 300


def test_two_threads_at_a_time_are_refused(tmp_path: Path) -> None:
    files, store = faulty(tmp_path, lambda *_: "stall")
    file = store.open("f")
    reader, caught = read_in_a_thread(file, files)
    with pytest.raises(RuntimeError, match="f: read by two threads at a time"):
        file.read(1)
    store.interrupt()
    reader.join(10)
    assert isinstance(caught[0], ReadInterruptedError)
    files.released.set()
    file.close()


def test_an_interrupt_wakes_who_waits(tmp_path: Path) -> None:
    files, store = faulty(tmp_path, lambda *_: "stall")
    file = store.open("f")
    reader, caught = read_in_a_thread(file, files)
    began = time.monotonic()
    store.interrupt()
    reader.join(10)
    assert time.monotonic() - began < 5
    assert isinstance(caught[0], ReadInterruptedError)
    files.released.set()
    file.close()


def test_a_pause_before_another_attempt_ends_with_the_file(tmp_path: Path) -> None:
    options = FetchOptions(range_bytes=256, first_pause_s=1000, max_pause_s=1000)
    files, store = faulty(tmp_path, lambda *_: "error", options)
    file = store.open("f")
    threading.Timer(0.1, store.interrupt).start()
    began = time.monotonic()
    with pytest.raises(ReadInterruptedError):
        file.read(1)
    file.close()
    assert time.monotonic() - began < 20
    assert files.reads


def test_pauses_double_up_to_a_bound_and_are_the_same_each_time() -> None:
    options = FetchOptions(first_pause_s=0.1, max_pause_s=0.5)
    pauses = [options.pause_s(attempt, "s3://b/x 0") for attempt in range(1, 8)]
    for pause, whole in zip(pauses, [0.1, 0.2, 0.4, 0.5, 0.5, 0.5, 0.5], strict=True):
        assert whole / 2 <= pause <= whole
    assert pauses == [options.pause_s(attempt, "s3://b/x 0") for attempt in range(1, 8)]
    assert pauses != [options.pause_s(attempt, "s3://b/x 1") for attempt in range(1, 8)]


def test_no_thread_outlives_its_file() -> None:
    file = open_bytes()
    file.read(1)
    assert fetching()
    file.close()
    assert not fetching()
    file = open_bytes()
    file.read(1)
    del file
    gc.collect()
    deadline = time.monotonic() + 10
    while fetching() and time.monotonic() < deadline:
        threading.Event().wait(0.005)
    assert not fetching()


def test_a_file_that_changed_is_not_read_on(tmp_path: Path) -> None:
    _, store = faulty(tmp_path, lambda *_: "")
    file = store.open("f")
    (tmp_path / "f").write_bytes(DATA + b"more")
    with pytest.raises(CorruptShardError, match=r"changed since it was opened \(10000 bytes then, 10004 now\)"):
        file.read(1)
    file.close()


def test_what_is_not_tried_again() -> None:
    for error in (FileNotFoundError("x"), PermissionError("x"), OSError("AWS Error ACCESS_DENIED during GetObject")):
        assert not is_passing(error)
    for error in (OSError("reset"), TimeoutError("slow"), ConnectionResetError("reset")):
        assert is_passing(error)
    assert not is_passing(ValueError("a bug"))
    assert is_passing(IncompleteRead(b"12", 5))  # L107: content-length shortfall
    for cause, passing in ((ConnectionResetError("reset"), True), (FileNotFoundError("x"), False), (None, False)):
        error = RuntimeError("of a library")
        error.__cause__ = cause
        assert is_passing(error) is passing


@pytest.mark.parametrize(
    "option", [{"range_bytes": 0}, {"ahead": 0}, {"attempts": 0}, {"max_pause_s": -1}, {"stall_timeout_s": 0}]
)
def test_options_out_of_range(option: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        FetchOptions(**option)


def test_ctrl_c_within_a_read_leaves_what_others_can_use() -> None:
    """The lock is free, no range is known that nobody fetches, and the next read gives the right bytes."""
    for at in count(1, 5):
        with open_bytes() as file:
            fetcher = file._fetcher
            interrupt = InterruptAt(at, ("range_fetcher.py", "uninterrupted.py", "monitor.py"))
            interrupt.during(lambda fetcher=fetcher: fetcher.get(0, ahead=True))  # type: ignore[misc]
            if interrupt.left > 0:
                break
            with ThreadPoolExecutor(1) as other:
                found = [other.submit(fetcher.get, n, ahead=True).result(20) for n in (1, 0, 5)]
            assert found == [DATA[256 * n : 256 * (n + 1)] for n in (1, 0, 5)], interrupt.place
            assert fetcher.get(0, ahead=False) == DATA[:256], interrupt.place
    assert at > 200
