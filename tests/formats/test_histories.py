"""Behaviour logs sorted on disk, and the histories looked up in them, against plain Python."""

from __future__ import annotations

import contextlib
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats import history_build
from headrace.formats.delimited_format import TextFormat
from headrace.formats.errors import BadRecordError, ManifestError
from headrace.formats.histories import LOGS
from headrace.formats.history_build import build_history
from headrace.formats.history_runs import LogRows, merge_runs
from headrace.formats.history_store import HistoryStore
from headrace.formats.joined_reader import HistoryJoin, JoinedFiles
from headrace.formats.schema import Dense, Schema, SchemaError, Sparse
from tests.support.criteo_text import read_all
from tests.support.killed_removal import Killed, killed_at_removal

LOG = LOGS["taobao-behavior-log"]
HEADER = "user,time_stamp,btag,cate,brand\n"
WORDS = {"pv": 0, "cart": 1, "fav": 2, "buy": 3}
Row = tuple[int, int, str, int, int | None]


def log_text(rows: list[Row]) -> bytes:
    lines = [f"{u},{t},{b},{c},{'NULL' if br is None else br}\n" for u, t, b, c, br in rows]
    return (HEADER + "".join(lines)).encode()


def build(path: Path, out: Path, **options: Any) -> Any:
    block_bytes = options.pop("block_bytes", 64)
    reader = LOG.open(path, block_bytes=block_bytes, bad_records=options.pop("bad_records", "raise"))
    return build_history(reader, out, key=LOG.key, time_column=LOG.time, **options)


def contents(folder: Path) -> list[tuple[int, int, int, int, int | None]]:
    store = HistoryStore(folder, verify="full")
    rows = np.arange(store.num_rows)
    users = np.repeat(store._keys, np.diff(store._offsets)).tolist()
    columns = []
    for name in ("btag", "cate", "brand"):
        ids, missing = store.values(name, rows)
        gone = np.zeros(len(rows), bool) if missing is None else missing
        columns.append([None if m else i for i, m in zip(ids.tolist(), gone.tolist(), strict=True)])
    return list(zip(users, store.times(rows).tolist(), *columns, strict=True))


def expected(rows: list[Row]) -> list[tuple[int, int, int, int, int | None]]:
    return [(u, t, WORDS[b], c, br) for u, t, b, c, br in sorted(rows, key=lambda r: (r[0], r[1]))]  # stable


ROWS = st.tuples(
    st.integers(0, 3) | st.integers(0, 2**64 - 1),
    st.integers(-2, 3) | st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(list(WORDS)),
    st.integers(0, 2**33),
    st.none() | st.integers(0, 9),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(ROWS, max_size=40), st.integers(1, 12), st.integers(1, 3))
def test_a_log_is_sorted_stably_whatever_the_runs(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], run_rows: int, threads: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    (folder / "log.csv").write_bytes(log_text(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_build, "rows_at_a_time", lambda runs: 3)
        report = build(folder / "log.csv", folder / "out", run_rows=run_rows, threads=threads)
    assert (report.rows_in, report.rows_out, report.rows_skipped) == (len(rows), len(rows), 0)
    assert contents(folder / "out") == expected(rows)
    assert not (folder / "out" / ".runs").exists()


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=12), max_size=5), st.integers(1, 4))
def test_a_merge_takes_equal_rows_in_the_order_of_the_runs(runs: list[list[tuple[int, int]]], rows: int) -> None:
    number, opened, everything = 0, [], []
    for run in runs:
        numbered = [(*pair, number + i) for i, pair in enumerate(run)]
        number += len(run)
        everything += numbered
        u, t, n = (np.array([r[k] for r in numbered], d) for k, d in ((0, np.uint64), (1, np.int64), (2, np.uint64)))
        opened.append(LogRows(u, t, (n,), (np.zeros(len(n), bool),)).sorted())
    merged = list(merge_runs(opened, rows=rows))
    found = [r for b in merged for r in zip(*(a.tolist() for a in (b.keys, b.times, b.values[0])), strict=True)]
    assert found == sorted(everything)
    assert all(len(b) <= rows * len(runs) for b in merged)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(ROWS, max_size=40),
    st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 4)), max_size=20),
    st.integers(1, 5),
)
def test_histories_are_what_came_before(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], samples: list[tuple[int, int]], most: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    (folder / "log.csv").write_bytes(log_text(rows))
    build(folder / "log.csv", folder / "out", run_rows=7)
    store = HistoryStore(folder / "out")
    users, times = (np.array([s[k] for s in samples], d) for k, d in ((0, np.uint64), (1, np.int64)))
    found = store.before(users, times, most)
    ids, _ = store.values("cate", found.rows)
    ends = np.cumsum(found.lengths).tolist()
    assert [ids.tolist()[a:b] for a, b in pairwise([0, *ends])] == [
        [r[3] for r in expected(rows) if r[0] == user and r[1] < time][-most:] for user, time in samples
    ]


