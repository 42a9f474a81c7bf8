"""What docs/transforms.md promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

import headrace
from headrace.formats.rows import RowBlock, Source, SourceRange
from headrace.formats.schema import Schema
from tests.support.criteo_text import write_lines


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "transforms.md").read_text()


def test_the_schema_is_one(page: str) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    schema = Schema.from_dict(yaml.safe_load(text))
    assert schema.column_names == ("clk", "price", "age", "user", "category", "seen")
    assert [s.name for s in schema.sparse if s.derived] == ["age_bucket", "price_bucket", "user_x_category"]


def test_the_functions_are_transforms(page: str) -> None:
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(code.split("loader =")[0], names)
    data = pa.RecordBatch.from_pydict({"price": pa.array([1.0, 600.0, 1000.0, None], pa.float32())})
    result = names["transform"](RowBlock(data, Source(("a",), (SourceRange(0, 0, 4),))))
    assert result.data.column("price").to_pylist() == [1.0, 500.0]
    assert result.source.arrays()[1].tolist() == [0, 1]


def test_rows_left_out_are_counted_where_the_page_says(page: str, tmp_path: Path) -> None:
    node, where = re.findall(r"counted, by epoch: `skipped` of the node `(\w+)` in `loader\.(\w+)\(\)`", page)[0]
    path = tmp_path / "x"
    write_lines(path, 10)
    schema = headrace.criteo_schema()
    keep = headrace.keep_rows(lambda batch: np.arange(len(batch)) % 5 != 0)
    with headrace.DataLoader(path, 4, schema=schema, transform=keep) as loader:
        for _ in range(2):
            assert sum(batch.num_rows for batch in loader) == 8
            assert [s.skipped for s in getattr(loader, where)() if s.name == node] == [2]
