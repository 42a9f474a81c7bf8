"""Fields of text -> numbers, many at a time: the strict grammar of `criteo_lines.py`, over offsets into one buffer.

`data` is uint8 [bytes]; field i is ``data[begin[i]:end[i]]`` (int64 [n] each); fields may lie anywhere. An empty field
is no number: callers take those out as missing values. Each function gives the values, arbitrary where refused, and for
each field 0 or the :class:`Reason` why it is refused (uint8 [n]). The loops run over digits, not over fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from headrace.formats.bad_lines import I64
from headrace.formats.criteo_lines import Reason

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

_NO_DIGIT = 255
_MINUS = ord("-")
_MAX_DECIMAL_DIGITS = 20  # of 2^64 - 1
_SAFE_DECIMAL_DIGITS = 18  # so many always fit
_FLOAT = re.compile(rb"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,9})?")


def _digit_table(digits: bytes) -> U8:
    table = np.full(256, _NO_DIGIT, np.uint8)
    for value, digit in enumerate(digits):
        table[digit] = value
        table[ord(chr(digit).upper())] = value
    return table


_HEX = _digit_table(b"0123456789abcdef")
_DECIMAL = _digit_table(b"0123456789")


def _places(length: I64, most: int) -> Iterator[tuple[int, Bool | np.bool_]]:
    """Each place up to the longest field's end, and which fields have it (where all do, just True)."""
    shortest = length.min(initial=most)
    for place in range(int(min(length.max(initial=0), most))):
        yield place, np.True_ if place < shortest else place < length


def parse_hex(data: U8, begin: I64, end: I64, *, max_digits: int) -> tuple[U64, U8]:
    """1 to `max_digits` (at most 16) of ``[0-9a-fA-F]``; no prefix, sign or blank."""
    length = end - begin
    bad = (length < 1) | (length > max_digits)
    values = np.zeros(len(begin), np.uint64)
    for place, there in _places(length, max_digits):
        digit = _HEX[data.take(begin + place, mode="clip")]
        bad |= there & (digit == _NO_DIGIT)
        values = np.where(there, (values << np.uint64(4)) | digit, values)
    return values, np.where(bad, np.uint8(Reason.BAD_HEX), np.uint8(0))


def parse_decimal(data: U8, begin: I64, end: I64, *, signed: bool) -> tuple[U64, U8]:
    """Decimal digits, with an optional ``-`` when `signed`; negative values in two's complement."""
    negative = np.zeros(len(begin), np.bool_)
    if signed and len(data):
        negative = (end > begin) & (data.take(begin, mode="clip") == _MINUS)
    first = begin + negative
    bad = end <= first
    first = _skip_zeros(data, first, end)
    length = end - first
    over = np.zeros(len(begin), np.bool_)
    limit = np.where(negative, 2**63, 2**63 - 1 if signed else 2**64 - 1).astype(np.uint64)
    values = np.zeros(len(begin), np.uint64)
    for place, there in _places(length, _MAX_DECIMAL_DIGITS):
        digit = _DECIMAL[data.take(first + place, mode="clip")]
        no_digit = digit == _NO_DIGIT
        bad |= there & no_digit
        digit[no_digit] = 0
        if place >= _SAFE_DECIMAL_DIGITS:
            over |= there & (values > (limit - digit) // np.uint64(10))
        values = np.where(there, values * np.uint64(10) + digit, values)
    for i in np.flatnonzero(length > _MAX_DECIMAL_DIGITS).tolist():  # either is refused; which, no one hurries for
        bad[i] |= not bytes(data[first[i] : end[i]]).isdigit()
        over[i] = True
    values = np.where(negative, np.uint64(0) - values, values)
    return values, np.select([bad, over], [np.uint8(Reason.BAD_DECIMAL), np.uint8(Reason.OUT_OF_RANGE)], np.uint8(0))


def _skip_zeros(data: U8, first: I64, end: I64) -> I64:
    """Where each number begins without its leading zeros (one digit is left), so that `0` * 30 + `1` is 1."""
    first = first.copy()
    at = np.flatnonzero(first < end - 1)
    while len(at):
        at = at[data[first[at]] == ord("0")]
        first[at] += 1
        at = at[first[at] < end[at] - 1]
    return first


def parse_float(data: U8, begin: I64, end: I64) -> tuple[F64, U8]:
    """Decimal floats with digits, point, exponent and signs only; what is not finite as float32 is refused.

    One Python call a field: dense columns of text floats are few and short.
    """
    values = np.zeros(len(begin), np.float64)
    reasons = np.zeros(len(begin), np.uint8)
    text = data.tobytes()
    for i, (b, e) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        field = text[b:e]
        if _FLOAT.fullmatch(field):
            values[i] = float(field)
        else:
            reasons[i] = Reason.BAD_FLOAT
    with np.errstate(over="ignore"):
        too_large = ~np.isfinite(values.astype(np.float32))
    reasons[too_large] = Reason.OUT_OF_RANGE
    return values, reasons


def parse_words(data: U8, begin: I64, end: I64, words: dict[bytes, int]) -> tuple[U64, U8]:
    """One of the words (ASCII, as written), each of which stands for a number (0 to 2^64 - 1)."""
    length = end - begin
    values = np.zeros(len(begin), np.uint64)
    known = np.zeros(len(begin), np.bool_)
    for word, value in words.items():
        found = equals(data, begin, length, word)
        values[found] = value
        known |= found
    return values, np.where(known, np.uint8(0), np.uint8(Reason.BAD_WORD))


def equals(data: U8, begin: I64, length: I64, word: bytes) -> Bool:
    """bool [n], True where the field is just `word`."""
    found: Bool = length == len(word)
    for place, byte in enumerate(word):
        found &= data.take(begin + place, mode="clip") == byte if len(data) else False
    return found
