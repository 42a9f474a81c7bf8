"""A streaming left join against a dictionary, for any rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DelimitedFiles, Join, JoinedFiles, SideTable, TextFormat
from headrace.formats.delimited_format import TextField
from headrace.formats.rows import SourceRange
from headrace.formats.schema import Dense, Label, Schema, SchemaError, Sparse
from tests.support.criteo_text import read_all

CLICKS = TextFormat(name="clicks", columns=("y", "ad", "user"))
ADS = TextFormat(name="ads", header=True)
ADS_SCHEMA = Schema(
    dense=(Dense(name="price"),),
    sparse=(Sparse(name="ad", encoding="uint64", missing="raise"), Sparse(name="shop", encoding="uint64")),
)
SCHEMA = Schema(
    labels=(Label(name="y"),),
    dense=(Dense(name="price"),),
    sparse=(Sparse(name="user", encoding="uint64"), Sparse(name="shop", encoding="uint64")),
)
KEYS = st.integers(0, 5) | st.integers(0, 2**64 - 1)
LISTS = (TextField(column="ad", list_separator="|"),)
VALUES = st.none() | st.integers(0, 9)


def text(value: int | None) -> str:
    return "" if value is None else str(value)


def joined(folder: Path, clicks: str, ads: str, **options: object) -> JoinedFiles:
    (folder / "clicks.csv").write_text(clicks)
    (folder / "ads.csv").write_text("shop,price,ad\n" + ads)
    table = SideTable(DelimitedFiles(folder / "ads.csv", ADS_SCHEMA, ADS), "ad")
    join = Join("ads", table, "ad")
    return JoinedFiles(folder / "clicks.csv", SCHEMA, CLICKS, joins=[join], **options)  # type: ignore[arg-type]


def rows_of(reader: JoinedFiles) -> list[tuple[object, ...]]:
    blocks = [block.data for block in read_all(reader)]
    table = pa.Table.from_batches(blocks, SCHEMA.arrow_schema())
    return [tuple(row.values()) for row in table.to_pylist()]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.none() | KEYS, VALUES), max_size=20),
    st.dictionaries(KEYS, st.tuples(VALUES, VALUES), max_size=8),
    st.integers(1, 60),
    st.data(),
)
def test_no_row_is_lost_and_each_finds_its_own(
    tmp_path_factory: pytest.TempPathFactory,
    clicks: list[tuple[int, int | None, int | None]],
    ads: dict[int, tuple[int | None, int | None]],
    block_bytes: int,
    data: st.DataObject,
) -> None:
    lines = "".join(f"{y},{text(ad)},{text(user)}\n" for y, ad, user in clicks)
    side = "".join(f"{text(shop)},{text(price)},{ad}\n" for ad, (shop, price) in ads.items())
    reader = joined(tmp_path_factory.mktemp("j"), lines, side, block_bytes=block_bytes)
    nothing = (None, None)

    def expected(rows: list[tuple[int, int | None, int | None]]) -> list[tuple[object, ...]]:
        found = [ads.get(ad, nothing) if ad is not None else nothing for _, ad, _ in rows]
        return [(float(y), price, user, shop) for (y, _, user), (shop, price) in zip(rows, found, strict=True)]

    assert rows_of(reader) == expected(clicks)
    assert reader.rows_unmatched == {"ads": sum(ad not in ads for _, ad, _ in clicks)}
    first = data.draw(st.integers(0, len(clicks)))
    rows = data.draw(st.integers(0, len(clicks) - first))
    reader.select([SourceRange(0, first, rows)])
    part = clicks[first : first + rows]
    assert rows_of(reader) == expected(part)
    assert reader.rows_unmatched == {"ads": sum(ad not in ads for _, ad, _ in part)}  # of the selected rows alone


def test_the_side_files_are_part_of_what_is_read(tmp_path: Path) -> None:
    reader = joined(tmp_path, "1,2,3\n", "4,5,2\n")
    assert reader.files_of(0) == (str(tmp_path / "clicks.csv"), str(tmp_path / "ads.csv"))
    other = joined(tmp_path, "1,2,3\n", "4,55,2\n")
    assert other.digest != reader.digest


def test_a_column_of_another_type_is_refused(tmp_path: Path) -> None:
    reader = joined(tmp_path, "1,2,3\n", "4,5,2\n")
    schema = Schema(dense=(Dense(name="price", dtype="float32"),))
    with pytest.raises(SchemaError, match="column 'price': ads was read as int64, the schema declares float"):
        JoinedFiles(tmp_path / "clicks.csv", schema, CLICKS, joins=reader._joins)


@pytest.mark.parametrize(
    ("schema", "error", "message"),
    [
        (Schema(sparse=(Sparse(name="ad", encoding="uint64"),)), ValueError, r"ads\.csv: row 2: has no ad, by which"),
        (Schema(dense=(Dense(name="ad", dtype="float32"),)), SchemaError, "'ad': the key or time of a side table"),
        (Schema(labels=(Label(name="ad"),)), SchemaError, "'ad': the key or time of a side table"),
        (Schema(sparse=(Sparse(name="shop"),)), SchemaError, "a side table has no column 'ad', its key"),
        (Schema(sparse=(Sparse(name="ad", multi_hot=True),)), SchemaError, "is one id a row"),
    ],
)
def test_keys_of_side_tables(tmp_path: Path, schema: Schema, error: type[Exception], message: str) -> None:
    """A row without a key was found as that of key 0, and 1.5 as 1."""
    text_format = TextFormat(name="ads", header=True, fields=LISTS if any(s.multi_hot for s in schema.sparse) else ())
    (tmp_path / "ads.csv").write_text("shop,ad\n4,7\n5,\n" if error is ValueError else "shop,ad\n4,1\n")
    with pytest.raises(error, match=message):
        SideTable(DelimitedFiles(tmp_path / "ads.csv", schema, text_format), "ad")


@pytest.mark.parametrize(
    "column", [Dense(name="ad", dtype="float32"), Sparse(name="ad", encoding="uint64", multi_hot=True)]
)
def test_keys_of_rows_are_ids(tmp_path: Path, column: Dense | Sparse) -> None:
    joins = joined(tmp_path, "1,2,3\n", "4,5,2\n")._joins
    own = Schema(dense=(column,)) if isinstance(column, Dense) else Schema(sparse=(column,))
    schema = Schema(dense=own.dense, sparse=(*own.sparse, Sparse(name="shop", encoding="uint64")))
    with pytest.raises(SchemaError, match="column 'ad': the key or time of the join 'ads'"):
        JoinedFiles(tmp_path / "clicks.csv", schema, CLICKS, joins=joins)


def test_a_key_may_be_an_integer_of_its_own(tmp_path: Path) -> None:
    joins = joined(tmp_path, "1,2,3\n", "4,5,2\n")._joins
    schema = Schema(dense=(Dense(name="ad"),), sparse=(Sparse(name="shop", encoding="uint64"),))
    reader = JoinedFiles(tmp_path / "clicks.csv", schema, CLICKS, joins=joins)
    assert [block.data.to_pylist() for block in read_all(reader)] == [[{"ad": 2, "shop": 4}]]


def test_joins_of_one_name_would_be_counted_as_one(tmp_path: Path) -> None:
    joins = joined(tmp_path, "1,2,3\n", "4,5,2\n")._joins * 2
    with pytest.raises(SchemaError, match="two joins have the name 'ads'"):
        JoinedFiles(tmp_path / "clicks.csv", SCHEMA, CLICKS, joins=joins)
