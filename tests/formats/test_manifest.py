"""The manifest: written in one step, believed only when it is sound."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.formats.errors import ManifestError
from headrace.formats.manifest import (
    Manifest,
    ManifestFile,
    check_rows,
    check_size,
    describe_file,
    read_manifest,
    write_manifest,
)

EMPTY_HASH = "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"  # BLAKE2b-256 of no bytes
ENTRY = {"bytes": 0, "rows": 0, "blake2b": EMPTY_HASH}


def document(**changes: Any) -> dict[str, Any]:
    return {"version": 1, "files": {"day_0": dict(ENTRY)}, "parameters": {}} | changes


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "día 0.gz"
    path.write_bytes(b"abc\n")
    manifest = Manifest(
        files={path.name: describe_file(path, rows=1)}, parameters={"seed": 7, "schema": {"labels": []}}
    )
    assert write_manifest(tmp_path, manifest) == tmp_path / "manifest.json"
    assert read_manifest(tmp_path) == manifest
    assert manifest.files[path.name].bytes == 4
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, "manifest.json"])


def test_the_hash_is_blake2b_256(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    assert describe_file(tmp_path / "x", rows=0) == ManifestFile(**ENTRY)


def test_a_failed_write_leaves_the_old_one(tmp_path: Path) -> None:
    write_manifest(tmp_path, Manifest(files={}))
    with pytest.raises(TypeError):
        write_manifest(tmp_path, Manifest(files={}, parameters={"x": object()}))
    with pytest.raises(ValueError):
        write_manifest(tmp_path, Manifest(files={}, parameters={"x": float("nan")}))
    with pytest.raises(ManifestError, match="plain file name"):
        write_manifest(tmp_path, Manifest(files={"../x": ManifestFile(**ENTRY)}))
    assert read_manifest(tmp_path) == Manifest(files={})
    assert os.listdir(tmp_path) == ["manifest.json"]


def test_no_manifest_is_none(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"version": 1, "version": 1}', "given twice"),
        ("[]", "is a mapping"),
        (json.dumps(document(version=2)), "version 2 is unknown"),
        (json.dumps(document(version=True)), "version True is unknown"),
        (json.dumps(document(version="1")), "version '1' is unknown"),
        (json.dumps({"version": 1, "files": {}}), "has the keys"),
        (json.dumps(document(extra=1)), "has the keys"),
        (json.dumps(document(files=[])), "files is a mapping"),
        (json.dumps(document(parameters=[])), "parameters is a mapping"),
        (json.dumps(document(files={"day_0": 5})), "is a mapping"),
        (json.dumps(document(files={"day_0": {"bytes": 1}})), "has the keys"),
    ],
)
def test_an_unsound_manifest_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ManifestError, match=told) as caught:
        read_manifest(tmp_path)
    assert caught.value.path == str(tmp_path / "manifest.json")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ManifestError, match="UTF-8"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "a\0b", "manifest.json"])
def test_names_are_plain_file_names(tmp_path: Path, name: str) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(document(files={name: ENTRY})))
    with pytest.raises(ManifestError, match="not a plain file name"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bytes", -1), ("rows", -1), ("rows", 1.0), ("rows", True), ("bytes", "1"), ("bytes", None), ("rows", 2**63),
        ("blake2b", ""), ("blake2b", "A" * 64), ("blake2b", None), ("blake2b", "0" * 63),
    ],
)  # fmt: skip
def test_values_are_checked(tmp_path: Path, key: str, value: Any) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(document(files={"day_0": ENTRY | {key: value}})))
    with pytest.raises(ManifestError, match=f"'day_0': {key}="):
        read_manifest(tmp_path)


def test_a_file_is_compared_with_its_entry(tmp_path: Path) -> None:
    path = tmp_path / "day_0"
    path.write_bytes(b"abc\n")
    entry = describe_file(path, rows=1)
    for verify in ("off", "size", "full"):
        check_size(entry, str(path), verify=verify)  # type: ignore[arg-type]
        check_rows(entry, str(path), 1, verify=verify)  # type: ignore[arg-type]
    with pytest.raises(ManifestError, match="2 rows, the manifest says 1"):
        check_rows(entry, str(path), 2, verify="size")
    path.write_bytes(b"abd\n")
    check_size(entry, str(path), verify="size")
    with pytest.raises(ManifestError, match="BLAKE2b"):
        check_size(entry, str(path), verify="full")
    path.write_bytes(b"ab\n")
    check_size(entry, str(path), verify="off")
    with pytest.raises(ManifestError, match="3 bytes, the manifest says 4"):
        check_size(entry, str(path), verify="size")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (os.mkdir, "not a regular file"),
        (os.mkfifo, "not a regular file"),  # opening it would wait for a writer
        (lambda path: os.symlink("manifest.json", path), "cannot be read: Too many levels of symbolic links"),
        (lambda path: os.symlink("nowhere", path), "a symbolic link to nothing"),
    ],
)
def test_a_manifest_is_a_file(tmp_path: Path, make: Any, told: str) -> None:
    make(tmp_path / "manifest.json")
    with pytest.raises(ManifestError, match=told) as caught:
        read_manifest(tmp_path)
    assert caught.value.path == str(tmp_path / "manifest.json")


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    entry = ManifestFile(bytes=np.int64(0), rows=0, blake2b=EMPTY_HASH)  # type: ignore[arg-type]
    write_manifest(tmp_path, Manifest(files={"x": entry}))
    assert read_manifest(tmp_path) == Manifest(files={"x": ManifestFile(**ENTRY)})
