"""The benchmark's own parts: baselines that index rightly, streams as announced, a complete report."""

from __future__ import annotations

import json

import numpy as np
from click.testing import CliRunner

from headrace.cli import main
from headrace.indexer import _bench
from headrace.indexer.bench import filled_index
from headrace.indexer.indexed import IndexTable


def test_the_locked_maps_are_an_index():
    rng = np.random.default_rng(0)
    maps, locations = _bench.LockedMaps(64), {}
    for turn in range(6):
        keys = rng.integers(0, 2**64, 50, np.uint64).repeat(3)
        keys[:21] = np.arange(21)  # met again in every turn
        found = (maps.index_batch if turn % 2 else maps.index_each)(keys)
        for key, location in zip(keys.tolist(), found.tolist(), strict=True):
            assert locations.setdefault(key, location) == location
    assert len(locations) == 21 + 6 * 43


def test_a_filled_index_holds_each_resident_once():
    residents = [np.arange(300_000, dtype=np.uint32), np.arange(5, dtype=np.uint32)]
    index, cost = filled_index([IndexTable(1, 0), IndexTable(2, 0)], residents, num_threads=2)
    with index:
        assert len(index) == 300_005
        assert index.num_provisional == 0
    assert cost["insert_rows_per_s"] > 0
    assert cost["longest_call_ms"] > 0


KEYS = {
    "samples_per_s", "ids_per_s", "limit_samples_per_s", "ratio_to_limit", "baseline_sharded_map",
    "baseline_lock_per_id", "peers", "bytes_per_row", "bytes_per_row_max", "longest_call_ms", "unique_share",
}  # fmt: skip


def test_the_command_reports_every_key():
    options = ["--preset", "criteo-kaggle", "--rows", "2e4", "--batch-size", "512", "--threads", "1,2"]
    result = CliRunner().invoke(main, ["bench", "index", *options, "--samples", "2048", "--rounds", "2", "--json", "-"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert set(report) >= KEYS
    assert set(report["samples_per_s"]) == {"1", "2"}
    assert report["samples"] == 2048
    assert report["ids_per_sample"] == 26
    assert 20_000 <= report["rows"] < 40_000
    assert 0.1 < report["unique_share"] < 0.6
    assert min(report["spread"]["index_1"]) > 0
