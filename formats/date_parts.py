"""Parts of dates that click logs write as one integer: hour of the day, day of the week, weekend.

Each function takes int64 [n] and gives uint64 [n] and, for each, whether there is no such date (bool [n]).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from headrace.formats.bad_lines import I64
from headrace.formats.text_values import U64, Bool

DatePart = Callable[[I64], tuple[U64, Bool]]

_HOUR_S, _DAY_S = 3_600, 86_400
_CHINA_S = 8 * _HOUR_S  # UTC+8, no daylight saving time
_FIRST_MONDAY = 4  # 5 January 1970, in days
_SATURDAY = 5


def _yymmddhh(values: I64) -> tuple[I64, I64, Bool]:
    """(days since 1970, hour, no such date) of dates written YYMMDDHH, as in Avazu."""
    year, month, day, hour = values // 1_000_000 + 2000, values // 10_000 % 100, values // 100 % 100, values % 100
    bad = (values < 0) | (year > 2099) | (month < 1) | (month > 12) | (day < 1) | (hour > 23)
    months = np.where(bad, 0, (year - 1970) * 12 + month - 1)
    first = months.astype("M8[M]").astype("M8[D]").astype(np.int64)
    after = (months + 1).astype("M8[M]").astype("M8[D]").astype(np.int64)
    days = first + day - 1
    return days, hour, bad | (days >= after)


def yymmddhh_hour(values: I64) -> tuple[U64, Bool]:
    """0 to 23."""
    _, hour, bad = _yymmddhh(values)
    return hour.astype(np.uint64), bad


def yymmddhh_weekday(values: I64) -> tuple[U64, Bool]:
    """0 (Monday) to 6."""
    days, _, bad = _yymmddhh(values)
    return _weekday(days), bad


def yymmddhh_weekend(values: I64) -> tuple[U64, Bool]:
    """1 on Saturday and Sunday, else 0."""
    weekday, bad = yymmddhh_weekday(values)
    return (weekday >= _SATURDAY).astype(np.uint64), bad


def china_hour(seconds: I64) -> tuple[U64, Bool]:
    """0 to 23 in China of UTC seconds since 1970; every number is a time, negative ones are before 1970."""
    return (_china(seconds) % _DAY_S // _HOUR_S).astype(np.uint64), np.zeros(len(seconds), np.bool_)


def china_weekday(seconds: I64) -> tuple[U64, Bool]:
    """0 (Monday) to 6 in China of UTC seconds since 1970."""
    return _weekday(_china(seconds) // _DAY_S), np.zeros(len(seconds), np.bool_)


def _china(seconds: I64) -> I64:
    shifted: npt.NDArray[np.int64] = np.minimum(seconds, np.iinfo(np.int64).max - _CHINA_S) + _CHINA_S
    return shifted


def _weekday(days: I64) -> U64:
    return ((days - _FIRST_MONDAY) % 7).astype(np.uint64)
