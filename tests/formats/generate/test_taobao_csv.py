from __future__ import annotations

import numpy as np
import pytest

from headrace.formats.generate.taobao_csv import BEHAVIOURS, FIRST_SECOND, draw_behaviours, format_taobao, timestamps


def test_literal_lines():
    ids = np.array([[0, 987_993], [2_268_317, 2**32 - 1], [2_520_376, 4]], np.uint32)
    text = format_taobao(ids, np.array([0, 3], np.uint8), np.array([1_511_544_070, -5]))
    assert text == b"1,2268318,2520377,pv,1511544070\n987994,4294967296,5,buy,-5\n"
    assert format_taobao(ids[:, :0], np.zeros(0, np.uint8), np.zeros(0, np.int64)) == b""


def test_real_lines_come_back_byte_for_byte(shared_data):
    text = (shared_data / "taobao_userbehavior/fattydelivery_UserBehavior.csv").read_bytes().replace(b"\r\n", b"\n")
    rows = [line.split(",") for line in text.decode().splitlines()]
    ids = np.array([[int(f) - 1 for f in row[:3]] for row in rows], np.uint32).T
    behaviours = np.array([BEHAVIOURS.index(row[3]) for row in rows], np.uint8)
    seconds = np.array([int(row[4]) for row in rows])
    assert format_taobao(ids, behaviours, seconds).splitlines() == text.splitlines()


def test_time_runs_evenly_a_day_every_so_many_rows():
    seconds = timestamps(90, 20, 100)
    assert seconds[0] == FIRST_SECOND + 90 * 864
    assert seconds[10] == FIRST_SECOND + 86_400
    assert set(np.diff(seconds)) == {864}


def test_behaviours_follow_labels_and_the_published_shares():
    labels = np.repeat(np.array([0, 1], np.uint8), 100_000)
    drawn = draw_behaviours(np.random.default_rng(0), labels)
    assert (drawn[:100_000] == 0).all()
    shares = np.bincount(drawn[100_000:], minlength=4) / 100_000
    assert shares == pytest.approx([0, 0.5300, 0.2768, 0.1932], abs=0.006)


def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match="shapes"):
        format_taobao(np.zeros((3, 2), np.uint32), np.zeros(1, np.uint8), np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="shapes"):
        format_taobao(np.zeros((2, 2), np.uint32), np.zeros(2, np.uint8), np.zeros(2, np.int64))
