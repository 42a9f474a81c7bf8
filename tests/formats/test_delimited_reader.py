"""The small public datasets from their raw files, and what the reader of delimited text promises."""

from __future__ import annotations

import gzip
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.formats.ali_ccp import ALI_CCP, ali_ccp_schema
from headrace.formats.avazu import AVAZU, avazu_schema
from headrace.formats.bad_records import BadRecords
from headrace.formats.criteo import CRITEO_CSV, criteo_schema
from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.delimited_format import TextFormat
from headrace.formats.delimited_reader import DelimitedFiles
from headrace.formats.errors import BadRecordError, ColumnMismatchError, CorruptShardError, ManifestError
from headrace.formats.generate.generate import generate
from headrace.formats.manifest import Manifest, describe_file, write_manifest
from headrace.formats.reader import FilePosition
from headrace.formats.schema import Dense, Schema, Sparse
from headrace.formats.taobao import TAOBAO_USER_BEHAVIOR, taobao_schema
from headrace.formats.taobao_ad import TAOBAO_AD, taobao_ad_schema
from tests.support.criteo_text import read_all, rows_of, write

PAIRS = Schema(sparse=(Sparse(name="a", encoding="uint64"), Sparse(name="b")))
PAIR_FILES = TextFormat(name="pairs", header=True)


def pairs(path: Path, data: bytes, **options: Any) -> DelimitedFiles:
    return DelimitedFiles(write(path, data), PAIRS, PAIR_FILES, **options)


def test_taobao_sample(shared_data: Path) -> None:
    path = shared_data / "taobao_userbehavior" / "fattydelivery_UserBehavior.csv"
    schema = Schema(
        labels=taobao_schema().labels,
        dense=(Dense(name="timestamp"),),
        sparse=(*taobao_schema(context=True).sparse, Sparse(name="behavior", encoding="uint64")),
    )
    reader = DelimitedFiles(path, schema, TAOBAO_USER_BEHAVIOR)
    rows = rows_of(read_all(reader))
    # 1,2268318,2520377,pv,1511544070: Saturday 25 November 2017, 01:21 in China
    assert rows[0] == (0, 0, 0.0, 1511544070, 1, 2268318, 2520377, 1, 5, 0)
    assert len(rows) == 4321
    assert [r[3] for r in rows if not 1511539200 <= r[3] < 1512316800] == [1505117799]  # legal, though outside
    texts = [line.split(",") for line in path.read_text().splitlines()]
    assert [(r[4], r[5], r[6], r[3]) for r in rows] == [(int(t[0]), int(t[1]), int(t[2]), int(t[4])) for t in texts]
    assert [r[9] for r in rows] == [["pv", "buy", "cart", "fav"].index(t[3]) for t in texts]
    assert [r[2] for r in rows] == [float(t[3] != "pv") for t in texts]


def test_generated_taobao_files(tmp_path: Path) -> None:
    generate("taobao-userbehavior", tmp_path / "g", rows=500, files=2, compression="gzip", seed=3)
    reader = DelimitedFiles(tmp_path / "g", taobao_schema(), TAOBAO_USER_BEHAVIOR)
    assert (reader.num_rows, len(rows_of(read_all(reader)))) == (500, 500)


def test_avazu_sample(shared_data: Path) -> None:
    path = shared_data / "avazu" / "wideresdnn_train.csv"
    names = ("id", "site_id", "hour_of_day", "weekday", "is_weekend", "C20", "C14")
    encoding = {"site_id": "hex32"}
    sparse = tuple(Sparse(name=n, encoding=encoding.get(n, "uint64")) for n in names)  # type: ignore[arg-type]
    schema = Schema(labels=avazu_schema().labels, sparse=sparse)
    rows = rows_of(read_all(DelimitedFiles(path, schema, AVAZU)))
    # 10000169349117863715,0,14102100,1005,0,1fbe01fe,...: a Tuesday
    assert rows[0] == (0, 1, 0.0, 10000169349117863715, 0x1FBE01FE, 0, 1, 0, 100084, 15704)
    ids = [r[3] for r in rows]
    assert len(ids) == 8087
    assert ids == [int(line.split(",")[0]) for line in path.read_text().splitlines()[1:]]
    assert sum(i >= 2**63 for i in ids) / len(ids) == pytest.approx(0.91, abs=0.01)  # pandas#11440
    assert sum(r[8] is None for r in rows) == sum(line.split(",")[22] == "-1" for line in path.open())


