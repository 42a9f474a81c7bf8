"""File positions, and what the protocol asks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.reader import FilePosition, RowReader
from headrace.formats.text_blocks import TextBlock


def test_a_position_is_plain_data() -> None:
    position = FilePosition(3, 2**40, 7)
    assert position.to_dict() == {"file": 3, "byte_offset": 2**40, "line": 7}
    assert FilePosition.from_dict(json.loads(json.dumps(position.to_dict()))) == position


@pytest.mark.parametrize(
    "data",
    [
        {}, {"file": 0, "byte_offset": 0}, {"file": 0, "byte_offset": 0, "line": 0, "row": 0}, None, [0, 0, 0], "x",
        {"file": -1, "byte_offset": 0, "line": 0}, {"file": 0, "byte_offset": 0.0, "line": 0},
        {"file": 0, "byte_offset": 0, "line": True}, {"file": 0, "byte_offset": 2**63, "line": 0},
        {"file": "0", "byte_offset": 0, "line": 0}, {0: 0, "byte_offset": 0, "line": 0},
    ],
)  # fmt: skip
def test_other_data_is_no_position(data: Any) -> None:
    with pytest.raises(ValueError, match="file position"):
        FilePosition.from_dict(data)


def test_criteo_files_are_a_row_reader(tmp_path: Any) -> None:
    def takes(reader: RowReader[TextBlock]) -> RowReader[TextBlock]:
        return reader

    from tests.support.criteo_text import SMALL

    (tmp_path / "x").write_bytes(b"")
    assert takes(CriteoFiles(tmp_path / "x", SMALL)).num_rows is None
