"""Errors keep what they know: attributes, message, pickling."""

from __future__ import annotations

import copy
import pickle

import pytest

from headrace.formats.errors import (
    BadRecordError,
    BadRecordLimitError,
    CorruptShardError,
    ManifestError,
    excerpt,
)

RECORD = BadRecordError("day_0", 17, "I3", b"1.0", "not a decimal integer", "an integer written as a float")
ERRORS = [
    RECORD,
    BadRecordError("day_0", 1, "", b"", "blank line"),
    BadRecordLimitError(RECORD, 11, 2_000, "max_count=10"),
    CorruptShardError("day_1.gz", 1_000, 42, "the file ends inside a gzip member"),
    ManifestError("day_2", "3 bytes, the manifest says 4"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("clone", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_errors_survive_a_copy(error, clone) -> None:
    twin = clone(error)
    assert type(twin) is type(error)
    assert vars(twin) == vars(error)
    assert str(twin) == str(error)


def test_messages_name_the_place_and_the_bytes() -> None:
    assert str(RECORD) == ("day_0, line 17, column I3: b'1.0': not a decimal integer (an integer written as a float)")
    assert str(ERRORS[1]) == "day_0, line 1: b'': blank line"
    assert str(ERRORS[2]).startswith("11 bad records in 2000 lines, allowed: max_count=10; the last: day_0, line 17")
    assert str(ERRORS[3]) == ("day_1.gz: the file ends inside a gzip member at byte 1000; 42 rows were read before it")


def test_kinds() -> None:
    assert isinstance(RECORD, ValueError)
    assert isinstance(ERRORS[2], BadRecordError)
    assert isinstance(ERRORS[3], OSError)


@pytest.mark.parametrize("size", [0, 79, 80, 81, 10_000])
def test_an_excerpt_has_at_most_80_bytes(size: int) -> None:
    data = b"x" * size
    assert excerpt(data) == (data if size <= 80 else b"x" * 77 + b"...")
    assert BadRecordError("f", 1, "", data, "r").offending == excerpt(data)