def test_avazu_with_crlf(shared_data: Path) -> None:
    reader = DelimitedFiles(shared_data / "avazu" / "ycjuan_tr.rx.csv", avazu_schema(), AVAZU)
    rows = rows_of(read_all(reader))
    assert (len(rows), rows[0][-1], rows[0][-2]) == (2994, 79, None)  # the last field is 79, not "79\r"


def test_avazu_test_file_has_no_click(tmp_path: Path, shared_data: Path) -> None:
    # RecBole#776, 43: the missing column is named
    lines = (shared_data / "avazu" / "wideresdnn_train.csv").read_text().splitlines()[:3]
    text = "".join(",".join(v for i, v in enumerate(line.split(",")) if i != 1) + "\n" for line in lines)
    path = write(tmp_path / "test.csv", text.encode())
    named = r"column 'click': is needed for 'click', but the header \(line 1\).* with labels=False, --no-labels"
    with pytest.raises(ColumnMismatchError, match=named):
        read_all(DelimitedFiles(path, avazu_schema(), AVAZU))
    rows = rows_of(read_all(DelimitedFiles(path, avazu_schema(labels=False), AVAZU)))
    assert rows[0][:7] == (0, 1, 0, 1, 0, 1005, 0)


def test_taobao_ad_sample(shared_data: Path) -> None:
    # 0,2017-05-06 00:00:00,874257,172298,430548_1007,5443,160194,864,339907,3.9,0,3,2,3,,3,0,,170301^573514
    reader = DelimitedFiles(shared_data / "taobao_display_ad" / "fuxictr_tiny_train.csv", taobao_ad_schema(), TAOBAO_AD)
    rows = rows_of(read_all(reader))
    price = pytest.approx(3.9, rel=1e-7)
    ids = (874257, 172298, 0, 5443, 160194, 864, 339907, 0, 3, 2, 3, None, 3, 0, None)
    assert rows[0] == (0, 1, 0.0, price, *ids, [170301, 573514])
    assert len(rows) == 100
    test = DelimitedFiles(shared_data / "taobao_display_ad" / "fuxictr_tiny_test.csv", taobao_ad_schema(), TAOBAO_AD)
    assert rows_of(read_all(test))[0][-1] is None  # no history


def test_ali_ccp_sample(shared_data: Path) -> None:
    # 0,0,1,1,1,1,1,0,1,1,1,0,1,1,1,0,1,0,0,0,1,1,1,1,1,0.4734,0.562,0.0856,0.1902,0.07556,0.0,0.0,0.0
    path = shared_data / "ali_ccp" / "torchrechub_ali_ccp_train.csv"
    rows = rows_of(read_all(DelimitedFiles(path, ali_ccp_schema(), ALI_CCP)))
    dense = (0.4734, 0.562, 0.0856, 0.1902, 0.07556, 0.0, 0.0, 0.0)
    ids = (1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1)
    assert rows[0] == (0, 1, 0.0, 0.0, *(pytest.approx(v, rel=1e-7) for v in dense), *ids)
    assert len(rows) == 100  # the last line has no line feed


def test_criteo_csv_with_floats(shared_data: Path) -> None:
    # 0,,3,260.0,,17668.0,,,33.0,,,,0.0,,05db9164,...,c0d61a5c,,
    path = shared_data / "criteo_kaggle" / "deepctr_criteo_sample.txt"
    rows = rows_of(read_all(DelimitedFiles(path, criteo_schema(), CRITEO_CSV)))
    dense = (None, 3, 260, None, 17668, None, None, 33, None, None, None, 0, None)
    assert (len(rows), rows[0][:16]) == (200, (0, 1, 0.0, *dense))
    assert (rows[0][16], rows[0][-3:]) == (0x05DB9164, (0xC0D61A5C, None, None))  # the last field is empty


