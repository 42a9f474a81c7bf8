"""Ali-CCP's published files, written byte for byte from real rows, against a join in plain Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.formats.ali_ccp_raw import COMMON, KEY, REPEATED, FeatureListFiles, ali_ccp_raw_schema
from headrace.formats.errors import BadRecordError
from headrace.formats.schema import Label, Schema, SchemaError, Sparse
from tests.support.criteo_text import read_all

SAMPLE_FIELDS = ("205", "206", "207", "210", "216", "301", "508", "509", "702", "853")
Features = list[tuple[str, int]]


def listed(features: Features) -> str:
    return "\x01".join(f"{field}\x02{feature}\x031.0" for field, feature in features)


def table_of(reader: Any) -> list[dict[str, Any]]:
    blocks = [block.data for block in read_all(reader)]
    return pa.Table.from_batches(blocks, reader.schema.arrow_schema(labels=bool(reader.schema.labels))).to_pylist()


def real_rows(shared_data: Path) -> list[tuple[str, str, str, Features]]:
    """(sample id, click, buy, features) of ten real samples."""
    rows = []
    for line in (shared_data / "ali_ccp" / "paddlerec_esmm_small.txt").read_text().splitlines():
        sample, click, buy, *features = line.split(",")
        pairs = [feature.split(":") for feature in features if feature]
        rows.append((sample, click, buy, [(field, int(feature)) for field, feature in pairs]))
    return rows


def write_published(folder: Path, rows: list[tuple[str, str, str, Features]], keys: list[str]) -> Path:
    samples, common = [], {}
    for (sample, click, buy, features), key in zip(rows, keys, strict=True):
        own = [f for f in features if f[0] in SAMPLE_FIELDS]
        shared = [f for f in features if f[0] not in SAMPLE_FIELDS]
        samples.append(f"{sample},{click},{buy},{key},{len(own)},{listed(own)}")
        common[key] = f"{key},{len(shared)},{listed(shared)}"
    path = folder / "sample_skeleton_train.csv"
    path.write_text("\n".join(samples) + "\n")
    (folder / "common_features_train.csv").write_text("\n".join(reversed(common.values())) + "\n")
    return path


def expected(features: Features) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for feature in ali_ccp_raw_schema().sparse:
        ids = [i for field, i in features if field == feature.name]
        row[feature.name] = (ids or None) if feature.multi_hot else (ids[0] if ids else None)
    return row


def test_real_rows_with_all_ids_of_repeated_fields(shared_data: Path, tmp_path: Path) -> None:
    rows = real_rows(shared_data)
    keys = [f"{0xBACFF91692951881 + 7 * i:016x}" for i in range(len(rows))]
    reader = headrace.open_dataset("ali-ccp-raw", write_published(tmp_path, rows, keys), block_bytes=300)
    found = table_of(reader)
    assert found == [{"click": float(c), "buy": float(b), **expected(f)} for _, c, b, f in rows]
    assert found[0]["210"] == [1, 2, 3]  # torch-rechub#116: not only the last one
    assert (found[0]["216"], found[0]["101"]) == (4, 12)
    assert found[0]["150_14"][:3] == [18, 19, 20]
    assert sum(len(found[0][name] or ()) for name in REPEATED) > 700
    assert reader.rows_unmatched == {"common_features": 0}


LITERAL = (
    "1,0,0,bacff91692951881,3,301\x029351665\x031.0\x01210\x027\x030.5\x01210\x025\x032.4\n"
    "2,1,1,ffffffffffffffff,1,205\x0218446744073709551615\x031\n"
    "3,1,0,0,0,\n"
)
LITERAL_COMMON = "0,2,101\x021\x031.0\x01210\x029\x031.0\nbacff91692951881,2,210\x021\x031e-3\x01999\x028\x031\n"


def write_literal(folder: Path, samples: str = LITERAL, common: str = LITERAL_COMMON) -> Path:
    (folder / "sample_skeleton_test.csv").write_text(samples)
    (folder / "common_features_test.csv").write_text(common)
    return folder / "sample_skeleton_test.csv"


def test_literal_values(tmp_path: Path) -> None:
    reader = headrace.open_dataset("ali-ccp-raw", write_literal(tmp_path))
    rows = table_of(reader)
    assert [(r["click"], r["buy"], r["301"], r["205"], r["101"], r["210"]) for r in rows] == [
        (0.0, 0.0, 9351665, None, None, [7, 5, 1]),  # the sample's own ids, then the common ones
        (1.0, 1.0, None, 2**64 - 1, None, None),
        (1.0, 0.0, None, None, 1, [9]),
    ]
    assert reader.rows_unmatched == {"common_features": 1}
    no_labels = headrace.open_dataset("ali-ccp-raw", write_literal(tmp_path), labels=False)
    assert [r["210"] for r in table_of(no_labels)] == [[7, 5, 1], None, [9]]


def test_it_trains(shared_data: Path, tmp_path: Path) -> None:
    rows = real_rows(shared_data)
    path = write_published(tmp_path, rows, [f"{i:016x}" for i in range(len(rows))])
    reader = headrace.open_dataset("ali-ccp-raw", path, dim=4)
    with headrace.DataLoader(reader, 4, schema=reader.schema, num_workers=2, verify_plan=True, timeout=120) as loader:
        batches = list(loader)
    assert [b.num_rows for b in batches] == [4, 4, 2]
    (group,) = batches[0].groups
    assert group.unique_ids.numpy().view("u8").max() == 916  # the largest id of the first four samples


@pytest.mark.parametrize(
    ("line", "column", "reason"),
    [
        ("1,0,0,bacff91692951881,1,301\x029\x03", "feature_list", "not a field"),
        ("1,0,0,bacff91692951881,1,301\x029", "feature_list", "not a field"),
        ("1,0,0,bacff91692951881,1,301\x03" + "9\x021", "feature_list", "not a field"),
        ("1,0,0,bacff91692951881,1,\x029\x031", "feature_list", "not a field"),
        ("1,0,0,bacff91692951881,1,301\x029\x031\x02", "feature_list", "not a field"),
        ("1,0,0,bacff91692951881,1,301\x029\x03x", "feature_list", "not a field"),
        ("1,0,0,bacff91692951881,2,301\x029\x031\x01", "feature_list", "not a field"),
        ("1,0,0,bacff91692951881,1,301\x02\x031", "feature_list", "not a decimal integer"),
        ("1,0,0,bacff91692951881,1,301\x02-9\x031", "feature_list", "not a decimal integer"),
        ("1,0,0,bacff91692951881,1,301\x0218446744073709551616\x031", "feature_list", "does not fit"),
        ("1,0,0,bacff91692951881,2,301\x029\x031", "feature_num", "another number of features"),
        ("1,0,0,bacff91692951881,1,", "feature_num", "another number of features"),
        ("1,0,0,bacff91692951881,x,", "feature_num", "not a decimal integer"),
        ("1,0,0,xacff91692951881,0,", KEY, "not 1 to 16 hexadecimal digits"),
        ("1,0,0,,0,", KEY, "not 1 to 16 hexadecimal digits"),
        ("1,2,0,bacff91692951881,0,", "click", "a label is 0 or 1"),
        ("1,0,1,bacff91692951881,0,", "buy", "bought without a click"),
        ("1,0,0,bacff91692951881,2,301\x029\x031\x01301\x028\x031", "feature_list", "several ids"),
        ("1,0,0,bacff91692951881,0", "", "5 columns where the format has 6"),
        ("", "", "blank line"),
    ],
)
def test_bad_lines_are_named_and_skipped(tmp_path: Path, line: str, column: str, reason: str) -> None:
    path = write_literal(tmp_path, LITERAL + line + "\n" + LITERAL)
    with pytest.raises(BadRecordError, match=reason) as caught:
        table_of(headrace.open_dataset("ali-ccp-raw", path))
    assert (caught.value.line, caught.value.column) == (4, column)
    reader = headrace.open_dataset("ali-ccp-raw", path, bad_records="skip")
    assert [r["301"] for r in table_of(reader)] == [9351665, None, None] * 2
    assert (reader.rows_in, reader.rows_skipped) == (7, 1)


def test_each_file_has_a_quarantine_that_can_be_repaired_and_read(tmp_path: Path) -> None:
    bad_sample, bad_common = "1,2,0,bacff91692951881,0,", "00000000000000ff,x,"
    path = write_literal(tmp_path, LITERAL + bad_sample + "\n", LITERAL_COMMON + bad_common + "\n")
    policy = headrace.BadRecords(mode="quarantine", quarantine_path=tmp_path / "bad.csv")
    reader = headrace.open_dataset("ali-ccp-raw", path, bad_records=policy)
    assert len(table_of(reader)) == 3
    of_samples, of_common = tmp_path / "bad.csv", tmp_path / "bad.common_features.csv"
    assert (of_samples.read_text(), of_common.read_text()) == (bad_sample + "\n", bad_common + "\n")
    for file, of in ((path, of_samples), (tmp_path / "common_features_test.csv", of_common)):
        (entry,) = [json.loads(line) for line in Path(f"{of}.jsonl").read_text().splitlines()]
        assert entry["file"] == str(file)
    of_samples.write_text("1,1,0,00000000000000ff,0,\n")
    of_common.write_text("00000000000000ff,1,301\x024\x031.0\n")
    both = [tmp_path / "common_features_test.csv", of_common]
    repaired = headrace.open_dataset("ali-ccp-raw", of_samples, common=both, bad_records="skip")
    assert [(r["click"], r["301"]) for r in table_of(repaired)] == [(1.0, 4)]


def test_what_is_refused(tmp_path: Path) -> None:
    path = write_literal(tmp_path, common=LITERAL_COMMON + "0,0,\n")
    with pytest.raises(ValueError, match=r"common_features_test\.csv: two lines have common_feature_index 0{16}"):
        headrace.open_dataset("ali-ccp-raw", path)
    for bad in (Sparse(name="301"), Sparse(name="much_too_long", encoding="uint64")):
        with pytest.raises(SchemaError, match=f"sparse '{bad.name}'"):
            headrace.open_dataset("ali-ccp-raw", path, schema=Schema(sparse=(bad,)))
    path = write_literal(tmp_path)
    with pytest.raises(SchemaError, match="label 'buy': these files hold 0 or 1"):
        headrace.open_dataset("ali-ccp-raw", path, schema=Schema(labels=(Label(name="buy", binary=False),)))
    (tmp_path / "common_features_test.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"common_features_test\.csv, which the samples are joined with"):
        headrace.open_dataset("ali-ccp-raw", path)


FIELD = st.sampled_from(["1", "22", "109_14", "zzzzzzzz", "toolong99"])
LIST = st.lists(st.tuples(FIELD, st.integers(0, 2**64 - 1)), max_size=6)


@settings(deadline=None, max_examples=60)
@given(st.lists(LIST, min_size=1, max_size=8), st.integers(1, 200))
def test_any_list_reads_back(tmp_path_factory: pytest.TempPathFactory, rows: list[Features], block_bytes: int) -> None:
    path = tmp_path_factory.mktemp("f") / "common.csv"
    path.write_text("".join(f"{i:x},{len(row)},{listed(row)}\n" for i, row in enumerate(rows)))
    fields = tuple(Sparse(name=n, encoding="uint64", multi_hot=True) for n in ("zzzzzzzz", "22", "109_14", "1"))
    schema = Schema(sparse=(Sparse(name=KEY, encoding="hex64", missing="raise"), *fields))
    found = table_of(FeatureListFiles(path, schema, COMMON, block_bytes=block_bytes))
    assert found == [
        {KEY: i, **{f.name: [n for field, n in row if field == f.name] or None for f in fields}}
        for i, row in enumerate(rows)
    ]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.lists(st.sampled_from([b"1", b"09", b",", b"\x01", b"\x02", b"\x03", b"1\x022\x033", b"x", b"\r"]))))
def test_any_bytes_are_rows_or_counted(tmp_path_factory: pytest.TempPathFactory, lines: list[list[bytes]]) -> None:
    path = tmp_path_factory.mktemp("f") / "common.csv"
    path.write_bytes(b"".join(b"".join(line) + b"\n" for line in lines) or b"\n")
    schema = Schema(
        sparse=(
            Sparse(name=KEY, encoding="hex64", missing="raise"),
            Sparse(name="1", encoding="uint64", multi_hot=True),
            Sparse(name="09", encoding="uint64"),
        )
    )
    reader = FeatureListFiles(path, schema, COMMON, bad_records="skip", block_bytes=16)
    rows = table_of(reader)
    assert reader.rows_in == len(rows) + reader.rows_skipped
    assert [r[KEY] for r in rows] == [m[0] for m in map(model, lines_of(path)) if m is not None]
    assert [(r["1"], r["09"]) for r in rows] == [m[1:] for m in map(model, lines_of(path)) if m is not None]


def lines_of(path: Path) -> list[bytes]:
    """Lines as they count: blank ones at the end do not."""
    lines = path.read_bytes().split(b"\n")
    while lines and lines[-1].removesuffix(b"\r") == b"":
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


def model(line: bytes) -> tuple[int, list[int] | None, int | None] | None:
    """A line read strictly in plain Python; None when it is refused."""
    parts = line.split(b",")
    if len(parts) != 3 or not 1 <= len(parts[0]) <= 16 or not is_all(parts[0], b"0123456789abcdefABCDEF"):
        return None
    features = parts[2].split(b"\x01") if parts[2] else []
    if not parts[1] or not is_all(parts[1], b"0123456789") or int(parts[1]) != len(features):
        return None
    found: dict[bytes, list[int]] = {b"1": [], b"09": []}
    for feature in features:
        head, _, value = feature.partition(b"\x03")
        field, _, number = head.partition(b"\x02")
        shape = feature.count(b"\x02"), feature.count(b"\x03"), head.count(b"\x02")
        if shape != (1, 1, 1) or not field or not value or not is_all(value, b"0123456789.+-eE"):
            return None
        if not number or not is_all(number, b"0123456789") or int(number) >= 2**64:
            return None
        if field in found:
            found[field].append(int(number))
    if len(found[b"09"]) > 1:
        return None
    return int(parts[0], 16), found[b"1"] or None, found[b"09"][0] if found[b"09"] else None


def is_all(text: bytes, of: bytes) -> bool:
    return all(byte in of for byte in text)


def test_one_feature_lists_are_typed(tmp_path: Path) -> None:
    check: Callable[[str], Any] = lambda text: table_of(  # noqa: E731
        headrace.open_dataset("ali-ccp-raw", write_literal(tmp_path, text, LITERAL_COMMON))
    )
    assert check("9,0,0,0,0,\n")[0]["210"] == [9]
    assert check("") == []
