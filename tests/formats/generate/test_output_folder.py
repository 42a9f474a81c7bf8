from __future__ import annotations

import hashlib
import json

import pytest

from headrace.formats.generate.output_folder import (
    FileSet,
    clear,
    holds_exactly,
    manifest_of,
    refuse_unless_empty,
)
from headrace.formats.manifest import Manifest, ManifestFile, write_manifest

OURS = {"preset": "criteo-kaggle", "stream_version": 1}


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def fill(folder, parameters):
    with FileSet(folder, ["a", "b"]) as files:
        files.append(0, 2, b"one\ntwo\n")
        files.append(1, 1, b"three\n")
        write_manifest(folder, Manifest(files=files.commit(), parameters=parameters))


def test_files_appear_together_with_their_digests(tmp_path):
    with FileSet(tmp_path / "new", ["a", "b", "c"], empty=b"-") as files:
        files.append(0, 1, b"x\n")
        files.append(0, 1, b"y\n")
        files.append(2, 1, b"z\n")
        assert not [name for name in listing(tmp_path / "new") if not name.startswith(".")]
        written = files.commit()
    assert listing(tmp_path / "new") == ["a", "b", "c"]
    assert [(tmp_path / "new" / n).read_bytes() for n in "abc"] == [b"x\ny\n", b"-", b"z\n"]
    digest = hashlib.blake2b(b"x\ny\n", digest_size=32).hexdigest()
    assert written["a"] == ManifestFile(bytes=4, rows=2, blake2b=digest)
    assert (written["b"].rows, written["b"].bytes) == (0, 1)


def test_an_error_leaves_nothing_behind(tmp_path):
    def stop_half_way():
        with FileSet(tmp_path, ["a", "b"]) as files:
            files.append(0, 1, b"x\n")
            files.append(1, 1, b"y\n")
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        stop_half_way()
    assert listing(tmp_path) == []


def test_file_numbers_never_go_down(tmp_path):
    with FileSet(tmp_path, ["a", "b"]) as files:
        files.append(1, 1, b"x\n")
        with pytest.raises(ValueError, match="file 0 is already complete"):
            files.append(0, 1, b"y\n")


def test_the_manifest_has_its_version_and_leaves_no_temporary_file(tmp_path):
    fill(tmp_path, {"seed": 1})
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert (content["version"], content["parameters"], list(content["files"])) == (1, {"seed": 1}, ["a", "b"])
    assert listing(tmp_path) == ["a", "b", "manifest.json"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 2, "files": {}}', '{"version": 1, "files": []}'])
def test_a_manifest_of_another_kind_is_none(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    assert manifest_of(tmp_path) is None
    assert manifest_of(tmp_path / "nowhere") is None


def test_a_folder_is_complete_only_as_it_was_written(tmp_path):
    fill(tmp_path, {"seed": 1})
    assert holds_exactly(tmp_path, {"seed": 1})
    assert not holds_exactly(tmp_path, {"seed": 2})
    assert not holds_exactly(tmp_path, {"seed": 1}, subfolders=["eval"])
    (tmp_path / "more").touch()
    assert not holds_exactly(tmp_path, {"seed": 1})
    (tmp_path / "more").unlink()
    (tmp_path / "b").write_bytes(b"thre\n")
    assert not holds_exactly(tmp_path, {"seed": 1})
    (tmp_path / "b").unlink()
    assert not holds_exactly(tmp_path, {"seed": 1})


def test_clearing_removes_what_was_written_and_nothing_else(tmp_path):
    folder = tmp_path / "out"
    fill(folder, OURS)
    for path in (folder / "mine.txt", folder / ".c.partial", tmp_path / "outside"):
        path.touch()
    clear(folder)
    assert listing(folder) == ["mine.txt"]
    assert (tmp_path / "outside").exists()
    clear(tmp_path / "nowhere", remove=True)
    clear(folder, remove=True)
    assert listing(folder) == ["mine.txt"]
    (folder / "mine.txt").unlink()
    clear(folder, remove=True)
    assert not folder.exists()


def test_clearing_follows_no_path_out_of_the_folder(tmp_path):
    folder = tmp_path / "out"
    fill(folder, OURS)
    content = json.loads((folder / "manifest.json").read_text())
    content["files"]["../outside"] = content["files"]["a"]
    (folder / "manifest.json").write_text(json.dumps(content))
    (tmp_path / "outside").touch()
    with pytest.raises(FileExistsError, match="not written by generate"):
        clear(folder)
    assert listing(folder) == ["a", "b", "manifest.json"]  # a manifest that cannot be trusted names nothing
    assert (tmp_path / "outside").exists()


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    refuse_unless_empty(tmp_path)
    refuse_unless_empty(tmp_path / "nowhere")
    (tmp_path / ".train_0.txt.partial").touch()
    with pytest.raises(FileExistsError, match=r"'\.train_0\.txt\.partial', as an interrupted run.*overwrite=True"):
        refuse_unless_empty(tmp_path)