def literal_log(tmp_path: Path) -> Path:
    path = tmp_path / "behavior_log.csv"
    path.write_text(
        HEADER + "558157,1493741625,pv,6250,91286\n558157,1493741626,pv,6250,91286\n"
        "728690,1493776998,pv,11800,62353\n558157,1493741624,buy,6250,NULL\n728690,1493776998,cart,4520,7\n"
    )
    return path


def test_literal_rows(tmp_path: Path) -> None:
    report = build(literal_log(tmp_path), tmp_path / "out")
    assert report.rows_out == 5
    assert contents(tmp_path / "out") == [
        (558157, 1493741624, 3, 6250, None),
        (558157, 1493741625, 0, 6250, 91286),
        (558157, 1493741626, 0, 6250, 91286),
        (728690, 1493776998, 0, 11800, 62353),
        (728690, 1493776998, 1, 4520, 7),
    ]
    assert np.load(tmp_path / "out" / "value-brand.npy").dtype == np.uint32


def random_rows(number: int) -> list[Row]:
    draw = random.Random(5)
    return [
        (draw.randrange(20), draw.randrange(1000), draw.choice(list(WORDS)), draw.randrange(50), None)
        for _ in range(number)
    ]


@pytest.mark.parametrize("fails_at", ["run-0", "run-2.json", "value-cate.npy", "manifest.json"])
def test_a_run_that_was_killed_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str) -> None:
    rows = random_rows(300)
    (tmp_path / "log.csv").write_bytes(log_text(rows))
    read: list[int] = []

    class Killed(BaseException):
        pass

    def refuse(name: str, real: Any) -> Any:
        def call(target: Any, *arguments: Any, **options: Any) -> Any:
            if Path(target).name == name or (name == "manifest.json" and real.__name__ == "write_manifest"):
                raise Killed
            return real(target, *arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("write_run", "write_atomic", "_ArrayWriter", "write_manifest"):
            patch.setattr(history_build, name, refuse(fails_at, getattr(history_build, name)))
        with pytest.raises(Killed):
            build(tmp_path / "log.csv", tmp_path / "out", run_rows=50)
    with pytest.raises(ManifestError, match="is no sorted log"):
        HistoryStore(tmp_path / "out")
    real_rows = history_build._Log.rows
    monkeypatch.setattr(history_build._Log, "rows", lambda self, block: read.append(1) or real_rows(self, block))
    report = build(tmp_path / "log.csv", tmp_path / "out", run_rows=50)
    assert (report.rows_in, report.rows_out) == (300, 300)
    assert contents(tmp_path / "out") == expected(rows)
    assert bool(read) == (fails_at in ("run-0", "run-2.json"))  # the others had read everything
    again = build(tmp_path / "log.csv", tmp_path / "out", run_rows=50)
    assert again.rows_out == 300


def test_a_sorted_log_that_is_complete_is_kept(tmp_path: Path) -> None:
    path, out = literal_log(tmp_path), tmp_path / "out"
    first = build(path, out)
    whole = {file.name: file.read_bytes() for file in out.iterdir()}
    again = build(path, out)
    assert (first.files, first.files_kept, again.files, again.files_kept) == (
        len(whole) - 1,
        0,
        first.files,
        first.files,
    )
    (out / "keys.npy").unlink()
    with pytest.raises(ManifestError, match=r"out: keys\.npy is missing"):
        build(path, out)
    assert build(path, out, overwrite=True).files_kept == 0
    assert {file.name: file.read_bytes() for file in out.iterdir()} == whole


def test_an_overwrite_that_was_killed_takes_no_run_of_the_log_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, rows = random_rows(120), random_rows(60)[::-1]
    (tmp_path / "old.csv").write_bytes(log_text(old))
    (tmp_path / "log.csv").write_bytes(log_text(rows))
    out = tmp_path / "out"
    came = 0
    for number in range(60):
        with monkeypatch.context() as patch:  # all runs and arrays of the old log are there, and no manifest
            patch.setattr(history_build, "write_manifest", lambda *_: (_ for _ in ()).throw(Killed))
            with pytest.raises(Killed):
                build(tmp_path / "old.csv", out, run_rows=50, overwrite=True)
        run = lambda: build(tmp_path / "log.csv", out, run_rows=50, overwrite=True)  # noqa: E731
        if not killed_at_removal(monkeypatch, number, run):
            break
        came += 1
        with contextlib.suppress(FileExistsError):  # refused, or right
            build(tmp_path / "log.csv", out, run_rows=50)
            assert contents(out) == expected(rows)
        build(tmp_path / "log.csv", out, run_rows=50, overwrite=True)
        assert contents(out) == expected(rows)
    assert came > 20


def test_runs_without_parameters_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.csv").write_bytes(log_text(random_rows(120)))
    rows = random_rows(60)[::-1]
    (tmp_path / "log.csv").write_bytes(log_text(rows))
    with monkeypatch.context() as patch:
        patch.setattr(history_build, "_merge", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            build(tmp_path / "old.csv", tmp_path / "out", run_rows=50)
    (tmp_path / "out" / ".runs" / "parameters.json").unlink()
    build(tmp_path / "log.csv", tmp_path / "out", run_rows=50)
    assert contents(tmp_path / "out") == expected(rows)


@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
def test_a_complete_folder_that_is_damaged_is_not_called_done(tmp_path: Path, damage: str) -> None:
    path, out = literal_log(tmp_path), tmp_path / "out"
    build(path, out)
    data = (out / "times.npy").read_bytes()
    (out / "times.npy").unlink()
    if damage != "gone":
        (out / "times.npy").write_bytes(data[:-1] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ManifestError, match=r"times\.npy.*overwrite=True makes the folder anew"):
        build(path, out)
    assert build(path, out, overwrite=True).rows_out == 5
    assert len(contents(out)) == 5


def test_another_policy_is_another_log(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(HEADER + "1,,pv,3,4\n3,4,buy,1,2\n")
    assert build(path, tmp_path / "out", bad_records="skip").rows_skipped == 1
    with pytest.raises(FileExistsError, match="other bad_records"):
        build(path, tmp_path / "out")


def test_a_log_is_not_sorted_over_itself(tmp_path: Path) -> None:
    (tmp_path / "keys.npy").write_text(HEADER + "1,2,pv,3,4\n")
    with pytest.raises(FileExistsError, match="which is to be read"):
        build(tmp_path / "keys.npy", tmp_path, overwrite=True)


def test_what_is_refused(tmp_path: Path) -> None:
    path = literal_log(tmp_path)
    build(path, tmp_path / "out")
    path.write_text(HEADER + "1,2,pv,3,4\n")
    with pytest.raises(FileExistsError, match="holds the sorted log of other sources"):
        build(path, tmp_path / "out")
    assert build(path, tmp_path / "out", overwrite=True).rows_out == 1
    assert contents(tmp_path / "out") == [(1, 2, 0, 3, 4)]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with pytest.raises(FileExistsError, match=r"holds 'mine\.txt'"):
        build(path, tmp_path / "other", overwrite=True)
    path.write_text(HEADER + "1,,pv,3,4\n2,1,ipv,3,4\n3,4,buy,1,2\n")
    with pytest.raises(BadRecordError, match=r"log\.csv.*line 2.*time_stamp"):
        build(path, tmp_path / "bad")
    report = build(path, tmp_path / "bad", bad_records="skip", overwrite=True)
    assert (report.rows_in, report.rows_out, report.rows_skipped) == (3, 1, 2)
    data = bytearray((tmp_path / "bad" / "times.npy").read_bytes())
    data[-1] ^= 1
    (tmp_path / "bad" / "times.npy").write_bytes(bytes(data))
    with pytest.raises(ManifestError, match=r"times\.npy"):
        HistoryStore(tmp_path / "bad", verify="full")
    (tmp_path / "bad" / "times.npy").unlink()
    with pytest.raises(ManifestError, match=r"times\.npy is missing"):
        HistoryStore(tmp_path / "bad")


def test_real_user_behaviour(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "taobao_userbehavior" / "fattydelivery_UserBehavior.csv"
    log = LOGS["taobao-userbehavior"]
    build_history(log.open(path), tmp_path / "h", key=log.key, time_column=log.time, run_rows=1000)
    store = HistoryStore(tmp_path / "h")
    texts = [line.split(",") for line in path.read_text().splitlines()]
    ordered = sorted(((int(t[0]), int(t[4]), int(t[1])) for t in texts), key=lambda r: r[:2])
    assert store.num_rows == 4321
    assert store.values("item", np.arange(4321))[0].tolist() == [r[2] for r in ordered]
    users, times = np.array([1, 1], np.uint64), np.array([1511561733, 2**62])
    found = store.before(users, times, 10_000)
    assert found.lengths.tolist() == [sum(r[:2] < (1, 1511561733) for r in ordered), sum(r[0] == 1 for r in ordered)]


def test_a_history_needs_columns_of_its_log_and_whole_times(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(log_text([(1, 10, "pv", 3, 4)]))
    build(tmp_path / "log", tmp_path / "out")
    (tmp_path / "x.csv").write_text("1,11\n")
    store, rows = HistoryStore(tmp_path / "out"), TextFormat(name="x", columns=("user", "time"))
    cates = Sparse(name="cates", encoding="uint64", multi_hot=True)

    def read(column: str, *dense: Dense) -> list[Any]:
        join = HistoryJoin("log", store, "user", "time", {"cates": column})
        reader = JoinedFiles(tmp_path / "x.csv", Schema(dense=dense, sparse=(cates,)), rows, histories=[join])
        return [block.data.column("cates").to_pylist() for block in read_all(reader)]

    assert read("cate") == read("cate", Dense(name="time")) == [[[3]]]
    with pytest.raises(SchemaError, match="'log': its log has no column 'shop'; it has btag, cate, brand"):
        read("shop")
    with pytest.raises(SchemaError, match="column 'time': the key or time of the join 'log'"):
        read("cate", Dense(name="time", dtype="float32"))


ARRAYS: dict[str, tuple[str, Any]] = {
    "too far": ("offsets", np.array([0, 2, 1 << 40], np.int64)),
    "before the first row": ("offsets", np.array([0, -2, 3], np.int64)),
    "of no row": ("offsets", np.array([0, 0, 3], np.int64)),
    "of fewer users": ("offsets", np.array([0, 3], np.int64)),
    "of none": ("offsets", np.array([], np.int64)),
    "no whole numbers": ("offsets", np.array([0, 2.5, 3])),
    "descending": ("keys", np.array([2, 1], np.uint64)),
    "twice": ("keys", np.array([1, 1], np.uint64)),
    "a table": ("keys", np.array([[1, 2]], np.uint64)),
    "of fewer rows": ("times", np.array([1, 2], np.int64)),
    "of more rows": ("value-cate", np.array([1, 2, 3, 4], np.uint32)),
    "objects": ("times", np.array([{}, {}, {}], object)),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_that_do_not_belong_together_are_refused(tmp_path: Path, kind: str) -> None:
    """Sizes as the manifest says them: one byte too many in an offset would give a user another's history."""
    (tmp_path / "log").write_bytes(log_text([(1, 10, "pv", 3, 4), (1, 11, "pv", 3, 4), (2, 10, "pv", 3, 4)]))
    build(tmp_path / "log", tmp_path / "out")
    name, array = ARRAYS[kind]
    np.save(tmp_path / "out" / f"{name}.npy", array)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    manifest["files"][f"{name}.npy"]["bytes"] = (tmp_path / "out" / f"{name}.npy").stat().st_size
    (tmp_path / "out/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ManifestError, match=r"damaged|is no array|values of"):
        HistoryStore(tmp_path / "out")


@pytest.mark.parametrize("columns", [None, 7, [7], ["nope"], ["../out/value-cate"]])
def test_columns_that_a_manifest_does_not_have(tmp_path: Path, columns: object) -> None:
    (tmp_path / "log").write_bytes(log_text([(1, 10, "pv", 3, 4)]))
    build(tmp_path / "log", tmp_path / "out")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    manifest["parameters"]["columns"] = columns
    (tmp_path / "out/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ManifestError, match=r"does not say which columns|its manifest has no value-"):
        HistoryStore(tmp_path / "out")
