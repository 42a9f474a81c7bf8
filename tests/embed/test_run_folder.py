"""The folder of a checkpoint: whole or not there, and every damage is seen."""

from __future__ import annotations

import json
import os

import pytest

from headrace.embed import run_folder
from headrace.embed.run_folder import CheckpointError, read_meta, write_folder


def write(path, text="one", *, fail=False):
    def files(folder):
        (folder / "data.bin").write_text(text)
        if fail:
            raise OSError("disk full")

    write_folder(path, {"step": 3}, files)


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "run")
    return tmp_path / "run"


def test_round_trip(path):
    meta = read_meta(path)
    assert meta["step"] == 3
    assert list(meta["files"]) == ["data.bin"]
    assert os.listdir(path.parent) == ["run"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_new_one_replaces_the_old_one(path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(run_folder, "_exchange", lambda one, other: False)
    write(path, "two")
    read_meta(path)
    assert (path / "data.bin").read_text() == "two"
    assert os.listdir(path.parent) == ["run"]


def test_a_failure_leaves_the_old_one_and_nothing_else(path):
    with pytest.raises(OSError, match="disk full"):
        write(path, "two", fail=True)
    read_meta(path)
    assert (path / "data.bin").read_text() == "one"
    assert os.listdir(path.parent) == ["run"]


def test_what_is_not_a_checkpoint_is_not_replaced(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("dear diary")
    with pytest.raises(FileExistsError, match="is not a checkpoint"):
        write(tmp_path / "notes")
    assert (tmp_path / "notes" / "diary.txt").read_text() == "dear diary"


def test_every_flipped_bit_is_seen(path):
    for name in ("data.bin", "meta.json"):
        content = (path / name).read_bytes()
        for at in range(0, len(content), 3):
            (path / name).write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
                read_meta(path)
        (path / name).write_bytes(content)
    read_meta(path)


def test_a_missing_or_foreign_file_is_named(path):
    (path / "data.bin").rename(path / "other")
    with pytest.raises(CheckpointError, match=r"data\.bin: file of the checkpoint is missing"):
        read_meta(path)
    with pytest.raises(FileNotFoundError, match="is not a checkpoint folder"):
        read_meta(path / "nowhere")
    (path / "meta.json").unlink()
    with pytest.raises(CheckpointError, match="not a checkpoint's description"):
        read_meta(path)


def test_names_cannot_lead_outside(path):
    (path.parent / "secret").write_text("x")
    content = {"files": {"../secret": run_folder._file_digest(path.parent / "secret")}}
    meta = {**content, "checksum": run_folder._content_digest(content)}
    (path / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(CheckpointError, match="missing"):
        read_meta(path)
