"""Pieces read ahead: order, errors in their place, bounds, and threads that end."""

from __future__ import annotations

import gc
import os
import threading
import time

import pytest

from headrace.formats.read_ahead import PIECES_AHEAD, ReadAhead


class Given:
    """Pieces of a list; an error among them is raised. Counts what was read."""

    def __init__(self, pieces: list[bytes | Exception]) -> None:
        self.pieces, self.read, self.closed = pieces, 0, False

    def read_piece(self) -> bytes:
        if self.read == len(self.pieces):
            return b""
        piece = self.pieces[self.read]
        self.read += 1
        if isinstance(piece, Exception):
            raise piece
        return piece

    def fileno(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True


def drain(ahead: ReadAhead) -> None:
    while ahead.readinto(memoryview(bytearray(1))):
        pass


def read_ahead_threads() -> int:
    return sum(t.name == "headrace-read-ahead" for t in threading.enumerate())


def wait_until(condition, seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())


@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_the_bytes_come_in_order_whatever_the_steps(step: int) -> None:
    given = Given([b"ab", b"c", b"defg"] * 5)
    ahead, target, out = ReadAhead(given), memoryview(bytearray(step)), b""
    while used := ahead.readinto(target):
        out += bytes(target[:used])
    assert out == b"abcdefg" * 5
    assert ahead.readinto(target) == ahead.readinto(target) == 0
    ahead.close()
    assert given.closed


def test_an_error_comes_behind_the_bytes_before_it_and_again() -> None:
    ahead, target = ReadAhead(Given([b"ab", ValueError("broken")])), memoryview(bytearray(10))
    assert ahead.readinto(target) == 2
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            ahead.readinto(target)
    ahead.close()


def test_no_more_than_a_few_pieces_are_ahead() -> None:
    given = Given([b"x"] * 100)
    ahead, target = ReadAhead(given), memoryview(bytearray(1))
    assert given.read == 0  # nothing begins before the first read
    for taken in range(1, 50):
        assert ahead.readinto(target) == 1
        assert given.read <= taken + PIECES_AHEAD
    assert wait_until(lambda: given.read == 49 + PIECES_AHEAD)
    ahead.close()


def test_closing_or_dropping_ends_the_thread() -> None:
    before = read_ahead_threads()
    for close in (True, False):
        given = Given([b"x"] * 100)
        ahead = ReadAhead(given)
        ahead.readinto(memoryview(bytearray(1)))
        if close:
            ahead.close()
            ahead.close()
            assert read_ahead_threads() == before
            with pytest.raises(ValueError, match="read after close"):
                drain(ahead)
        del ahead
        gc.collect()
        assert wait_until(lambda: read_ahead_threads() == before)


def test_a_forked_child_is_told_that_the_thread_is_gone() -> None:
    ahead = ReadAhead(Given([b"x"] * 100))
    target = memoryview(bytearray(1))
    ahead.readinto(target)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for _ in range(200):
                ahead.readinto(target)
        except RuntimeError as error:
            code = 0 if "fork" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ahead.close()
