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

import os
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, get_args

from headrace.formats.checks import check_integer
from headrace.formats.files import natural_key
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
    split: Split, *, rows: Sequence[int] = TERABYTE_ROWS, convention: Convention | None = None
) -> tuple[SourceRange, ...]:
    """Rows of a split of the Terabyte days, file number = day: all days but the last are ``train``.

    The halves of the last day are ``test`` and ``validation``, in the order of the convention, which must be given for
    these. Of files in another order, or not of all days, see :func:`terabyte_files_split`.
    """
    if convention is None and split != "train":
        _check(split, "torchrec")
        raise ValueError(
            "DLRM v1 and TorchRec disagree on what the halves of day 23 are: say which convention (convention=, "
            "--convention) it is, dlrm-v1 or torchrec"
        )
    convention = convention or "torchrec"  # of train both are the same
    _check(split, convention)
    if not rows:
        raise ValueError("no days: rows is empty")
    days = [check_integer(f"rows of day {day}", count, 0, 2**62) for day, count in enumerate(rows)]
    if split == "train":
        return _ranges([SourceRange(day, 0, count) for day, count in enumerate(days[:-1])])
    return _ranges([_half(len(days) - 1, 0, days[-1], split, convention)])


def terabyte_files_split(
    split: Split, files: Sequence[str], *, rows_per_file: Sequence[int] | None, convention: Convention | None
) -> tuple[SourceRange, ...]:
    """The same of files whose names say which day they are (``day_23.gz``); file number = place in `files`.

    The last day is 23, of days ``day_0 .. day_n`` whose row counts are known n. Rows are the published ones when
    `rows_per_file` is None. ValueError for a name that is no day, and when a day of the split is not there; other days
    may be missing.
    """
    places: dict[int, int] = {}
    for place, file in enumerate(files):
        name = os.path.basename(file)
        if (match := re.fullmatch(r"day_([0-9]{1,9})(\.\w+)*", name)) is None:
            raise ValueError(f"{name}: the split goes by days, which are known by name, {_days(0, 23)}: this is none")
        if places.setdefault(int(match[1]), place) != place:
            raise ValueError(f"{name}: there are two files of this day")
    of_all = rows_per_file is not None and set(places) == set(range(len(places)))
    last = len(places) - 1 if of_all else len(TERABYTE_ROWS) - 1
    wanted = range(last) if split == "train" else (last,)
    if missing := [day for day in wanted if day not in places]:
        needed = _days(0, last - 1) if split == "train" else f"a half of {_days(last, last)}"
        raise ValueError(
            f"the split is of {_days(0, last)}, and {split!r} of it is {needed}: "
            f"{_days(missing[0], missing[0])} is not among the {len(places)} files given"
        )
    rows = list(TERABYTE_ROWS[: last + 1]) if last < len(TERABYTE_ROWS) else [0] * (last + 1)
    if rows_per_file is not None:
        for day in places.keys() & set(range(last + 1)):
            rows[day] = rows_per_file[places[day]]
    ranges = terabyte_split(split, rows=rows, convention=convention)
    return tuple(SourceRange(places[r.file], r.first_row, r.rows) for r in ranges)


def _days(first: int, last: int) -> str:
    return f"day_{first}" if first == last else f"day_{first} .. day_{last}"


def kaggle_files_split(
    split: Split, files: Sequence[str], *, rows_per_file: Sequence[int] | None, convention: Convention | None
) -> tuple[SourceRange, ...]:
    """Rows of a split of ``train.txt``, whole or cut into `files`, whose names sort as they follow each other.

    Rows are the published ones when `rows_per_file` is None; ValueError for pieces whose rows are not known.
    """
    if rows_per_file is None and len(files) > 1:
        raise ValueError(
            f"the split counts the rows of train.txt, and {len(files)} files are given, whose rows are not known: give "
            "train.txt alone, or its pieces with a manifest.json beside them"
        )
    for before, after in pairwise(files):
        if natural_key(before) >= natural_key(after):
            raise ValueError(
                f"the split counts rows in the order of train.txt, which its pieces must be given in: {after} comes "
                f"after {before}"
            )
    rows_per_file = (KAGGLE_ROWS,) if rows_per_file is None else rows_per_file
    return over_files(kaggle_split(split, rows=sum(rows_per_file), convention=convention or "dlrm-v1"), rows_per_file)


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
