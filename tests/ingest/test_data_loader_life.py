"""The DataLoader's life: iterators, errors, closing, exit, Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time

import pytest

import headrace
from tests.support.loaders import ROWS, loader_of, run_python


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_record_is_raised_behind_the_batches_before_it(data, schema, num_workers):
    lines = data.read_text().splitlines()
    lines[43] = lines[43].replace("\t", ",")
    data.write_text("\n".join(lines))
    with loader_of(data, schema, num_workers=num_workers) as loader:
        it, got = iter(loader), []
        with pytest.raises(headrace.BadRecordError, match=r"train\.txt.*line 44") as caught:
            got.extend(it)
        with pytest.raises(headrace.BadRecordError):  # not a false end
            next(it)
    assert caught.value.line == 44
    assert len(got) <= 4
    with loader_of(data, schema, num_workers=num_workers, bad_records="skip") as loader:
        rows = sum(b.num_rows for b in loader)
        assert (rows, loader.stats()["rows_in"], loader.stats()["rows_skipped"]) == (ROWS - 1, ROWS, 1)


def test_an_older_iterator_does_not_steal_from_a_newer_one(data, schema):
    with loader_of(data, schema) as loader:
        old = iter(loader)
        next(old)
        new = iter(loader)
        with pytest.raises(RuntimeError, match="another iterator"):
            next(old)
        assert sum(b.num_rows for b in new) == ROWS
        with pytest.raises(StopIteration):
            next(new)


def test_close_is_bounded_and_wakes_who_waits(data, schema):
    begun, go, caught = threading.Event(), threading.Event(), []

    def slow(block):
        begun.set()
        go.wait(60)
        return block

    def wait(it):
        try:
            next(it)
        except headrace.NodeClosedError as error:
            caught.append(error)

    loader = loader_of(data, schema, transform=slow)
    thread = threading.Thread(target=wait, args=(iter(loader),))
    thread.start()
    assert begun.wait(30)
    start = time.monotonic()
    with pytest.warns(RuntimeWarning, match="not stopped"):
        loader.close()
    assert time.monotonic() - start < 30  # the bound is 5 s; without it, it would be 60
    thread.join(30)
    assert [type(e) for e in caught] == [headrace.NodeClosedError]
    go.set()


def test_leaving_with_an_error_keeps_the_users_error(data, schema):
    blocks = headrace.ReadRows(headrace.CriteoFiles(data, schema))
    once = Once(iter(list(blocks)))

    def leave():
        with loader_of(once, schema) as loader:
            for _batch in loader:
                raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own"):
        leave()


class Once(headrace.Node):
    """A source that can be read once."""

    def _next(self):
        return self._pull()


LEAK = """
    import sys
    import headrace
    loader = headrace.DataLoader(sys.argv[1], 4, schema=headrace.criteo_schema(dim=4), num_workers=2, window=2)
    it = iter(loader)
    next(it)
    print("leaving")
"""


def test_a_loader_that_is_never_closed_lets_the_process_end(data, repository):  # L48, L49
    assert run_python(LEAK, repository, str(data), timeout=60) == "leaving\n"


INTERRUPT = """
    import os, signal, sys, threading
    import headrace
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests in the background ignores it
    loader = headrace.DataLoader(sys.argv[1], 4, schema=headrace.criteo_schema(dim=4), num_workers=2, window=2)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    while True:
        for batch in loader:
            pass
"""


def test_ctrl_c_ends_with_one_traceback(data, repository):  # L48
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INTERRUPT), str(data)],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert "\nKeyboardInterrupt\n" in done.stderr


def test_an_abandoned_loader_frees_its_index_and_what_it_read_ahead_is_undone(data, schema):
    for _ in range(5):
        loader = loader_of(data, schema, window=8)
        for _batch in loader:
            break
        index, delivered = loader.index, loader.index.snapshot()
        del loader  # gone, with its iterator; its thread ends in its own time
        with loader_of(data, schema, index=index) as following:
            for batch in following:
                known = set(delivered.column("location").to_pylist())
                known |= set(batch.groups[0].locations.tolist())
                assert set(index.snapshot().column("location").to_pylist()) == known
                break
