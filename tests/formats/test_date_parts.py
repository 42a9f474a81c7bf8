"""Hours and weekdays against the standard library."""

from __future__ import annotations

import datetime as dt

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.date_parts import (
    china_hour,
    china_weekday,
    yymmddhh_hour,
    yymmddhh_weekday,
    yymmddhh_weekend,
)


@given(st.datetimes(dt.datetime(2000, 1, 1), dt.datetime(2099, 12, 31, 23)))
def test_dates_of_avazu(date: dt.datetime) -> None:
    value = np.array([int(date.strftime("%y%m%d%H"))])
    for part, expected in (
        (yymmddhh_hour, date.hour),
        (yymmddhh_weekday, date.weekday()),
        (yymmddhh_weekend, int(date.weekday() >= 5)),
    ):
        values, bad = part(value)
        assert (values.tolist(), values.dtype, bad.tolist()) == ([expected], np.uint64, [False])


def test_what_is_no_date() -> None:
    values = [14103200, 14022900, 14130100, 14102124, 14100000, -1, 1014102100, 0]
    assert yymmddhh_hour(np.array(values))[1].tolist() == [True] * len(values)


@given(st.integers(-(2**33), 2**33))
def test_seconds_in_china(seconds: int) -> None:
    date = dt.datetime(1970, 1, 1) + dt.timedelta(seconds=seconds, hours=8)
    assert china_hour(np.array([seconds]))[0].tolist() == [date.hour]
    assert china_weekday(np.array([seconds]))[0].tolist() == [date.weekday()]


def test_the_first_second_of_taobao_is_a_saturday_at_midnight() -> None:
    first = np.array([1511539200, 1511539199, np.iinfo(np.int64).max, np.iinfo(np.int64).min])
    assert china_hour(first)[0].tolist()[:2] == [0, 23]
    assert china_weekday(first)[0].tolist()[:2] == [5, 4]
