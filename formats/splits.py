"""Standard splits of the Criteo datasets by name: pure functions of row counts.

The two published conventions for the last part disagree, so it is always named which one is meant:

========== ================================= ==================================
           ``dlrm-v1``                       ``torchrec``
========== ================================= ==================================
first half ``test`` (it has the odd row)     ``validation`` (it has the odd row)
second     ``validation``                    ``test``
========== ================================= ==================================

``dlrm-v1`` is facebookresearch/dlrm's ``mlperf`` path, ``torchrec`` TorchRec's and MLPerf's DLRM-DCNv2 (NVTabular's
``day_23.part0`` is the first half, too, and used for validation). To train with one and compare with figures of the
other compares different rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from headrace.formats.checks import check_integer
from headrace.formats.rows import SourceRange

Split = Literal["train", "validation", "test"]
Convention = Literal["dlrm-v1", "torchrec"]

KAGGLE_ROWS = 45_840_617
"""Rows of the Kaggle ``train.txt``."""

KAGGLE_PARTS = 7

TERABYTE_ROWS = (
    195_841_983, 199_563_535, 196_792_019, 181_115_208, 152_115_810, 172_548_507, 204_846_845, 200_801_003,
    193_772_492, 198_424_372, 185_778_055, 153_588_700, 169_003_364, 194_216_520, 194_081_279, 187_154_596,
    177_984_934, 163_382_602, 142_061_091, 156_534_237, 193_627_464, 192_215_183, 189_747_893, 178_274_637,
)  # fmt: skip
"""Rows of ``day_0`` to ``day_23``."""


def equal_parts(rows: int, parts: int) -> tuple[int, ...]:
    """Rows of each of `parts` consecutive parts; the first ones have one row more where it does not come out even."""
    rows = check_integer("rows", rows, 0, 2**62)
    size, extra = divmod(rows, check_integer("parts", parts, 1, 2**31 - 1))
    return tuple(size + (part < extra) for part in range(parts))


def kaggle_split(
    split: Split, *, rows: int = KAGGLE_ROWS, convention: Convention = "dlrm-v1"
) -> tuple[SourceRange, ...]:
    """Rows of a split of the Kaggle ``train.txt`` (one file, in its order): 7 equal parts, which are its days.

    The first 6 are ``train``, the halves of the 7th ``test`` and ``validation``, in the order of the convention.
    """
    _check(split, convention)
    sizes = equal_parts(rows, KAGGLE_PARTS)
    train = sum(sizes[:-1])
    if split == "train":
        return _ranges([SourceRange(0, 0, train)])
    return _ranges([_half(0, train, sizes[-1], split, convention)])


def terabyte_split(
    split: Split, *, rows: Sequence[int] = TERABYTE_ROWS, convention: Convention
) -> tuple[SourceRange, ...]:
    """Rows of a split of the Terabyte days, file number = day: all days but the last are ``train``.

    The halves of the last day are ``test`` and ``validation``, in the order of the convention.
    """
    _check(split, convention)
    if not rows:
        raise ValueError("no days: rows is empty")
    days = [check_integer(f"rows of day {day}", count, 0, 2**62) for day, count in enumerate(rows)]
    if split == "train":
        return _ranges([SourceRange(day, 0, count) for day, count in enumerate(days[:-1])])
    return _ranges([_half(len(days) - 1, 0, days[-1], split, convention)])


def over_files(ranges: Iterable[SourceRange], rows_per_file: Sequence[int]) -> tuple[SourceRange, ...]:
    """Ranges of one long file (file number 0) as ranges of the files it was cut into; ValueError beyond their end."""
    found = []
    for r in ranges:
        begin, end = r.first_row, r.first_row + r.rows
        if r.file or end > sum(rows_per_file):
            raise ValueError(f"{r} does not lie in {sum(rows_per_file)} rows of one file")
        first = 0
        for file, rows in enumerate(rows_per_file):
            low, high = max(begin, first), min(end, first + rows)
            if low < high:
                found.append(SourceRange(file, low - first, high - low))
            first += rows
    return tuple(found)


def _half(file: int, first: int, rows: int, split: Split, convention: Convention) -> SourceRange:
    begin = -(-rows // 2)  # an odd row is in the first half
    if split == ("test" if convention == "dlrm-v1" else "validation"):
        return SourceRange(file, first, begin)
    return SourceRange(file, first + begin, rows - begin)


def _ranges(ranges: list[SourceRange]) -> tuple[SourceRange, ...]:
    return tuple(r for r in ranges if r.rows)


def _check(split: str, convention: str) -> None:
    for name, value, choices in (("split", split, get_args(Split)), ("convention", convention, get_args(Convention))):
        if value not in choices:
            raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}")
