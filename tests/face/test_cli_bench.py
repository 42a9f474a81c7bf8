"""`headrace bench index`: streams and files as announced, a report with stable keys, a picture."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from headrace.bench import data_batches, data_residents, popular_ids, preset_stream, stream_batches, whole_batches
from headrace.cli import main
from headrace.formats.generate.generate import generate
from headrace.indexer.indexed import IdColumn

KEYS = {
    "samples_per_s", "ids_per_s", "limit_samples_per_s", "limit_parts", "ratio_to_limit", "baseline_sharded_map",
    "baseline_lock_per_id", "baselines_by_threads", "ratio_to_sharded_map", "peers", "bytes_per_row",
    "bytes_per_row_max", "longest_call_ms", "insert_rows_per_s", "unique_share", "insert_share", "order", "cores",
    "scaling_2_over_1", "spread",
}  # fmt: skip


def invoke(*arguments: object):
    return CliRunner().invoke(main, ["bench", "index", *map(str, arguments)])


SMALL = ("--preset", "criteo-kaggle", "--rows", "2e4", "--batch-size", 512, "--samples", 2048, "--rounds", 2)


def test_the_command_reports_every_key():
    result = invoke(*SMALL, "--threads", "1,2", "--json", "-")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert set(report) >= KEYS
    assert set(report["samples_per_s"]) == {"1", "2"}
    assert report["samples"] == 2048
    assert report["ids_per_sample"] == 26
    assert 20_000 <= report["rows"] < 40_000
    assert 0.1 < report["unique_share"] < 0.6
    assert min(report["spread"]["index_1"]) > 0


def test_a_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    result = invoke(*SMALL, "--rounds", 1, "--threads", "2", "--plot", tmp_path / "p.png")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    result = invoke(*SMALL, "--plot", tmp_path / "no" / "p.png")
    assert result.exit_code == 2
    assert "there is no folder" in result.output


def test_without_matplotlib_a_picture_is_refused_before_any_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("headrace.bench_plot.find_spec", lambda name: None)
    result = invoke("--plot", "p.png")
    assert result.exit_code == 2
    assert "pip install 'headrace[bench]'" in result.output


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench") / "d"
    generate("criteo-kaggle", folder, rows=700, files=2, seed=4)
    return folder


def test_files_are_read_in_whole_batches_up_to_the_samples(files):
    sizes = [len(batch[0].values) for batch in data_batches(str(files), 500, 150)]
    assert sizes == [150, 150, 150, 50]
    assert sum(len(b[0].values) for b in data_batches(str(files), 10**6, 256)) == 700
    whole, parts = data_batches(str(files), 700, 700)[0], data_batches(str(files), 700, 64)
    for c in range(26):
        assert np.concatenate([p[c].values for p in parts])[:700].tolist() == whole[c].values.tolist()


def test_what_the_files_bring_is_resident_once_and_others_make_up_the_rows():
    def column(values, missing=None):
        return IdColumn(0, np.array(values, np.uint32), None if missing is None else np.array(missing))

    batches = [[column([5, 5, 2]), column([1])], [column([2, 9], [False, True]), column([3])]]
    assert [ids.tolist() for ids in data_residents(batches, 2, None)] == [[2, 5], [1, 3]]
    more = data_residents(batches, 2, 9)
    assert [ids.tolist() for ids in more] == [[2, 5, 2**32, 2**32 + 1, 2**32 + 2], [1, 3, 2**32, 2**32 + 1, 2**32 + 2]]


def test_a_dataset_is_measured_and_its_rows_are_what_it_brings(files):
    result = invoke(
        "--data", files, "--batch-size", 256, "--rounds", 1, "--no-peers", "--insert-share", 0.5, "--json", "-"
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["data"] == str(files)
    assert "preset" not in report
    assert (report["samples"], report["insert_share"]) == (700, 0.5)
    batches = data_batches(str(files), 700, 256)
    ids = sum(len(r) for r in data_residents(batches, 26, None))
    missing = sum(any(b[c].missing is not None and b[c].missing.any() for b in batches) for c in range(26))
    assert report["rows"] == ids + missing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "no-such-file"], "no-such-file"),
        (["--insert-share", "1.5"], "insert-share"),
        (["--threads", "1,1"], "twice"),
        (["--threads", "0"], "threads"),
        (["--rows", "1.5"], "whole number"),
        (["--preset", "criteo-kaggle", "--rows", "1e8"], "preset has only"),
        (["--rows", "1e15"], "1,000,000,000,000,000 --rows needs at least 21.3 PiB of memory, and "),
        (["--rows", "1e17"], "whole number from 1 to 2^53"),
        (["--ranks", "--insert-share", "1"], "--insert-share: for one process"),
        (["--ranks", "--no-peers", "--plot", "p.png"], "--plot, --no-peers: for one process"),
        (["--ranks", "--threads", "1,2"], "several --threads are for one process"),
        (["--no-ring", "--parser"], "--no-ring, --parser: for the ranks of mpirun or torchrun"),
        (["--request-threads", "1"], "--request-threads: for the ranks of mpirun or torchrun"),
        (["--timeout-s", "9", "--no-ranks"], "--timeout-s: for the ranks of mpirun or torchrun"),
        (["--data", "x", "--seed", "0"], "--seed: for a generated stream, not with --data"),
        (["--data", "x", "--preset", "criteo-kaggle"], "--preset: for a generated stream, not with --data"),
        (["--no-labels"], "--no-labels: for the files of --data"),
        (["--plot", "x.txt"], "'x.txt' does not end in .png, .svg or .pdf"),
        (["--plot", "x"], "'x' does not end in .png, .svg or .pdf"),
        (["--json", "/no/such/x.json"], "there is no folder '/no/such'"),
        (["--json", "/"], "'/' is a folder"),
    ],
)
def test_bad_options_end_in_one_line(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert "Traceback" not in result.output


def test_what_is_wrong_is_told_without_a_note_on_rounds():
    for arguments in (["--preset", "criteo-kaggle", "--rows", "1e8"], ["--no-labels"], ["--json", "/"]):
        result = invoke("--rounds", 1, *arguments)
        assert result.exit_code in (1, 2)
        assert "note:" not in result.output


def test_what_may_not_be_written_is_refused_before_any_work(tmp_path, monkeypatch):
    (tmp_path / "old.json").write_text("{}")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    for option, name in (("--json", "old.json"), ("--json", "new.json"), ("--plot", "new.PNG")):
        result = invoke(option, tmp_path / name)
        assert result.exit_code == 2
        assert "cannot be written: permission denied" in result.output


def fake_report(**changes):
    """A report of no measurement."""
    return {
        "samples": 262_144, "samples_per_s": {"1": 5.5, "2": 9000.0}, "ids_per_s": {"1": 143.0, "2": 234_000.0},
        "limit_samples_per_s": 70_000.4, "ratio_to_limit": 0.5, "baseline_sharded_map": 3.0,
        "baseline_lock_per_id": 2.0,
        "baselines_by_threads": {"1": {"sharded_map": 3.0, "lock_per_id": 2.0}}, "peers": {"cykhash": 4.0},
        "spread": {
            "index_1": [5.0, 6.0], "index_2": [8000.0, 10_000.0], "limit": [1.0, 100_000.0],
            "sharded_map_1": [2.5, 3.5], "lock_per_id_1": [1.0, 2.0], "cykhash": [4.0, 4.0],
        },
        **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rounds", "note"), [(1, "note: 1 round has no spread"), (2, "note: 2 rounds have next to no spread"), (3, None)]
)
def test_few_rounds_are_told_from_enough(rounds, note, monkeypatch):
    monkeypatch.setattr("headrace.bench.bench_index", lambda preset, **options: fake_report(rounds=options["rounds"]))
    result = invoke("--rounds", rounds, "--json", "-")
    assert json.loads(result.stdout) == fake_report(rounds=rounds)
    assert result.stderr.startswith(note) if note else result.stderr == ""


def test_the_table_has_each_median_beside_its_spread_under_one_name(monkeypatch):
    monkeypatch.setattr("headrace.bench.bench_index", lambda preset, **options: fake_report())
    assert invoke().stdout.splitlines() == [
        "samples                      262144",
        "samples_per_s.index_1        5.5 (5.0 to 6.0)",
        "samples_per_s.index_2        9,000 (8,000 to 10,000)",
        "samples_per_s.limit          70,000 (1 to 100,000)",
        "samples_per_s.sharded_map_1  3.0 (2.5 to 3.5)",
        "samples_per_s.lock_per_id_1  2.0 (1.0 to 2.0)",
        "samples_per_s.cykhash        4.0 (4.0 to 4.0)",
        "ids_per_s.1                  143.0000",
        "ids_per_s.2                  234,000.0000",
        "ratio_to_limit               0.5000",
    ]


@pytest.mark.parametrize(
    ("options", "measured", "message"),
    [
        (("--samples", 10_000), 16_384, "16,384 samples were measured, 10,000 asked for: in whole batches of 8,192"),
        (("--data", "x"), 700, "700 samples were measured, 262,144 asked for: the files have no more"),
        ((), 262_144, ""),
    ],
)  # fmt: skip
def test_other_samples_than_were_asked_for_are_told(options, measured, message, monkeypatch):
    monkeypatch.setattr("headrace.bench.bench_index", lambda preset, **options: fake_report(samples=measured))
    result = invoke(*options)
    assert result.exit_code == 0, result.output
    assert result.stderr == (f"note: {message}\n" if message else "")


@pytest.mark.parametrize(("rank", "writes"), [("0", True), ("1", False)])
def test_of_processes_side_by_side_the_first_one_reports(rank, writes, tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.bench.bench_index", lambda preset, **options: fake_report(rank=rank))
    for name, value in (("PMI_SIZE", "2"), ("PMI_RANK", rank)):
        monkeypatch.setenv(name, value)
    result = invoke("--no-ranks", "--rounds", 1, "--json", tmp_path / "r.json")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "r.json").exists() == ("rank  " in result.stdout) == ("note" in result.stderr) == writes


@pytest.mark.parametrize("batch_size", [64, 30_000, 65_536, 100_000])
def test_batches_of_a_stream_are_whole_and_none_is_smaller(batch_size):
    stream = preset_stream("criteo-kaggle", 0)
    batches = whole_batches(stream, 2 * batch_size - 1, batch_size, first_block=1)
    assert [len(column.values) for batch in batches for column in batch] == [batch_size] * 26 * 2
    blocks = [stream.block(1 + n) for n in range(4)]
    for c, masked in ((0, False), (25, True)):
        ids = np.concatenate([block.ids[c] for block in blocks])[: 2 * batch_size]
        missing = ~np.concatenate([block.ids_valid[c] for block in blocks])[: 2 * batch_size]
        assert np.concatenate([batch[c].values for batch in batches]).tolist() == ids.tolist()
        if masked:
            assert np.concatenate([batch[c].missing for batch in batches]).tolist() == missing.tolist()
        else:
            assert not missing.any()
            assert all(batch[c].missing is None for batch in batches)


def test_streams_of_two_blocks_have_the_same_ids_and_other_rows():
    stream = preset_stream("criteo-kaggle", 0)
    (first,), (second,) = (stream_batches(stream, 64, 64, first_block=b) for b in (0, 1))
    assert any((a.values != b.values).any() for a, b in zip(first, second, strict=True))
    popular = popular_ids(stream, 26_000)
    for batch in (first, second):
        assert np.isin(batch[0].values, popular[0]).mean() > 0.5
