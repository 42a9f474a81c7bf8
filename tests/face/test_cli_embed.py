"""`headrace bench embed`: its keys, and that its figures are of the work it says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from headrace.bench import cut_batches
from headrace.cli import main
from headrace.indexer.indexed import IdColumn


def bench(*options: object) -> dict:
    arguments = [
        "bench",
        "embed",
        "--batch-size",
        512,
        "--batches",
        2,
        "--rounds",
        1,
        "--json",
        "-",
        "--shapes",
        "",
        *options,
    ]
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_keys_and_sizes():
    report = bench("--dim", 16)
    assert report["ids"] == 512 * 26
    assert set(report["breakdown_ms"]) == {"forward", "backward", "update"}
    assert list(report["by_optimizer"]) == ["sgd", "rowwise_adagrad"]
    assert report["step_ms"] == report["by_optimizer"]["sgd"]["step_ms"] > 0
    assert report["peers"]["torch_embedding_bag_ms"] > 0
    assert report["times_faster_than_best_peer"] == min(report["peers"].values()) / report["step_ms"]
    unique, ids = report["unique_rows"], report["ids"]
    indices = 8 * (ids + (ids + 1) + ids + (unique + 1) + unique)
    assert report["limit_bytes"] == pytest.approx(4 * (2 * ids * 16 + 3 * unique * 16) + indices)
    moved_per_ms = report["bandwidth_gb_per_s"] * 1e6
    assert report["limit_ms"] == pytest.approx(report["limit_bytes"] / moved_per_ms)


def test_multi_hot_bags_have_the_mean_number_of_ids():
    report = bench("--dim", 16, "--mean-ids", 10, "--no-peers")
    assert report["ids"] == 10 * 512 * 26
    assert report["peers"] == {}
    assert report["times_faster_than_best_peer"] is None


def test_further_shapes_are_in_the_table():
    report = bench("--dim", 16, "--shapes", "32,8x3", "--no-peers")
    assert [(one["dim"], one["mean_ids"], one["ids"]) for one in report["table"]] == [
        (16, 1, 512 * 26), (32, 1, 512 * 26), (8, 3, 3 * 512 * 26),
    ]  # fmt: skip
    assert report["table"][0]["step_ms"] == report["step_ms"]
    assert all(list(one["by_optimizer"]) == ["sgd", "rowwise_adagrad"] for one in report["table"])


@pytest.mark.parametrize("options", [("--dim", "0"), ("--shapes", "16x"), ("--shapes", "0"), ("--shapes", "8x2x2")])
def test_bad_options_are_refused(options):
    result = CliRunner().invoke(main, ["bench", "embed", *options])
    assert result.exit_code == 2
    assert options[0].strip("-") in result.output


def test_batches_go_over_the_ends_of_blocks():
    values = np.arange(10, dtype=np.uint32)
    pieces = [[IdColumn(0, values[a:b], values[a:b] % 2 == 1 if a else None)] for a, b in ((0, 4), (4, 5), (5, 10))]
    first, second = (batch[0] for batch in cut_batches(pieces, 2, 5))
    assert (first.values.tolist(), second.values.tolist()) == ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
    assert second.missing.tolist() == [True, False, True, False, True]
    assert not first.missing.any()