def test_criteo_csv_with_ids_and_crlf_has_the_rows_of_the_original(shared_data: Path) -> None:
    folder = shared_data / "criteo_kaggle"
    derived = rows_of(read_all(DelimitedFiles(folder / "ycjuan_train.tiny.csv", criteo_schema(), CRITEO_CSV)))
    parts = [folder / f"wideresdnn_{part}.tsv" for part in ("train", "dev", "test")]
    original = {row[2:] for row in rows_of(read_all(CriteoFiles(parts, criteo_schema())))}
    assert len(derived) == 1999
    assert all(row[2:] in original for row in derived)
    assert (derived[0][0], derived[0][1]) == (0, 1)  # line 2 of the file


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"", []),  # L77
        (b"a,b", []),
        (b"a,b\n", []),
        (b"\xef\xbb\xbfa,b\r\n1,f\r\n", [(0, 1, 1, 15)]),  # L73
        (b"b , x,a\n1,,2\n\n\n", [(0, 1, 2, 1)]),  # any order; blanks around names (Taobao's user_profile.csv)
        (b"a,b\n1,f", [(0, 1, 1, 15)]),
        (b"a,b\n,\n", [(0, 1, None, None)]),
    ],
)
def test_headers(tmp_path: Path, data: bytes, rows: list[Any]) -> None:
    for name in ("x", "x.gz"):
        reader = pairs(tmp_path / name, data)
        assert rows_of(read_all(reader)) == rows
        assert reader.rows_in == len(rows)


def test_each_file_has_its_own_header(tmp_path: Path) -> None:
    write(tmp_path / "f1.csv", b"a,b\n1,a\n")
    write(tmp_path / "f2.csv", b"b,c,a\nb,,2\n")
    assert rows_of(read_all(DelimitedFiles(tmp_path, PAIRS, PAIR_FILES))) == [(0, 1, 1, 10), (1, 1, 2, 11)]


def test_errors_say_where_and_what(tmp_path: Path) -> None:
    def error_of(data: bytes, **options: Any) -> BadRecordError:
        with pytest.raises(BadRecordError) as caught:
            read_all(pairs(tmp_path / "x.csv", data, **options))
        return caught.value

    error = error_of(b"a,b\n1,a\n2,xyz\n")
    assert (error.line, error.column, error.offending) == (3, "b", b"xyz")
    assert error.reason == "not 1 to 8 hexadecimal digits"
    error = error_of(b"a,b\n1,a,\n")
    assert (error.line, error.column) == (2, "")
    assert str(error).endswith("3 columns where the header has 2 (columns are separated by commas, and never quoted)")
    assert error_of(b'a,b\n"1",a\n').hint == "quotes have no meaning in this format"  # L71
    assert error_of(b"a,b\n1,a\n" + b"9" * 99 + b",b\n", max_line_bytes=50).reason.startswith("row exceeds 50 bytes")


def test_the_wrong_separator_is_told_from_the_header(tmp_path: Path) -> None:
    # RecLearn#59
    with pytest.raises(ColumnMismatchError, match=r"expected to be separated by ','"):
        read_all(pairs(tmp_path / "x.csv", b"a\tb\n1\ta\n"))


def test_a_headerless_file_is_not_taken_for_one_with_a_header(tmp_path: Path) -> None:
    with pytest.raises(ColumnMismatchError, match=r"column 'a': is needed for 'a', but the header \(line 1\) has 1, f"):
        read_all(pairs(tmp_path / "x.csv", b"1,f\n2,b\n"))


def test_a_file_of_other_columns_is_never_skipped(tmp_path: Path) -> None:
    reader = pairs(tmp_path / "x.csv", b"a,b\n" + b"1,2,3\n" * 100, bad_records="skip", block_bytes=64)
    with pytest.raises(BadRecordError, match=r"line 101: .*not a file of this schema"):
        read_all(reader)
    reader = pairs(tmp_path / "x.csv", b"a,b\n" + b"1,2,3\n" * 99 + b"1,2\n", bad_records="skip")
    assert (len(rows_of(read_all(reader))), reader.rows_skipped) == (1, 99)


