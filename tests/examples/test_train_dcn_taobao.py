"""DCN on Taobao's UserBehavior, from the command line on real rows."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

FILE = "fattydelivery_UserBehavior.csv"


def run(repository: Path, out: Path, *arguments: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "examples/train_dcn_taobao.py", "--out", str(out), *map(str, arguments)],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


@pytest.mark.timeout(400)
def test_real_rows_train_and_predict_later_days(shared_data: Path, repository: Path, tmp_path: Path) -> None:
    data = shared_data / "taobao_userbehavior" / FILE
    times = [int(line.split(",")[4]) for line in data.read_text().splitlines()]
    options = ("--data", data, "--epochs", 2, "--batch-size", 128)
    report = run(repository, tmp_path / "a", *options)
    later = sum(t >= 1512144000 for t in times)
    assert report["log_rows"] == len(times)
    assert [e["rows"] for e in report["epochs"]] == [len(times) - later] * 2
    assert [e["evaluation"]["rows"] for e in report["epochs"]] == [later] * 2
    assert report["epochs"][1]["loss"] < report["epochs"][0]["loss"] < 0.5
    assert report["auc"] > 0.65  # 0.5 is chance; the days were not trained on
    again = run(repository, tmp_path / "a", *options, "--num-workers", 0)  # the sorted log is there already
    assert again["parameters_digest"] == report["parameters_digest"]


def test_the_cross_network_is_that_of_the_paper(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(repository / "examples"))
    spec = importlib.util.spec_from_file_location("dcn", repository / "examples" / "dcn.py")
    assert spec is not None
    assert spec.loader is not None
    dcn = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dcn)
    network = dcn.CrossNetwork(2, 2)
    with torch.no_grad():
        for layer, weight, bias in zip(network.layers, ([[1, 2], [0, 1]], [[0, 1], [1, 0]]), ([1, 0], [0, -1])):  # noqa: B905
            layer.weight.copy_(torch.tensor(weight, dtype=torch.float32))
            layer.bias.copy_(torch.tensor(bias, dtype=torch.float32))
        # x0 = (2, 3): x1 = x0 * (2 + 6 + 1, 3) + x0 = (20, 12); x2 = x0 * (12, 20 - 1) + x1 = (44, 69)
        assert network(torch.tensor([[2.0, 3.0]])).tolist() == [[44.0, 69.0]]
    model = dcn.DCN(6)
    assert model(torch.zeros(5, 6)).shape == (5,)
