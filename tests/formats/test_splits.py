"""Splits against the published counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.rows import SourceRange
from headrace.formats.splits import (
    TERABYTE_ROWS,
    Convention,
    Split,
    equal_parts,
    kaggle_files_split,
    kaggle_split,
    over_files,
    terabyte_files_split,
    terabyte_split,
)


def test_published_counts_of_the_terabyte() -> None:
    assert (len(TERABYTE_ROWS), sum(TERABYTE_ROWS), sum(TERABYTE_ROWS[:23])) == (24, 4_373_472_329, 4_195_197_692)
    train = terabyte_split("train", convention="torchrec")
    assert (len(train), sum(r.rows for r in train), train[0]) == (23, 4_195_197_692, SourceRange(0, 0, 195_841_983))
    # the halves are the other way round: DLRM v1 tests on the first half of day 23, TorchRec validates on it
    first, second = SourceRange(23, 0, 89_137_319), SourceRange(23, 89_137_319, 89_137_318)
    assert terabyte_split("test", convention="dlrm-v1") == (first,)
    assert terabyte_split("validation", convention="dlrm-v1") == (second,)
    assert terabyte_split("validation", convention="torchrec") == (first,)
    assert terabyte_split("test", convention="torchrec") == (second,)


def test_kaggle_in_seven_parts() -> None:
    # DATASETS 27: halves are named by a convention, and of an odd number the first half is the longer one
    # 45,840,617 = 7 * 6,548,659 + 4
    assert equal_parts(45_840_617, 7) == (6_548_660,) * 4 + (6_548_659,) * 3
    assert kaggle_split("train") == (SourceRange(0, 0, 39_291_958),)
    assert kaggle_split("test") == (SourceRange(0, 39_291_958, 3_274_330),)
    assert kaggle_split("validation") == (SourceRange(0, 42_566_288, 3_274_329),)
    assert kaggle_split("validation", convention="torchrec") == kaggle_split("test")


SPLITS: tuple[Split, ...] = ("train", "test", "validation")


@given(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.sampled_from(["dlrm-v1", "torchrec"]))
def test_every_row_is_in_one_split(days: list[int], convention: Convention) -> None:
    ranges = [r for s in SPLITS for r in terabyte_split(s, rows=days, convention=convention)]
    assert rows_of(ranges) == [(day, row) for day, rows in enumerate(days) for row in range(rows)]
    ranges = [r for s in SPLITS for r in kaggle_split(s, rows=days[0], convention=convention)]
    assert rows_of(ranges) == [(0, row) for row in range(days[0])]


def days(*numbers: int) -> list[str]:
    return [f"/data/day_{number}.gz" for number in numbers]


def test_days_are_known_by_their_names() -> None:
    first, second = SourceRange(0, 0, 89_137_319), SourceRange(0, 89_137_319, 89_137_318)
    for convention, half in (("dlrm-v1", first), ("torchrec", second)):
        assert terabyte_files_split("test", days(23), rows_per_file=None, convention=convention) == (half,)
    shuffled = days(*reversed(range(24)))
    assert terabyte_files_split("test", shuffled, rows_per_file=None, convention="dlrm-v1") == (first,)
    train = terabyte_files_split("train", shuffled, rows_per_file=None, convention=None)
    assert {r.file: r.rows for r in train} == {23 - day: TERABYTE_ROWS[day] for day in range(23)}
    # of days whose rows are known, the last is the highest of all, or day 23 of some
    rows = terabyte_files_split("test", days(2, 0, 1), rows_per_file=[7, 10, 20], convention="dlrm-v1")
    assert rows == (SourceRange(0, 0, 4),)
    rows = terabyte_files_split("validation", days(5, 23), rows_per_file=[7, 9], convention="dlrm-v1")
    assert rows == (SourceRange(1, 5, 4),)
    train = terabyte_files_split("train", days(1, 0), rows_per_file=[3, 4], convention=None)
    assert train == (SourceRange(1, 0, 4),)


def test_files_that_are_not_what_is_split() -> None:
    def refused(files: list[str], split: Split = "test") -> str:
        with pytest.raises(ValueError) as caught:
            terabyte_files_split(split, files, rows_per_file=None, convention="torchrec")
        return str(caught.value)

    assert refused(days(22)) == (
        "the split is of day_0 .. day_23, and 'test' of it is a half of day_23: day_23 is not among the 1 files given"
    )
    assert "'train' of it is day_0 .. day_22: day_7 is not among" in refused(days(*range(7), *range(8, 24)), "train")
    for name in ("part.gz", "day_23_sample.tsv", "today_23", "day_", "day_23.gz.d/x"):
        assert refused([name]).startswith(f"{name.split('/')[-1]}: the split goes by days")
    assert "two files of this day" in refused(["day_23", "day_23.gz"])
    for split in ("test", "validation"):
        with pytest.raises(ValueError, match="say which convention"):
            terabyte_files_split(split, days(23), rows_per_file=None, convention=None)  # type: ignore[arg-type]


def test_pieces_of_kaggles_file() -> None:
    pieces = ["/data/train_2", "/data/train_10"]
    train = kaggle_files_split("train", pieces, rows_per_file=[4, 10], convention=None)
    assert train == (SourceRange(0, 0, 4), SourceRange(1, 0, 8))
    with pytest.raises(ValueError, match="train_2 comes after /data/train_10"):
        kaggle_files_split("train", pieces[::-1], rows_per_file=[4, 10], convention=None)
    with pytest.raises(ValueError, match="2 files are given, whose rows are not known"):
        kaggle_files_split("train", pieces, rows_per_file=None, convention=None)
    assert kaggle_files_split("test", ["x"], rows_per_file=None, convention=None) == kaggle_split("test")


def rows_of(ranges: list[SourceRange]) -> list[tuple[int, int]]:
    return sorted((r.file, row) for r in ranges for row in range(r.first_row, r.first_row + r.rows))


def test_nothing_but_the_names() -> None:
    with pytest.raises(ValueError, match="split='val' is not one of 'train', 'validation', 'test'"):
        kaggle_split("val")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="convention='mlperf'"):
        terabyte_split("test", convention="mlperf")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no days"):
        terabyte_split("train", rows=[], convention="torchrec")


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.data())
def test_a_range_over_several_files(files: list[int], data: st.DataObject) -> None:
    total = sum(files)
    first = data.draw(st.integers(0, total))
    rows = data.draw(st.integers(0, total - first))
    every = [(file, row) for file, count in enumerate(files) for row in range(count)]
    assert rows_of(list(over_files([SourceRange(0, first, rows)], files))) == every[first : first + rows]
    with pytest.raises(ValueError, match="does not lie in"):
        over_files([SourceRange(0, 0, total + 1)], files)
