"""Memory stays flat: replaying rows grows the process by the index and the rows, and by nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

import headrace

REPLAY = """
    import gc, json, sys
    import psutil
    import headrace

    data, batch_size, train = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "train"
    schema = headrace.criteo_schema(dim=8)
    process = psutil.Process()
    samples = []
    with headrace.DataLoader(data, batch_size, schema=schema, num_workers=2, window=8, capacity=200_000) as loader:
        stage = headrace.EmbeddingStage(schema, mode="arena")
        for batch in loader:
            if train:
                stage(batch).mean().backward()
                stage.step(batch)
            gc.collect() if len(samples) % 50 == 0 else None
            stage.flush()  # nothing moves rows while they are counted
            own = loader.index.stats().nbytes + sum(s.num_written * 4 * s.width for s in stage.stores)
            samples.append((process.memory_info().rss, own))
    print(json.dumps(samples))
"""


def growth(repository, data, batch_size: int, mode: str) -> tuple[int, int]:
    """(bytes by which the peak of the last quarter is above that of the first, of these index and rows)."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(REPLAY), str(data), str(batch_size), mode],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr
    samples = json.loads(done.stdout)
    quarter = len(samples) // 4
    first, last = samples[:quarter], samples[-quarter:]
    return max(s[0] for s in last) - max(s[0] for s in first), last[-1][1] - first[-1][1]


ALLOWANCE_BYTES = 24 << 20
"""Allocator noise: freed blocks that are not given back, at most a few batches' worth."""


@pytest.mark.timeout(300)
def test_replay_and_training_are_flat(repository, tmp_path):  # L44, L45, P65
    headrace.generate("criteo-kaggle", tmp_path / "d", rows=120_000, files=2, max_cardinality=2000)
    for mode in ("replay", "train"):
        grown, own = growth(repository, tmp_path / "d", 1000, mode)
        assert grown <= own + ALLOWANCE_BYTES, (mode, grown, own)


@pytest.mark.long
@pytest.mark.timeout(1600)
def test_two_million_rows_are_flat(repository, tmp_path):
    headrace.generate("criteo-kaggle", tmp_path / "d", rows=2_000_000, files=4, max_cardinality=20_000)
    grown, own = growth(repository, tmp_path / "d", 4096, "replay")
    print(f"peak RSS of the last quarter is {grown:,} bytes above that of the first; index and rows {own:,}")
    assert grown <= own + ALLOWANCE_BYTES
