"""Words that two processes share: what was written before one is put is seen by who reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.indexer.exchange._shared_words import put_word, read_word
from tests.support.sanitized import run_sanitized

HERE = Path(__file__).resolve().parent / "sanitize"
HEADERS = Path(__file__).resolve().parents[3] / "indexer"


def test_what_is_put_is_read():
    words = np.zeros(16, np.int64)
    put_word(words, 8, -(1 << 60))
    assert read_word(words, 8) == words[8] == -(1 << 60)
    assert np.count_nonzero(words) == 1
    words.setflags(write=False)
    assert read_word(words, 0) == 0
    with pytest.raises(ValueError, match="read-only"):
        put_word(words, 0, 1)


@pytest.mark.parametrize("at", [-1, 2, 1 << 40])
def test_places_outside_are_refused(at):
    with pytest.raises(IndexError, match=f"word {at} of 2"):
        read_word(np.zeros(2, np.int64), at)
    with pytest.raises(IndexError, match=f"word {at} of 2"):
        put_word(np.zeros(2, np.int64), at, 1)


def test_words_that_are_not_aligned_are_refused():
    crooked = np.zeros(17, np.uint8)[1:].view(np.int64)
    if crooked.ctypes.data % 8 == 0:
        pytest.skip("NumPy's memory begins at an odd address")
    with pytest.raises(ValueError, match="aligned"):
        read_word(crooked, 0)


@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_no_race(sanitizers, tmp_path):
    run_sanitized(HERE / "shared_words.cpp", headers=HEADERS, sanitizers=sanitizers, level="-O1", folder=tmp_path)
