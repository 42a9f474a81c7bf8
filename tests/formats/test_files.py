"""Lists of files: what is found, in which order, and their digest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headrace.formats.errors import BadRecordError
from headrace.formats.files import digest, file_sizes, list_files
from headrace.formats.quarantine import append


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


def test_rows_in_the_place_of_paths_are_told_the_way() -> None:
    with pytest.raises(TypeError, match=r"got \{'user': 1\} \(dict\); .* RowsFrom\(source, schema\)"):
        list_files([{"user": 1}])  # type: ignore[list-item]


def test_manifest_hidden_and_quarantine_files_are_no_data(tmp_path: Path) -> None:
    touch(tmp_path, "day_0", "manifest.json", ".hidden", "_SUCCESS", "rows.jsonl", "_sub/x")
    append(tmp_path / "bad.tsv", [(BadRecordError("x", 1, "", b"", "bad"), b"x")])
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
    def of(*files: Path) -> str:
        listed = list_files(files)
        return digest(listed, file_sizes(listed))

    a, b = touch(tmp_path / "1", "a", "b")
    base = of(a, b)
    assert base == of(*touch(tmp_path / "2", "a", "b"))
    assert base != of(b, a)
    assert base != of(a)
    b.write_bytes(b"1")
    assert base != of(a, b)


@pytest.mark.parametrize("entries", ["", "{}\n", "x", '{"file": "x", "line": 1}\n', "[" * 100_000, "[1]\n"])
def test_a_jsonl_file_of_others_hides_nothing(tmp_path: Path, entries: str) -> None:
    touch(tmp_path, "x.txt")
    (tmp_path / "x.txt.jsonl").write_text(entries)
    assert names(list_files(tmp_path)) == ["x.txt", "x.txt.jsonl"]


@pytest.mark.parametrize("pattern", ["", "*"])
@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (lambda p: p.symlink_to("nowhere"), FileNotFoundError, "a symbolic link to 'nowhere', which cannot be opened"),
        (lambda p: p.symlink_to(p.name), FileNotFoundError, "a symbolic link to 'day_1'"),
        (os.mkfifo, ValueError, "not a regular file"),
    ],
)
def test_what_cannot_be_read_is_named_not_left_out(
    tmp_path: Path, pattern: str, make: Any, error: type[Exception], told: str
) -> None:
    touch(tmp_path, "day_0")
    make(tmp_path / "day_1")
    for path in (tmp_path / pattern, tmp_path / "day_1", [tmp_path / "day_1"]):
        with pytest.raises(error, match=f"day_1: {told}"):
            list_files(path)
    (tmp_path / "day_1").rename(tmp_path / "_day_1")  # hidden, and thus not meant
    assert names(list_files(tmp_path / pattern)) == ["day_0"]


def test_a_folder_that_matches_a_pattern_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "day_0", "day_1/x")
    assert names(list_files(tmp_path)) == ["day_0"]  # a folder means the files in it, not below it
    assert names(list_files(str(tmp_path / "**"))) == ["day_0", "x"]
    with pytest.raises(ValueError, match="day_1: a folder matches the pattern"):
        list_files(str(tmp_path / "*"))
    with pytest.raises(ValueError, match="not a regular file"):
        list_files("/dev/null")


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    touch(tmp_path / "1", "day_0")
    (tmp_path / "day_7").symlink_to(tmp_path / "1" / "day_0")
    assert names(list_files(tmp_path)) == names(list_files(tmp_path / "day_7")) == ["day_7"]


@pytest.mark.parametrize("paths", [b"day_0", [b"day_0"], [3], [None], ["day_0", b"x"], [["day_0"]]])
def test_a_path_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: Any) -> None:
    touch(tmp_path, "day_0")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=r"a path is a str or a pathlib\.Path, got"):
        list_files(paths)
