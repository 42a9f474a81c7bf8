"""Killed at random moments and started again, `convert`, also with `--history`, and `replay --resume` end as if nothing
had happened (P80)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.formats.history_store import HistoryStore
from tests.support.criteo_text import write_lines
from tests.support.killed import kill_and_go_on

KILLS = [pytest.param(5, id="5"), pytest.param(20, marks=pytest.mark.long, id="20")]
TIMES = ("trainer_wait_s", "trainer_wait_share", "rows_per_s", "peak_rss_bytes")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    for day in range(12):
        write_lines(folder / f"day_{day}", 250, seed=day, ids=400)
    return folder


@pytest.mark.parametrize(
    ("form", "kills"),
    [("parquet", 5), *(pytest.param(form, 20, marks=pytest.mark.long) for form in ("parquet", "tar"))],
)
def test_convert(raw: Path, tmp_path: Path, repository: Path, form: str, kills: int) -> None:
    def command(out: str) -> list[str]:
        options = ["--to", form, "--threads", "2", "--row-group-rows", "100", "--json", str(tmp_path / f"{out}.json")]
        return ["convert", "--dataset", "criteo-terabyte", str(raw), "--out", str(tmp_path / out), *options]

    out = tmp_path / "killed"
    found = kill_and_go_on(
        command("whole"), command("killed"), repository, out=out, begun=f"{out}/day_*", steps=6, kills=kills, seed=kills
    )
    assert found.killed == kills
    assert found.begun >= kills // 2
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    reports: Any = [json.loads((tmp_path / f"{out}.json").read_text()) for out in ("whole", "killed")]
    for report in reports:
        del report["seconds"], report["out"], report["files_kept"]
    assert reports[0] == reports[1]
    assert reports[0]["rows_out"] == 12 * 250


@pytest.mark.parametrize("kills", KILLS)
def test_history(tmp_path: Path, repository: Path, kills: int) -> None:
    draw = np.random.default_rng(kills)
    columns = (draw.integers(0, most, 12_000).tolist() for most in (900, 5_000, 90))
    lines = [
        f"{user},{1494000000 + second},pv,{item},{item if item % 7 else 'NULL'}\n"
        for user, second, item in zip(*columns, strict=True)
    ]
    log = tmp_path / "behavior_log.csv"
    log.write_text("user,time_stamp,btag,cate,brand\n" + "".join(lines))

    def command(out: str) -> list[str]:
        options = ["--history", "--run-rows", "1000", "--out", str(tmp_path / out)]
        return ["convert", "--dataset", "taobao-behavior-log", str(log), *options]

    out = tmp_path / "killed"
    begun = f"{out}/.runs/run-*.json"
    found = kill_and_go_on(
        command("whole"), command("killed"), repository, out=out, begun=begun, steps=12, kills=kills, seed=kills
    )
    assert found.killed == kills
    assert found.begun >= kills // 2
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    store = HistoryStore(out, verify="full")
    assert (store.num_rows, store.times(np.arange(12_000)).min()) == (12_000, 1494000000)


@pytest.mark.parametrize("kills", KILLS)
def test_replay(raw: Path, tmp_path: Path, repository: Path, kills: int) -> None:
    def command(out: str) -> list[str]:
        options = ["--batch-size", "50", "--window", "4", "--save-every", "13", "--epochs", "2", "--digest"]
        # with --shuffle each resume reads the whole window of the shuffle again
        options += ["--shuffle"] if kills > 5 else ["--hot-rows", "0"]
        state = ["--resume", str(tmp_path / out), "--json", str(tmp_path / f"{out}.json"), "--num-workers", "1"]
        return ["replay", "--dataset", "criteo-terabyte", str(raw), *options, *state]

    out = tmp_path / "killed"
    found = kill_and_go_on(
        command("whole"),
        command("killed"),
        repository,
        out=out,
        begun=f"{out}/meta.json",
        steps=10,
        kills=kills,
        seed=kills,
    )
    assert found.killed == kills
    assert found.begun >= kills // 2
    reports: Any = [json.loads((tmp_path / f"{out}.json").read_text()) for out in ("whole", "killed")]
    for report in reports:
        for name in TIMES:
            assert report.pop(name) is not None
    assert reports[0] == reports[1]
    assert (reports[0]["rows"], reports[0]["rows_in"], reports[0]["batches"]) == (6_000, 6_000, 120)
    assert len(reports[0]["batches_digest"]) == 32
    index = [(tmp_path / out / "index.arrow").read_bytes() for out in ("whole", "killed")]
    assert index[0] == index[1]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["killed", "whole"]  # nothing left over
