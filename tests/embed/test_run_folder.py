"""The folder of a checkpoint: whole or not there, and every damage is seen."""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.embed import run_folder
from headrace.embed.run_folder import CheckpointError, fingerprint, read_folder, read_meta, write_folder
from headrace.formats.manifest import file_blake2b


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
    assert fingerprint(path) == ""
    with pytest.raises(CheckpointError, match=r"not a checkpoint folder: it has no meta\.json$"):
        read_meta(path)


def test_names_cannot_lead_outside(path):
    (path.parent / "secret").write_text("x")
    content = {"files": {"../secret": file_blake2b(path.parent / "secret")}}
    meta = {**content, "checksum": run_folder._content_digest(content)}
    (path / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(CheckpointError, match="missing"):
        read_meta(path)


@pytest.mark.parametrize("text", ["[1]", "3", "null", '"x"', "{}", '{"checksum": 1, "files": []}', "[" * 9, ""])
def test_a_description_that_is_no_mapping_of_the_right_kind(path, text):
    (path / "meta.json").write_text(text)
    with pytest.raises(CheckpointError, match="not a checkpoint's description"):
        read_meta(path)


def test_a_link_stays_a_link(path, tmp_path):
    (tmp_path / "latest").symlink_to("run")
    write(tmp_path / "latest", "two")
    assert (tmp_path / "latest").is_symlink()
    assert (path / "data.bin").read_text() == "two"
    assert sorted(os.listdir(tmp_path)) == ["latest", "run"]
    assert read_folder(tmp_path / "latest", lambda folder, meta: folder) == path


def test_a_dangling_link_is_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "latest").symlink_to("disk/run")
    write(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert read_meta(tmp_path / "disk" / "run")["step"] == 3
    assert os.listdir(tmp_path / "disk") == ["run"]


def test_a_circle_of_links_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        write_folder(tmp_path / "a", {}, lambda folder: pytest.fail("written"))
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_failed_second_rename_puts_the_old_one_back(path, monkeypatch):
    rename = os.rename

    def failing(source, target):
        if str(source).endswith(".tmp"):
            raise OSError("no")
        rename(source, target)

    monkeypatch.setattr(run_folder, "_exchange", lambda one, other: False)
    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="no"):
        write(path, "two")
    assert (path / "data.bin").read_text() == "one"
    assert os.listdir(path.parent) == ["run"]


def test_a_checkpoint_is_read_where_a_kill_between_two_renames_left_it(path):
    aside = run_folder.temporary_folder(path).with_suffix(".old")
    path.rename(aside)
    assert read_folder(path, lambda folder, meta: (folder, meta["step"])) == (aside, 3)


@pytest.mark.parametrize("fails", [False, True])
def test_reading_begins_again_if_the_folder_was_replaced(path, fails):
    seen = []

    def read(folder, meta):
        seen.append((folder / "data.bin").read_text())
        if len(seen) == 1:
            write(path, "two")
            if fails:
                raise CheckpointError("a file was missing")
        return seen[-1]

    assert read_folder(path, read) == "two"
    assert seen == ["one", "two"]


@pytest.mark.parametrize("exchange", [True, False])
def test_readers_beside_a_writer_always_find_one_whole_checkpoint(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(run_folder, "_exchange", lambda one, other: False)
    path, stop = tmp_path / "run", threading.Event()

    def save(number):
        def files(folder):
            for name in "abcd":
                (folder / name).write_text(str(number))

        write_folder(path, {"step": number}, files)

    def read(folder, meta):
        mixed = {(folder / name).read_text() for name in "abcd"} != {str(meta["step"])}
        return -9 if mixed else meta["step"]

    def read_on():
        last = -1
        while not stop.is_set():
            step = read_folder(path, read)
            assert step >= last
            last = step
        return last

    save(0)
    with ThreadPoolExecutor(2) as readers:
        found = [readers.submit(read_on) for _ in range(2)]
        try:
            for number in range(1, 25):
                save(number)
                time.sleep(0.02)
        finally:
            stop.set()
        assert all(0 <= one.result(timeout=20) < 25 for one in found)
    assert os.listdir(tmp_path) == ["run"]


def test_reading_gives_up_on_a_folder_that_is_never_left_alone(path):
    count = iter(range(100))
    with pytest.raises(CheckpointError, match="was replaced 5 times while it was read"):
        read_folder(path, lambda folder, meta: write(path, str(next(count))))
    assert next(count) == 5


def test_a_damaged_folder_is_read_once(path):
    (path / "data.bin").write_text("other")
    with pytest.raises(CheckpointError, match=r"data\.bin: checksum differs"):
        read_folder(path, lambda folder, meta: pytest.fail("read"))
