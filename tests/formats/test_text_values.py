"""Fields of text to numbers, against a reading of one field at a time."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.criteo_lines import Reason
from headrace.formats.text_values import parse_decimal, parse_float, parse_hex, parse_words

FIELDS = st.lists(
    st.one_of(
        st.integers(-(2**64), 2**65).map(lambda n: str(n).encode()),
        st.integers(0, 2**66).map(lambda n: f"{n:x}".encode()),
        st.text("0123456789abcdefABCDEFgG-+ .x_", max_size=24).map(str.encode),
        st.integers(0, 99).map(lambda n: b"0" * 30 + str(n).encode()),
        st.binary(max_size=9),
    ),
    max_size=12,
)


def laid_out(fields: list[bytes]) -> tuple[Any, Any, Any]:
    """The fields with a byte between them, as a buffer and offsets."""
    begin, data = [], b""
    for field in fields:
        begin.append(len(data))
        data += field + b","
    starts = np.array(begin, np.int64)
    return np.frombuffer(data, np.uint8), starts, starts + np.array([len(f) for f in fields], np.int64)


def expected_hex(field: bytes, digits: int) -> int | Reason:
    return int(field, 16) if re.fullmatch(rb"[0-9a-fA-F]{1,%d}" % digits, field) else Reason.BAD_HEX


def expected_decimal(field: bytes, signed: bool) -> int | Reason:
    if not re.fullmatch(rb"-?[0-9]+" if signed else rb"[0-9]+", field):
        return Reason.BAD_DECIMAL
    low, high = (-(2**63), 2**63 - 1) if signed else (0, 2**64 - 1)
    return int(field) % 2**64 if low <= int(field) <= high else Reason.OUT_OF_RANGE


def outcomes(parsed: tuple[Any, Any]) -> list[int | Reason]:
    values, reasons = parsed
    return [Reason(r) if r else v for v, r in zip(values.tolist(), reasons.tolist(), strict=True)]


@given(FIELDS)
def test_hex_as_one_field_at_a_time(fields: list[bytes]) -> None:
    data = laid_out(fields)
    for digits in (8, 16):
        assert outcomes(parse_hex(*data, max_digits=digits)) == [expected_hex(f, digits) for f in fields]


@given(FIELDS)
def test_decimals_as_one_field_at_a_time(fields: list[bytes]) -> None:
    data = laid_out(fields)
    for signed in (False, True):
        assert outcomes(parse_decimal(*data, signed=signed)) == [expected_decimal(f, signed) for f in fields]


@pytest.mark.parametrize(
    "text",
    [b"0x1f", b" 1f ", b"1_0", b"-1", b"+1f", "١٢".encode(), b"1f\0", b"", b"123456789"],  # L66
)
def test_python_would_take_these_for_hex(text: bytes) -> None:
    assert outcomes(parse_hex(*laid_out([text]), max_digits=8)) == [Reason.BAD_HEX]


def test_the_ends_of_the_ranges() -> None:
    # L79: 2^64 - 1 is no float
    data = laid_out([b"18446744073709551615", b"18446744073709551616", b"99999999999999999999", b"9223372036854775808"])
    over = Reason.OUT_OF_RANGE
    assert outcomes(parse_decimal(*data, signed=False)) == [2**64 - 1, over, over, 2**63]
    data = laid_out([b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808", b"-9223372036854775809"])
    assert outcomes(parse_decimal(*data, signed=True)) == [2**63 - 1, over, 2**63, over]
    assert outcomes(parse_decimal(*laid_out([b"-", b"-0", b"--1", b"- 1"]), signed=True)) == [
        Reason.BAD_DECIMAL,
        0,
        Reason.BAD_DECIMAL,
        Reason.BAD_DECIMAL,
    ]


def test_all_digit_hex_stays_hex() -> None:
    # L64
    assert outcomes(parse_hex(*laid_out([b"68001064", b"12345e67", b"ffffffff"]), max_digits=8)) == [
        0x68001064,
        0x12345E67,
        2**32 - 1,
    ]


def test_floats() -> None:
    texts = [b"3.9", b"-.5", b"1e3", b"7", b"nan", b"inf", b"1e39", b"1_0", b" 1", b"", b"1.", b"0x1p3"]
    bad = Reason.BAD_FLOAT
    assert outcomes(parse_float(*laid_out(texts))) == [
        3.9, -0.5, 1000.0, 7.0, bad, bad, Reason.OUT_OF_RANGE, bad, bad, bad, 1.0, bad,
    ]  # fmt: skip


def test_words() -> None:
    words = {b"pv": 0, b"buy": 1}
    found = outcomes(parse_words(*laid_out([b"pv", b"buy", b"p", b"pvv", b"PV", b""]), words))
    assert found == [0, 1, Reason.BAD_WORD, Reason.BAD_WORD, Reason.BAD_WORD, Reason.BAD_WORD]
