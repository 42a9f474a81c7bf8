"""Options that would change nothing are refused, not taken in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli import main

IDLE = [
    ("replay DATA --save-every 5", "--save-every: for --resume alone"),
    ("replay DATA --end-marker X --poll-seconds 1", "--end-marker, --poll-seconds: for --follow alone"),
    ("replay DATA --max-idle-seconds 5", "--max-idle-seconds: for --follow alone"),
    ("replay DATA --convention torchrec", "--convention: for --split alone"),
    ("replay DATA --split train --convention torchrec", "--convention: for --split validation and test"),
    ("replay DATA --seed 3", "--seed: for --shuffle alone"),
    ("replay DATA --schema SCHEMA --dim 32", "--dim: stands in the schema"),
    ("replay DATA --schema SCHEMA --no-labels", "--no-labels: stands in the schema"),
    ("lint DATA --schema SCHEMA --no-labels", "--no-labels: stands in the schema"),
    ("stats DATA --schema SCHEMA --dim 32", "--dim: stands in the schema"),
    ("stats DATA --seed 3", "--seed: for the generated stream"),
    ("stats DATA --held-out 3", "--held-out: for --top-rows alone"),
    ("stats DATA --no-features --feature-rows 5", "--feature-rows: for the columns that --no-features leaves out"),
    ("stats --preset criteo-kaggle --dataset avazu", "--dataset: for DATA, not with --preset"),
    ("stats --preset criteo-kaggle --feature-rows 5", "--feature-rows: for DATA, not with --preset"),
    ("convert DATA --out OUT --run-rows 5", "--run-rows: for --history alone"),
    ("convert DATA --out OUT --schema SCHEMA --no-labels", "--no-labels: stands in the schema"),
    ("convert DATA --out OUT --history --dataset taobao-userbehavior --compression lz4", "--compression: for other"),
    ("convert DATA --out OUT --history --dataset taobao-userbehavior --to tar", "--to: for other"),
    ("plan DATA --schema SCHEMA --dim 32", "--dim: stands in the schema"),
    ("plan DATA --seed 3", "--seed: for --ranks"),
    ("plan --read X --window 3", "--window: for the plans that are made of DATA"),
    ("plan --diff A B --steps 3 --verify", "--steps, --verify: for one stream of plans"),
    ("plan --read X --separator ;", "--separator: for the plans that are made of DATA"),
]


@pytest.mark.parametrize(("command", "message"), IDLE)
def test_an_idle_option_is_named(tmp_path: Path, command: str, message: str) -> None:
    (tmp_path / "schema.yaml").write_text("labels: [y]\nsparse: [a]\n")
    for name in ("data", "plan"):
        (tmp_path / name).write_text("1\tff\n")
    places = {"DATA": "data", "SCHEMA": "schema.yaml", "OUT": "out", "X": "plan", "A": "plan", "B": "plan"}
    arguments = [str(tmp_path / places[word]) if word in places else word for word in command.split()]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, message in result.stderr) == (2, True), result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "plan", "schema.yaml"]
