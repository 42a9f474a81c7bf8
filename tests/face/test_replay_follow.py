"""`headrace replay` over a folder that grows, over URIs, with a state, and with a progress bar."""

from __future__ import annotations

import io
import json
import os
import re
import threading
import time

import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.embed.abandoned import temporary_folder
from headrace.embed.run_folder import write_folder
from headrace.embed.sole_run import sole_run
from headrace.formats.datasets import open_dataset
from headrace.indexer.dit import DIT
from headrace.ingest.data_loader import DataLoader
from headrace.progress import ReplayProgress, is_watched
from tests.support.criteo_text import write_lines
from tests.support.growing_folder import Writer, appear

FOLLOW = ("--follow", "--poll-seconds", "0.01", "--idle-seconds", "0.05", "--batch-size", "20", "--json", "-")


def invoke(*arguments):
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


@pytest.fixture
def files(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    for day in range(3):
        write_lines(raw / f"day_{day}", 50, seed=day)
    return raw


def test_a_folder_that_grows(tmp_path, files):
    live = tmp_path / "live"
    live.mkdir()
    with Writer(live, [(f.name, f.read_bytes()) for f in sorted(files.iterdir())], pause_s=0.1, end="DONE"):
        result = invoke(live, *FOLLOW, "--end-marker", "DONE", "--verify-plan", "--digest")
    assert result.exit_code == 0, result.output
    stats = json.loads(result.stdout)
    assert (stats["rows"], stats["rows_in"], stats["stale_reads"]) == (150, 150, 0)
    whole = json.loads(invoke(files, "--batch-size", 20, "--json", "-").stdout)
    assert stats["index_rows"] == whole["index_rows"] > 0  # ids never seen before, as they came


def test_silence_is_an_error(tmp_path, files):
    result = invoke(files, *FOLLOW, "--max-idle-seconds", "0.1")
    assert result.exit_code == 1
    assert "TimeoutError" in result.output
    assert "no new file for 0.1 s, and no '_END'" in result.output
    assert "one folder" in invoke(files, files, "--follow").output


def test_what_is_no_folder_is_not_followed(tmp_path, files):
    for path in (tmp_path / "later", files / "*", files / "day_0"):
        result = invoke(path, *FOLLOW)
        assert result.exit_code == 1, result.output
        assert f"{path}: a growing folder is one folder (no file, no pattern), which must be there" in result.output


def test_a_uri(files):
    local = json.loads(invoke(f"{files}/day_*", "--digest", "--json", "-").stdout)
    stored = json.loads(invoke(f"file://{files}/day_*", "--digest", "--json", "-").stdout)
    assert stored["batches_digest"] == local["batches_digest"]
    assert local["fetched"] is None
    assert stored["fetched"]["bytes_fetched"] == sum(f.stat().st_size for f in files.iterdir())
    assert invoke("pipe:touch x").exit_code == 1


def test_a_state_of_another_replay_is_refused(tmp_path, files):
    state = ("--resume", tmp_path / "state", "--save-every", 2, "--batch-size", 20, "--json", "-")
    first = invoke(files, *state)
    assert first.exit_code == 0, first.output
    again = invoke(files, *state)  # nothing is left to do
    stats, whole = json.loads(again.stdout), json.loads(first.stdout)
    assert (stats["rows"], stats["rows_in"], stats["rows_skipped"]) == (150, 150, 0)
    assert {k for k in stats if stats[k] != whole[k]} <= {"peak_rss_bytes"}
    other = invoke(files, *state[:-2], "--window", 5)
    assert other.exit_code == 1
    assert "the state is of a replay with other window (--window): give those that it began with" in other.output
    assert "other schema (--schema, --dim, --no-labels): give" in invoke(files, *state[:-2], "--dim", 8).output
    (tmp_path / "s2").mkdir()
    (tmp_path / "s2" / "notes").write_text("mine")
    assert invoke(files, "--resume", tmp_path / "s2").exit_code == 1
    assert (tmp_path / "s2" / "notes").read_text() == "mine"


@pytest.mark.parametrize("options", [(), ("--shuffle",), ("--epochs", 2)])
def test_a_finished_state_of_other_files_is_refused(tmp_path, files, options):
    state = ("--resume", tmp_path / "state", "--save-every", 2, "--batch-size", 20, "--digest", *options)
    data, other = files / "day_0", tmp_path / "other"
    first = invoke(data, *state)
    assert first.exit_code == 0, first.output
    other.write_bytes(data.read_bytes() + data.read_bytes()[:200].split(b"\n")[0] + b"\n")
    for paths in ([other], [data, other], [files / "day_2", data]):
        refused = invoke(*paths, *state)
        assert refused.exit_code == 1, refused.output
        assert "the state is not of these files" in refused.output
    moved = tmp_path / "moved" / "day_0"
    moved.parent.mkdir()
    data.rename(moved)
    again = invoke(moved, *state)  # where a dataset lies does not count
    assert re.search("batches_digest.*", again.output)[0] == re.search("batches_digest.*", first.output)[0]


def test_a_finished_state_of_another_followed_folder_is_refused(tmp_path, files):
    appear(files, "_END", b"")
    options = (*FOLLOW, "--resume", tmp_path / "state", "--save-every", 2)
    assert invoke(files, *options).exit_code == 0
    assert invoke(files, *options).exit_code == 0
    (files / "day_1").unlink()
    refused = invoke(files, *options)
    assert refused.exit_code == 1
    assert "3 files then, 2 now" in refused.output


def test_a_state_that_a_kill_left_between_two_names_is_gone_on_with(tmp_path, files):
    """As on a file system that cannot swap names."""
    state = ("--resume", tmp_path / "state", "--save-every", 2, "--batch-size", 20, "--json", "-")
    first = json.loads(invoke(files, *state).stdout)
    (tmp_path / "state").rename(temporary_folder(tmp_path / "state").with_suffix(".old"))
    again = json.loads(invoke(files, *state).stdout)
    assert again["trainer_wait_s"] == first["trainer_wait_s"]  # nothing was run again


def test_two_replays_do_not_share_a_state(tmp_path, files):
    state = ("--resume", tmp_path / "state", "--save-every", 2, "--batch-size", 20)
    with sole_run(tmp_path / "state"):
        refused = invoke(files, *state)
    assert refused.exit_code == 1
    assert f"another run keeps its state there (process {os.getpid()} on " in refused.output
    assert not (tmp_path / "state").exists()
    assert invoke(files, *state).exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw", "state"]


def test_a_state_that_is_replaced_while_it_is_read_is_an_error_that_says_so(tmp_path, files, monkeypatch):
    state = ("--resume", tmp_path / "state", "--save-every", 2, "--batch-size", 20)
    assert invoke(files, *state).exit_code == 0
    read_snapshot = DIT.read_snapshot

    def replaced(index, path):  # by a run that knows of no lock
        read_snapshot(index, path)
        write_folder(path.parent, {"of": "another"}, lambda folder: None)

    monkeypatch.setattr(DIT, "read_snapshot", replaced)
    result = invoke(files, *state)
    assert (result.exit_code, type(result.exception)) == (1, SystemExit)
    assert "CheckpointError" in result.output
    assert "another run replaced the state while it was read" in result.output


def test_a_followed_folder_is_resumed_too(tmp_path, files):
    live = tmp_path / "live"
    live.mkdir()
    names = sorted(files.iterdir())
    options = (*FOLLOW, "--resume", tmp_path / "state", "--save-every", 2, "--window", 4)
    for file in names[:2]:
        appear(live, file.name, file.read_bytes())
    failed = invoke(live, *options, "--max-idle-seconds", "0.3")  # the stream stops, and with it the first run
    assert failed.exit_code == 1
    appear(live, names[2].name, names[2].read_bytes())
    appear(live, "_END", b"")
    result = invoke(live, *options)
    assert result.exit_code == 0, result.output
    stats = json.loads(result.stdout)
    assert (stats["rows"], stats["rows_in"]) == (150, 150)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_shows_on_a_terminal_of_rank_0_only(monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert not is_watched()
    monkeypatch.setattr("sys.stderr", Terminal())
    assert is_watched()
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            assert not is_watched()
            patch.setenv(name, "0")
            assert is_watched()


@pytest.mark.parametrize("packed", [False, True])
def test_the_bar_counts_to_its_end(monkeypatch, files, tmp_path, packed):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # no thread of its own
    paths = files
    if packed:
        import gzip

        paths = tmp_path / "x.gz"
        paths.write_bytes(gzip.compress(b"".join(f.read_bytes() for f in sorted(files.iterdir()))))
    reader = open_dataset("criteo-kaggle", paths)
    with DataLoader(reader, 10, schema=reader.schema) as loader, ReplayProgress(reader, loader, 2) as progress:
        for epoch in range(2):
            for _ in loader:
                progress(epoch)
        bar = progress._bar
        total = None if packed else 2 * sum(f.stat().st_size for f in files.iterdir())
        assert (bar.n, bar.total, bar.unit) == (300 if packed else total, total, "row" if packed else "B")
    if not packed:
        assert re.search(r"replay: +\d+%.*<", terminal.getvalue())  # a share, and the time that is left


def test_no_bar_without_a_terminal(files):
    result = CliRunner().invoke(main, ["replay", str(files), "--json", "-"])
    assert "replay:" not in result.output
    assert result.exit_code == 0


def test_a_replay_that_waits_can_be_ended(tmp_path, files):
    from headrace.formats.growing import GrowingFolder

    reader = open_dataset("criteo-kaggle", GrowingFolder(path=files, poll_s=500, max_idle_s=None))
    loader = DataLoader(reader, 10, schema=reader.schema, num_workers=2)
    consumer = threading.Thread(target=lambda: [None for _ in _until_closed(loader)])
    consumer.start()
    time.sleep(0.2)
    began = time.monotonic()
    loader.close()
    consumer.join(60)
    assert not consumer.is_alive()
    assert time.monotonic() - began < 30


def _until_closed(loader):
    try:
        yield from loader
    except RuntimeError:
        return
