"""Training over ranks on the cluster of namespaces, with headrace alone. Skipped where no cluster can be made."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [str(ROOT / name) for name in ("benchmarks", "examples", "src")]


@pytest.fixture
def cluster(monkeypatch):
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(folder)
    import network_lab

    why = network_lab.missing()
    if why is not None:
        pytest.skip(f"no network namespaces: {why}")


@pytest.mark.usefixtures("cluster")
def test_a_rank_that_ends_is_named_with_the_last_it_said(tmp_path):
    from network_lab import NetworkLab
    from rank_group import RankGroup, RankGroupError

    with NetworkLab(1) as lab:
        settings = {"stream": str(tmp_path / "nothing")}
        group = RankGroup(lab, 1, "dense", settings, port=29700, timeout_s=120)
        try:
            with pytest.raises(RankGroupError, match=r"(?s)dense: rank 0 ended at 'ready'.*FileNotFoundError"):
                group.ready()
        finally:
            group.kill()


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_payload_is_that_of_the_unique_rows_and_what_the_interface_counts(tmp_path):
    out = tmp_path / "report.json"
    shape = ["--topologies", "2x2", "--rates", "unlimited", "--batch-size", "512", "--stream-steps", "8"]
    turns = ["--systems", "headrace", "--rounds", "1", "--warm", "1", "--steps", "8", "--window", "2"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "ranks.py"), *shape, *turns, "--json", str(out)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(FOLDERS)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())["2x2"]["unlimited"]
    for name in ("headrace_flat", "headrace_two_level"):
        assert 1.0 < figures["payload_over_unique_rows"][name] < 1.08
        assert 0.98 < figures["interface_over_payload"][name] < 1.05
    flat, two_level = (figures["payload_bytes_per_step"][f"headrace_{name}"] for name in ("flat", "two_level"))
    assert flat > 1.05 * two_level