def test_quarantine_stores_the_lines(tmp_path: Path) -> None:
    policy = BadRecords(mode="quarantine", quarantine_path=tmp_path / "bad")
    reader = pairs(tmp_path / "x.csv", b"a,b\nx,1\n1,1\n2,y\n", bad_records=policy)
    assert rows_of(read_all(reader)) == [(0, 2, 1, 1)]
    assert (tmp_path / "bad").read_bytes() == b"a,b\nx,1\n2,y\n"
    text = (tmp_path / "bad").read_bytes().replace(b"x", b"7")  # repaired: it is read as the file was
    assert rows_of(read_all(pairs(tmp_path / "again", text, bad_records="skip"))) == [(0, 1, 7, 1)]


def test_quarantine_holds_lines_of_one_header(tmp_path: Path) -> None:
    policy = BadRecords(mode="quarantine", quarantine_path=tmp_path / "bad")
    for name in ("x.csv", "y.csv"):
        read_all(pairs(tmp_path / name, b"a,b\nx,1\n1,1\n", bad_records=policy))
    assert (tmp_path / "bad").read_bytes() == b"a,b\nx,1\nx,1\n"
    for _ in range(2):
        assert rows_of(read_all(pairs(tmp_path / "z.csv", b"b,a\r\n1,x\n1,1\n", bad_records=policy))) == [(0, 2, 1, 1)]
    assert (tmp_path / "bad").read_bytes() == b"a,b\nx,1\nx,1\n"
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 2
    (beside,) = tmp_path.glob("bad.????????")
    assert beside.read_bytes() == b"b,a\n1,x\n1,x\n"
    assert [Path(f).name for f in DelimitedFiles(tmp_path, PAIRS, PAIR_FILES).files] == ["x.csv", "y.csv", "z.csv"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(
        st.lists(st.sampled_from([b"1,a\n", b"22,\n", b",b\r\n", b"\n", b"bad\n", b"5,x\n", b"7" * 60 + b"\n"])),
        min_size=1,
        max_size=3,
    ),
    block_bytes=st.integers(1, 60),
    suffix=st.sampled_from(["", ".gz"]),
)
def test_any_block_size_and_any_resume_give_the_same_rows(
    tmp_path: Path, files: list[list[bytes]], block_bytes: int, suffix: str
) -> None:
    paths = [write(tmp_path / f"f{i}{suffix}", b"a,b\n" + b"".join(lines)) for i, lines in enumerate(files)]
    options: dict[str, Any] = {"bad_records": "skip", "max_line_bytes": 50}
    whole = DelimitedFiles(paths, PAIRS, PAIR_FILES, **options)
    expected = rows_of(read_all(whole))
    reader = DelimitedFiles(paths, PAIRS, PAIR_FILES, block_bytes=block_bytes, **options)
    decoded = [reader.decode(block) for block in reader.raw_blocks()]
    done = [rows_of([reader.settle(d)]) for d in decoded]
    assert list(chain(*done)) == expected
    assert (reader.rows_in, reader.rows_skipped, reader.bytes_in) == (whole.rows_in, whole.rows_skipped, whole.bytes_in)
    for k, d in enumerate(decoded):
        position = FilePosition.from_dict(d.next_position.to_dict())
        rest = read_all(DelimitedFiles(paths, PAIRS, PAIR_FILES, **options), start=position)
        assert rows_of(rest) == list(chain(*done[k + 1 :]))


def test_manifest_counts_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", b"a,b\n1,a\n2,b\n")
    write_manifest(tmp_path, Manifest(files={"x.csv": describe_file(path, rows=3)}))
    reader = DelimitedFiles(tmp_path, PAIRS, PAIR_FILES)
    assert (reader.num_rows, len(rows_of(read_all(reader)))) == (2, 2)
    write_manifest(tmp_path, Manifest(files={"x.csv": describe_file(path, rows=4)}))
    with pytest.raises(ManifestError, match="3 rows, the manifest says 4"):
        read_all(DelimitedFiles(tmp_path, PAIRS, PAIR_FILES))


def test_damage_in_the_header(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"a,b\n1,a\n")[:12])
    with pytest.raises(CorruptShardError):
        read_all(DelimitedFiles(path, PAIRS, PAIR_FILES))
    with pytest.raises(CorruptShardError, match="no header: the first line has 200 bytes"):
        read_all(pairs(tmp_path / "y", b"a" * 200 + b"\n1\n", max_line_bytes=100, block_bytes=100))
