"""The published files of Taobao Display Ad, joined as they are read, against a join in plain Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import headrace
from headrace.cli import main
from headrace.formats.errors import BadRecordError, ManifestError
from headrace.formats.histories import LOGS
from headrace.formats.history_build import build_history
from headrace.formats.reader import FilePosition
from headrace.formats.taobao_ad import PROFILE
from headrace.formats.taobao_ad_raw import AD_COLUMNS, taobao_ad_raw_schema
from tests.support.criteo_text import read_all
from tests.support.taobao_ad_files import real_samples, seconds_of, write_files

PIDS = {"430548_1007": 0, "430539_1007": 1}


def table_of(reader: Any) -> list[dict[str, Any]]:
    return pa.Table.from_batches([block.data for block in read_all(reader)]).to_pylist()


def joined(row: dict[str, str], *, profile: bool = True) -> dict[str, Any]:
    def number(name: str) -> int | None:
        return int(row[name].removesuffix(".0")) if row[name] else None

    return {
        "clk": float(row["clk"]),
        "price": pytest.approx(float(row["price"])),
        "userid": int(row["userid"]),
        "adgroup_id": int(row["adgroup_id"]),
        "pid": PIDS[row["pid"]],
        **{name: number(name) for name in AD_COLUMNS},
        **{name: number(name) if profile else None for name in PROFILE},
    }


def test_real_rows_come_back_together(shared_data: Path, tmp_path: Path) -> None:
    rows = real_samples(shared_data)
    assert len(rows) > 190
    without = {rows[0]["userid"], rows[7]["userid"]}
    write_files(tmp_path, rows, without_profile=without)
    reader = headrace.open_dataset("taobao-ad-raw", tmp_path / "raw_sample.csv", block_bytes=512)
    assert table_of(reader) == [joined(r, profile=r["userid"] not in without) for r in rows]
    left = sum(r["userid"] in without for r in rows)
    assert reader.rows_unmatched == {"ad_feature": 0, "user_profile": left}  # BARS#24: counted, not dropped
    assert (reader.rows_in, reader.rows_skipped) == (len(rows), 0)
    table_of(reader)
    assert reader.rows_unmatched["user_profile"] == left  # of each pass


def test_each_file_has_a_quarantine_of_its_own(shared_data: Path, tmp_path: Path) -> None:
    write_files(tmp_path, real_samples(shared_data)[:5])
    names = ("raw_sample", "ad_feature", "user_profile")
    for name in names:
        with (tmp_path / f"{name}.csv").open("a") as file:
            file.write(f"{name} is bad\n")
    policy = headrace.BadRecords(mode="quarantine", quarantine_path=tmp_path / "bad.csv")
    assert len(table_of(headrace.open_dataset("taobao-ad-raw", tmp_path / "raw_sample.csv", bad_records=policy))) == 5
    for name, quarantine in zip(names, ("bad.csv", "bad.ad_feature.csv", "bad.user_profile.csv"), strict=True):
        header = (tmp_path / f"{name}.csv").read_text().splitlines()[0]
        assert (tmp_path / quarantine).read_text() == f"{header}\n{name} is bad\n"


LITERAL = {
    "raw_sample.csv": "user,time_stamp,adgroup_id,pid,nonclk,clk\n"
    "581738,1494137644,1,430548_1007,1,0\n449818,1494638778,3,430548_1007,0,1\n914836,1494650879,4,430539_1007,1,0\n",
    "ad_feature.csv": "adgroup_id,cate_id,campaign_id,customer,brand,price\n"
    "3,6406,83237,1,95471,170.0\n1,5443,9,2,NULL,3.9\n",
    "user_profile.csv": "userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,shopping_level,"
    "occupation,new_user_class_level \n449818,0,5,2,5,,3,0,3\n581738,11,1,2,1,2,3,0,\n",
    "behavior_log.csv": "user,time_stamp,btag,cate,brand\n449818,1494638777,pv,6406,95471\n"
    "581738,1494137644,buy,5443,7\n449818,1494638700,cart,12,NULL\n449818,1494638779,fav,9,9\n",
}


def write_literal(folder: Path) -> Path:
    for name, text in LITERAL.items():
        (folder / name).write_text(text)
    return folder / "raw_sample.csv"


def with_histories(folder: Path) -> Path:
    path = write_literal(folder)
    log = LOGS["taobao-behavior-log"]
    build_history(
        log.open(folder / "behavior_log.csv"), folder / "behavior_log", key=log.key, time_column=log.time, run_rows=2
    )
    return path


def test_literal_values_with_histories(tmp_path: Path) -> None:
    reader = headrace.open_dataset("taobao-ad-history", with_histories(tmp_path))
    rows = table_of(reader)
    assert [(r["clk"], r["cate_id"], r["brand"], r["price"]) for r in rows] == [
        (0.0, 5443, None, pytest.approx(3.9)),
        (1.0, 6406, 95471, 170.0),
        (0.0, None, None, None),
    ]
    assert [(r["cms_segid"], r["pvalue_level"], r["new_user_class_level"]) for r in rows] == [
        (11, 2, None), (0, None, 3), (None, None, None),
    ]  # fmt: skip
    # What a user did at the very second of the sample, or later, is not told. Oldest first; 1 is cart, 0 pv.
    assert [(r["history_btag"], r["history_cate"], r["history_brand"]) for r in rows] == [
        ([], [], []), ([1, 0], [12, 6406], [None, 95471]), ([], [], []),
    ]  # fmt: skip
    assert reader.rows_unmatched == {"ad_feature": 1, "user_profile": 1, "behavior_log": 2}


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_resume_reads_the_rest(tmp_path: Path, row: int) -> None:
    reader = headrace.open_dataset("taobao-ad-history", with_histories(tmp_path), block_bytes=16)
    whole = table_of(reader)
    blocks = [reader.decode(block) for block in reader.raw_blocks()]
    position = blocks[row].position if row else FilePosition(0, 0, 0)
    rest = [reader.settle(reader.decode(block)).data for block in reader.raw_blocks(position)]
    assert pa.Table.from_batches(rest).to_pylist() == whole[row:]


def test_they_train(tmp_path: Path) -> None:
    reader = headrace.open_dataset("taobao-ad-history", with_histories(tmp_path), dim=8)
    stage = headrace.EmbeddingStage(reader.schema, lr=0.1)
    with headrace.DataLoader(reader, 2, schema=reader.schema, num_workers=2, verify_plan=True, timeout=60) as loader:
        batches = list(loader)
        assert [b.num_rows for b in batches] == [2, 1]
        assert stage(batches[0]).shape == (2, 8 * len(reader.schema.sparse))


def test_from_the_command_line(tmp_path: Path) -> None:
    path = write_literal(tmp_path)
    log, out = str(tmp_path / "behavior_log.csv"), str(tmp_path / "behavior_log")
    run = CliRunner().invoke
    assert "--history is for" in run(main, ["convert", log, "--dataset", "avazu", "--history", "--out", out]).output
    made = run(main, ["convert", log, "--dataset", "taobao-behavior-log", "--history", "--out", out])
    assert made.exit_code == 0, made.output
    assert "rows_out      4" in made.output
    replayed = run(main, ["replay", str(path), "--dataset", "taobao-ad-history", "--batch-size", "2"])
    assert replayed.exit_code == 0, replayed.output
    assert re.search(r"rows_unmatched\.behavior_log +2\n", replayed.output)
    assert re.search(r"side_rows_skipped\.ad_feature +0\n", replayed.output)
    converted = run(main, ["convert", str(path), "--dataset", "taobao-ad-history", "--out", str(tmp_path / "parquet")])
    assert converted.exit_code == 0, converted.output
    schema = taobao_ad_raw_schema(history=True)
    back = headrace.ArrowFiles(tmp_path / "parquet", schema)
    assert table_of(back) == table_of(headrace.open_dataset("taobao-ad-history", path))


def test_what_is_refused(tmp_path: Path) -> None:
    path = write_literal(tmp_path)
    with pytest.raises(ManifestError, match=r"is no sorted log; make one with headrace convert \S*") as caught:
        headrace.open_dataset("taobao-ad-history", path)
    command = f"{tmp_path}/behavior_log.csv --dataset taobao-behavior-log --history --out {tmp_path}/behavior_log"
    assert str(caught.value).endswith(f"make one with headrace convert {command}")
    with (tmp_path / "ad_feature.csv").open("a") as file:
        file.write("3,1,1,1,1,1\n")
    with pytest.raises(ValueError, match=r"ad_feature\.csv: row 1 and .*row 3: both have adgroup_id 3"):
        headrace.open_dataset("taobao-ad-raw", path)
    (tmp_path / "ad_feature.csv").write_text(LITERAL["ad_feature.csv"].replace("95471", "x"))
    with pytest.raises(BadRecordError, match=r"ad_feature\.csv.*line 2.*brand"):
        headrace.open_dataset("taobao-ad-raw", path)
    reader = headrace.open_dataset("taobao-ad-raw", path, bad_records="skip")
    assert [r["cate_id"] for r in table_of(reader)] == [5443, None, None]
    assert reader.side_rows_skipped == {"ad_feature": 1, "user_profile": 0}
    (tmp_path / "user_profile.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"no user_profile\.csv"):
        headrace.open_dataset("taobao-ad-raw", path)


def test_times_of_the_sample_are_those_of_china() -> None:
    assert seconds_of("2017-05-06 00:00:00") == 1494000000  # the first second of the samples' days


def test_misses_are_counted_whatever_reads_ahead_and_a_resume_goes_on(tmp_path: Path) -> None:
    path = with_histories(tmp_path)

    def loader() -> headrace.DataLoader:
        reader = headrace.open_dataset("taobao-ad-history", path, block_bytes=16)
        return headrace.DataLoader(reader, 1, schema=reader.schema, num_workers=2, window=1, timeout=60)

    def ids(batch: headrace.Batch) -> list[int]:
        (group,) = batch.groups
        return [*group.unique_ids[group.query_ids].tolist(), *group.lengths.tolist()]

    with loader() as whole:
        batches = [ids(batch) for batch in whole]
        assert whole._read is not None
        assert whole._read.reader.rows_unmatched == {"ad_feature": 1, "user_profile": 1, "behavior_log": 2}
    for done in (1, 2, 3):
        with loader() as first:
            iterator = iter(first)
            for _ in range(done):
                next(iterator)
            state = first.state_dict()
        with loader() as second:
            second.load_state_dict(state)
            rest = [ids(batch) for batch in second]
            assert rest == (batches[done:] or batches)  # behind the last batch the next epoch starts
