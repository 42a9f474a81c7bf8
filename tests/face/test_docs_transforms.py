"""What docs/transforms.md promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from headrace.formats.rows import RowBlock, Source, SourceRange
from headrace.formats.schema import Schema


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
