"""Lists of files: what is found, in which order, and their digest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.formats.files import digest, list_files


def touch(folder: Path, *names: str) -> list[Path]:
    paths = [folder / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return paths


def names(files: tuple[str, ...]) -> list[str]:
    return [os.path.basename(f) for f in files]


@pytest.mark.parametrize("pattern", ["", "*", "day*"])
def test_folders_and_patterns_are_in_natural_order(tmp_path: Path, pattern: str) -> None:
    # L11, L14
    touch(tmp_path, "day_10", "day_2", "day_1.gz", "day_1", "day_02", "day_0")
    found = list_files(tmp_path / pattern if pattern else tmp_path)
    assert names(found) == ["day_0", "day_1", "day_1.gz", "day_02", "day_2", "day_10"]
    assert all(os.path.isabs(f) for f in found)


def test_natural_order_over_folders(tmp_path: Path) -> None:
    touch(tmp_path, "10/a", "2/b", "2/a10", "2/a9")
    found = list_files(str(tmp_path / "*" / "*"))
    assert [os.path.relpath(f, tmp_path) for f in found] == ["2/a9", "2/a10", "2/b", "10/a"]
    assert list_files(str(tmp_path / "**")) == found


def test_a_list_keeps_its_order_and_its_repetitions(tmp_path: Path) -> None:
    a, b = touch(tmp_path, "day_1", "day_2")
    assert names(list_files([b, str(a), b])) == ["day_2", "day_1", "day_2"]
    assert names(list_files([str(tmp_path / "*2"), tmp_path])) == ["day_2", "day_1", "day_2"]


def test_manifest_hidden_and_quarantine_files_are_no_data(tmp_path: Path) -> None:
    touch(tmp_path, "day_0", "manifest.json", ".hidden", "_SUCCESS", "bad.tsv", "bad.tsv.jsonl", "rows.jsonl", "sub/x")
    assert names(list_files(tmp_path)) == ["day_0", "rows.jsonl"]
    assert names(list_files(str(tmp_path / "*"))) == ["day_0", "rows.jsonl"]
    assert names(list_files(tmp_path / "bad.tsv")) == ["bad.tsv"]


@pytest.mark.parametrize("name", ["日.tsv", "día 1.gz", "day_[1]", "a*b", "ü"])
def test_any_name_is_a_path(tmp_path: Path, name: str) -> None:
    # L84; a name with glob characters that exists is a name
    (path,) = touch(tmp_path, name)
    assert list_files(str(path)) == (str(path),)
    assert list_files(tmp_path) == (str(path),)


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "x")
    monkeypatch.chdir(tmp_path)
    assert list_files("x") == list_files(".") == list_files("*") == (str(tmp_path / "x"),)


@pytest.mark.parametrize(
    ("path", "told"),
    [("absent", "absent"), ("ab*ent", r"ab\*ent"), ("hidden", "hidden.*1 files there are hidden"), ("", "empty")],
)
def test_nothing_found_says_what_was_searched(tmp_path: Path, path: str, told: str) -> None:
    touch(tmp_path, "hidden/.x")
    with pytest.raises(FileNotFoundError, match=told):
        list_files(str(tmp_path / path) if path else path)
    with pytest.raises(FileNotFoundError, match="empty list"):
        list_files([])


def test_digest_is_about_names_order_and_sizes_not_folders(tmp_path: Path) -> None:
    a, b = touch(tmp_path / "1", "a", "b")
    other = touch(tmp_path / "2", "a", "b")
    base = digest(list_files([a, b]))
    assert base == digest(list_files(other))
    assert base != digest(list_files([b, a]))
    assert base != digest(list_files([a]))
    b.write_bytes(b"1")
    assert base != digest(list_files([a, b]))
