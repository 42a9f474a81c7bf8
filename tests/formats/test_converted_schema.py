"""Which schema files are read with where none is given."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.fs as fs
import pytest

from headrace.formats.convert import convert
from headrace.formats.criteo import criteo_schema
from headrace.formats.datasets import open_dataset
from headrace.formats.schema import Dense, Label, Schema, Sparse
from tests.support.criteo_text import write_lines

OWN = Schema(labels=(Label(name="label"),), dense=(Dense(name="I1"),), sparse=(Sparse(name="C1", encoding="hex32"),))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_lines(tmp_path / "day_0", 20)
    convert("criteo-kaggle", tmp_path / "day_0", tmp_path / "all")
    convert("parquet", tmp_path / "all", tmp_path / "own", schema=OWN)
    return tmp_path


def test_that_of_the_conversion_with_the_dim_and_labels_asked_for(folder: Path) -> None:
    expected = replace(OWN, tables=tuple(replace(t, dim=4) for t in OWN.tables))
    assert open_dataset("parquet", folder / "own", dim=4).schema == expected
    assert open_dataset("parquet", iter([folder / "own" / "day_0.parquet"]), dim=4).schema == expected
    assert open_dataset("parquet", str(folder / "own" / "*"), dim=4).schema == expected
    assert open_dataset("parquet", folder / "own", dim=4, labels=False).schema == replace(expected, labels=())
    other = open_dataset("parquet", str(folder / "own"), dim=4, filesystem=fs.LocalFileSystem())
    assert other.schema == expected
    assert open_dataset("parquet", folder / "all", dim=4).schema == criteo_schema(dim=4)


def test_that_of_the_caller_goes_before(folder: Path) -> None:
    mine = replace(OWN, dense=())
    assert open_dataset("parquet", folder / "own", schema=mine).schema == mine


def test_criteos_where_nothing_or_two_things_are_said(folder: Path) -> None:
    both = [folder / "own" / "day_0.parquet", folder / "all" / "day_0.parquet"]
    assert open_dataset("parquet", both).schema == criteo_schema()
    manifest = folder / "own" / "manifest.json"
    document = json.loads(manifest.read_text())
    document["parameters"]["tool"] = "another"
    manifest.write_text(json.dumps(document))
    assert open_dataset("parquet", folder / "own").schema == criteo_schema()
    manifest.unlink()
    assert open_dataset("parquet", folder / "own").schema == criteo_schema()
