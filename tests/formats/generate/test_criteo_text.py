from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from headrace.formats.generate import _format_py, criteo_text

IMPLEMENTATIONS = pytest.mark.parametrize("format_criteo", [criteo_text.format_criteo, _format_py.format_criteo])
INT64 = np.iinfo(np.int64)


def columns(labels, dense, ids):
    """Arguments from lists of columns in which None is missing."""

    def split(rows, dtype):
        values = np.array([[0 if v is None else v for v in row] for row in rows], dtype)
        return values, np.array([[v is not None for v in row] for row in rows], bool)

    return (None if labels is None else np.array(labels, np.uint8), *split(dense, np.int64), *split(ids, np.uint32))


@IMPLEMENTATIONS
def test_literal_lines(format_criteo):
    arguments = columns([0, 1], [[1, None], [-3, 0]], [[0x68FD1E64, 0], [0xFFFFFFFF, None]])
    assert format_criteo(*arguments) == b"0\t1\t-3\t68fd1e64\tffffffff\n1\t\t0\t00000000\t\n"


@IMPLEMENTATIONS
def test_lines_without_labels_have_one_field_less(format_criteo):
    assert format_criteo(*columns(None, [[5]], [[10]])) == b"5\t0000000a\n"
    assert format_criteo(*columns(None, [[None]], [[None]])) == b"\t\n"


@IMPLEMENTATIONS
def test_integers_of_every_length(format_criteo):
    numbers = [0, *(10**k for k in range(19)), *(10**k - 1 for k in range(1, 19)), INT64.max, INT64.min]
    numbers += [-n for n in numbers[:-1]]
    text = format_criteo(*columns(None, [numbers], [[None] * len(numbers)]))
    assert text.decode() == "".join(f"{n}\t\n" for n in numbers)


@IMPLEMENTATIONS
def test_no_rows_and_no_columns_of_a_kind(format_criteo):
    no_dense = np.zeros((0, 2), np.int64), np.zeros((0, 2), bool)
    no_ids = np.zeros((0, 2), np.uint32), np.zeros((0, 2), bool)
    assert format_criteo(*columns([], [[], []], [[]])) == b""
    assert format_criteo(*columns(None, [[]], [[]])) == b""
    assert format_criteo(np.array([1, 0], np.uint8), *no_dense, *no_ids) == b"1\n0\n"
    assert format_criteo(None, *no_dense, *columns(None, [[5, 6]], [[1, 2]])[3:]) == b"00000001\n00000002\n"
    assert format_criteo(None, *columns(None, [[5, 6]], [[1, 2]])[1:3], *no_ids) == b"5\n6\n"


@IMPLEMENTATIONS
def test_arrays_may_be_read_only(format_criteo):
    arguments = columns([1], [[7]], [[8]])
    for array in arguments:
        array.flags.writeable = False
    assert format_criteo(*arguments) == b"1\t7\t00000008\n"


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 6), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_native_and_plain_agree_and_the_text_parses_back(data, rows, n_dense, n_sparse, labelled):
    if n_dense + n_sparse + labelled == 0:
        return
    labels = data.draw(npst.arrays(np.uint8, rows, elements=st.integers(0, 1))) if labelled else None
    dense = data.draw(npst.arrays(np.int64, (n_dense, rows)))
    ids = data.draw(npst.arrays(np.uint32, (n_sparse, rows)))
    valid = [data.draw(npst.arrays(np.bool_, a.shape)) for a in (dense, ids)]
    text = criteo_text.format_criteo(labels, dense, valid[0], ids, valid[1])
    assert text == _format_py.format_criteo(labels, dense, valid[0], ids, valid[1])
    lines = text.decode().split("\n")
    assert lines.pop() == ""
    assert len(lines) == rows
    for row, line in enumerate(lines):
        fields = line.split("\t")
        if labels is not None:
            assert fields.pop(0) == str(labels[row])
        numbers = [int(f) if f else None for f in fields[:n_dense]]
        assert numbers == [int(v) if ok else None for v, ok in zip(dense[:, row], valid[0][:, row], strict=True)]
        hexes = [int(f, 16) if f else None for f in fields[n_dense:]]
        assert hexes == [int(v) if ok else None for v, ok in zip(ids[:, row], valid[1][:, row], strict=True)]


@IMPLEMENTATIONS
def test_real_lines_come_back_byte_for_byte(format_criteo, shared_data):
    # DATASETS 1.1: negative I2, ids from 2^31 on, an empty last field.
    text = (shared_data / "criteo_kaggle/wideresdnn_dev.tsv").read_bytes()
    lines = [line.split("\t") for line in text.decode().split("\n")[:-1]]
    fields = list(zip(*lines, strict=True))
    dense = [[int(f) if f else None for f in column] for column in fields[1:14]]
    ids = [[int(f, 16) if f else None for f in column] for column in fields[14:]]
    assert any(line[-1] == "" for line in lines)
    assert format_criteo(*columns([int(f) for f in fields[0]], dense, ids)) == text


@IMPLEMENTATIONS
@pytest.mark.parametrize(
    ("position", "value", "error", "message"),
    [
        (0, np.array([0, 2], np.uint8), ValueError, "labels: row 1 has 2"),
        (0, np.array([0], np.uint8), ValueError, "labels: 1 values for 2 rows"),
        (0, np.array([0, 1], np.int64), TypeError, "labels: needs an array of uint8, got int64"),
        (0, [0, 1], TypeError, "labels: needs an array of uint8"),
        (1, np.zeros((1, 2), np.int32), TypeError, "dense: needs an array of int64"),
        (1, np.zeros(2, np.int64), ValueError, "dense: needs 2 dimensions"),
        (1, np.zeros((2, 2), np.int64), ValueError, "shapes differ"),
        (1, np.zeros((1, 4), np.int64)[:, ::2], ValueError, "C-contiguous"),
        (2, np.zeros((1, 3), np.bool_), ValueError, "shapes differ"),
        (3, np.zeros((1, 2), np.int64), TypeError, "ids: needs an array of uint32"),
        (3, np.zeros((1, 1), np.uint32), ValueError, "shapes differ"),
        (4, np.zeros((1, 2), np.uint8), TypeError, "ids_valid: needs an array of bool"),
    ],
)
def test_wrong_arguments_are_refused(format_criteo, position, value, error, message):
    arguments = list(columns([0, 1], [[1, 2]], [[3, 4]]))
    arguments[position] = value
    with pytest.raises(error, match=message):
        format_criteo(*arguments)


@IMPLEMENTATIONS
def test_a_line_without_fields_is_refused(format_criteo):
    empty = np.zeros((0, 2), np.int64), np.zeros((0, 2), bool), np.zeros((0, 2), np.uint32), np.zeros((0, 2), bool)
    with pytest.raises(ValueError, match="at least one field"):
        format_criteo(None, *empty)
