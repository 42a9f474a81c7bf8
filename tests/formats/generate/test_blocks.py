from __future__ import annotations

import threading
import time

import pytest

from headrace.formats.generate.blocks import FormattedBlock, file_ends, in_order


def block(number: int) -> FormattedBlock:
    return FormattedBlock(None, None, ((number, 1, b""),))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_blocks_come_in_order_whatever_takes_longer(threads):
    def make(position: int) -> FormattedBlock:
        time.sleep(0.002 * (position % 3))
        return block(position)

    assert [b.pieces[0][0] for b in in_order(make, 23, threads)] == list(range(23))
    assert list(in_order(make, 0, threads)) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_comes_in_its_place_and_nothing_hangs(threads):
    def make(position: int) -> FormattedBlock:
        if position == 4:
            raise OSError(5, "no")
        return block(position)

    got: list[FormattedBlock] = []
    blocks = in_order(make, 1000, threads)
    got += [next(blocks) for _ in range(4)]
    with pytest.raises(OSError, match="no"):
        next(blocks)
    assert [b.pieces[0][0] for b in got] == [0, 1, 2, 3]
    assert not [t for t in threading.enumerate() if t.name.startswith("generate")]


def test_few_blocks_are_ahead_of_the_reader():
    begun = []

    def make(position: int) -> FormattedBlock:
        begun.append(position)
        return block(position)

    blocks = in_order(make, 1000, 2)
    next(blocks)
    time.sleep(0.05)
    assert len(begun) <= 6
    blocks.close()
    assert len(begun) <= 6


def test_files_differ_by_one_row_at_most():
    assert file_ends(10, 3) == [4, 7, 10]
    assert file_ends(2, 3) == [1, 2, 2]
    assert file_ends(0, 2) == [0, 0]
