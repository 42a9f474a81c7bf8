"""Every public name answers arguments of wrong types with an error that says what is wanted."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import fs

import headrace as H
from headrace.formats.criteo_arrays import DLRM_BIN

WRONG: tuple[Any, ...] = ({"a": 1}, [1, 2], "nonsense.yaml", 3, 2.5, b"x", object(), np.zeros(3), torch.zeros(2))

ACCIDENT = re.compile(
    "object has no attribute|object is not iterable|object is not callable|not subscriptable|truth value|ambiguous|"
    "unhashable|unexpected keyword|can only be converted|not supported between|update sequence"
)
"""Parts of what Python and its libraries say of an object that nobody expected there."""

DATA = frozenset(
    {"Batch", "BatchGroup", "IdColumn", "IndexTable", "SavedRun", "Source", "SourceRange", "SplitBatch", "StepPlan"}
)
"""What the package makes, and checks where it is used."""

OTHERS = frozenset(
    {"Communicator", "FrequencyThreshold", "Node", "PlanVerifier", "WindowPlanner", "average_gradients", "connect"}
)
"""Names with tests of their own for it, or without arguments that a user gives."""

SMALL = H.Schema(sparse=(H.Sparse(name="a", encoding="uint64"),), tables=(H.Table(name="a", dim=2, optimizer="sgd"),))
CRITEO = H.criteo_schema(dim=4)
TEXT = H.TextFormat(name="x", header=True)


def rows() -> H.RowsFrom:
    return H.RowsFrom([{"a": 1}], SMALL)


def small_index() -> H.DIT:
    return H.DIT(H.index_tables(SMALL))


def indexed() -> H.Index:
    return H.Index(rows(), SMALL, small_index())


def block() -> dict[str, Any]:
    source = H.Source(("f",), (H.SourceRange(0, 0, 1),))
    return {"data": pa.record_batch({"a": pa.array([1], pa.uint64())}), "source": source}


def cases(folder: Path) -> Iterator[tuple[Callable[..., Any], dict[str, Any]]]:
    """Each callable with arguments that are right."""
    text = folder / "t.txt"
    text.write_text(("\t".join(["1"] + ["1"] * 13 + ["68fd1e64"] * 26) + "\n") * 8)
    files = {
        "paths": str(text),
        "schema": CRITEO,
        "bad_records": "raise",
        "verify_manifest": "size",
        "filesystem": None,
    }
    stage = H.EmbeddingStage(SMALL)
    yield H.ArrayFiles, {**files, "form": DLRM_BIN, "batch_rows": 10, "modulo": None}
    yield H.ArrowFiles, {**files, "columns": None, "batch_rows": 10, "wrap_negative_ids": False}
    yield H.TarFiles, {**files, "columns": None, "allow_commands": (), "max_member_bytes": 1000}
    yield H.CriteoFiles, {**files, "block_bytes": 1 << 16, "max_line_bytes": 1 << 10}
    yield H.DelimitedFiles, {**files, "text_format": TEXT}
    yield H.JoinedFiles, {**files, "text_format": TEXT, "joins": (), "histories": ()}
    yield H.ArrowStore, {"filesystem": fs.LocalFileSystem(), "options": None, "counts": None}
    yield H.BadRecords, {"mode": "skip", "max_count": 3, "max_rate": 0.1}
    yield H.Join, {"name": "j", "table": None, "key": "a"}
    yield H.HistoryJoin, {"name": "h", "store": None, "key": "a", "time": "t", "columns": {}}
    yield H.HistoryStore, {"folder": str(folder), "verify": "size"}
    yield H.SideTable, {"reader": None, "key": "a"}
    yield H.TextField, {"column": "a", "sources": (), "words": None, "missing": (), "whole_floats": False}
    yield (
        H.TextFormat,
        {"name": "x", "separator": ",", "header": True, "columns": (), "fields": (), "spare_fields": False},
    )
    yield H.FetchOptions, {"range_bytes": 1, "ahead": 1, "attempts": 1, "first_pause_s": 1.0, "stall_timeout_s": 1.0}
    yield H.GrowingFolder, {"path": str(folder), "end_marker": "_END", "poll_s": 0.5, "max_idle_s": 1.0}
    yield H.open_dataset, {"name": "criteo-kaggle", "paths": str(text), "schema": None, "dim": 4, "labels": True}
    yield H.read_manifest, {"folder": str(folder)}
    yield H.generate, {"preset": "no", "out_dir": str(folder / "g"), "rows": 1, "skew": "default", "compression": None}
    yield H.generate, {"preset": "no", "out_dir": str(folder / "g"), "rows": 1, "overwrite": True, "seed": 0}
    yield H.Label, {"name": "x", "binary": True}
    yield H.Dense, {"name": "x", "dtype": "int64", "fill": 0.0, "transform": "identity", "mean": 0.0, "std": 1.0}
    yield H.Sparse, {"name": "a", "table": "", "encoding": "hex32", "pooling": "sum", "missing": "key", "cross": ()}
    yield H.Table, {"name": "a", "dim": 2, "dtype": "float32", "optimizer": "sgd"}
    yield H.Schema, {"labels": (), "dense": (), "sparse": (), "tables": ()}
    yield H.Schema.from_yaml, {"path": str(folder / "none.yaml")}
    yield H.Schema.from_dict, {"data": SMALL.to_dict()}
    yield H.avazu_schema, {"dim": 4, "optimizer": "sgd", "labels": True}
    yield H.taobao_schema, {"dim": 4, "optimizer": "sgd", "labels": True, "context": False}
    yield H.criteo_schema, {"dim": 4, "dense_transform": "log1p", "missing": "key", "labels": True, "multi_hot": False}
    yield H.RowBlock, block()
    yield H.DIT, {"tables": H.index_tables(SMALL), "num_shards": 64, "num_threads": 1, "half_life": None}
    yield H.index_tables, {"schema": SMALL}
    yield H.Index, {"source": rows(), "schema": SMALL, "index": small_index(), "insert": True, "num_workers": 0}
    yield H.PlanWindow, {"source": indexed(), "schema": SMALL, "window": 1, "hot_rows": "auto", "verify": False}
    yield H.ToBatch, {"source": H.PlanWindow(indexed(), SMALL, window=1)}
    yield H.BatchRows, {"source": rows(), "batch_size": 1, "drop_last": False}
    yield H.Map, {"source": rows(), "fn": lambda rows: rows, "num_workers": 0}
    yield H.ParallelMap, {"source": rows(), "fn": lambda rows: rows, "num_workers": 1}
    yield H.Prefetch, {"source": rows(), "prefetch_factor": 2, "timeout_s": None}
    yield H.Shuffle, {"source": rows(), "window_rows": 10, "seed": 0}
    yield H.ReadRows, {"reader": H.CriteoFiles(text, CRITEO), "num_workers": 0, "prefetch_factor": 2}
    yield H.RowsFrom, {"source": [{"a": 1}], "schema": SMALL, "bad_records": "raise", "origin": "x", "unpack": None}
    yield H.from_datapipe, {"pipe": [{"a": 1}], "schema": SMALL}
    yield H.from_webdataset, {"samples": [{"a": 1}], "schema": SMALL}
    for transform in (H.chain, H.keep_rows, H.over_arrow):
        yield lambda fn, made=transform: made(fn), {"fn": lambda rows: rows}
    options = {
        "index": None,
        "communicator": None,
        "hot_rows": "auto",
        "bad_records": None,
        "shuffle": False,
        "seed": 0,
    }
    loader = {"dataset": str(text), "batch_size": 2, "schema": CRITEO, "window": 2, "transform": None, "timeout": 0}
    yield H.DataLoader, {**loader, **options}
    for kind in (H.Constant, H.Normal, H.Uniform):
        yield kind, {{H.Constant: "value", H.Normal: "std", H.Uniform: "high"}[kind]: 1.0}
    devices = {"device": None, "kernels": None, "mode": "direct", "capacity": None, "overlap": True, "num_threads": 1}
    numbers = {"lr": 0.1, "eps": 1e-8, "weight_decay": 0.0, "betas": (0.9, 0.99), "seed": 0, "frozen": ()}
    ranks = {"communicator": None, "wire": "float32", "check_replicas_every": 0, "check_finite": False}
    yield H.EmbeddingStage, {"schema": SMALL, "initializer": None, **devices, **numbers, **ranks}
    for call in (stage, stage.step, stage.skip, stage.forward_sequences):
        yield lambda batch, call=call: call(batch), {"batch": None}
    yield stage.split, {"pooled": torch.zeros(1, 2)}
    yield stage.load_state_dict, {"state_dict": stage.state_dict()}
    yield stage.forget_rows, {"group": 0, "locations": np.zeros(0, np.uint64)}
    yield H.RowDatabase, {"stage": stage, "index": small_index(), "on_nan": "raise"}
    database = H.RowDatabase(H.EmbeddingStage(SMALL), small_index())
    yield database.prefetch, {"ids": {"a": [1]}, "missing": None, "insert": True, "source": None}
    yield database.pull, {"ticket": database.prefetch({})}
    yield database.push, {"ticket": database.prefetch({}), "grads": {}}
    yield H.clip_grad_norm_, {"stage": stage, "parameters": (), "max_norm": 1.0, "norm_type": 2.0}
    table = {"stage": stage, "index": small_index(), "table": "a"}
    yield H.export_table, {**table, "path": str(folder / "out.parquet")}
    yield H.import_rows, {**table, "ids": [1], "vectors": [[1.0, 2.0]], "missing": None}
    yield H.import_table, {**table, "source": pa.table({"id": [1], "vector": [[1.0, 2.0]]})}
    run = {"stage": H.EmbeddingStage(SMALL), "index": small_index(), "model": torch.nn.Linear(1, 1), "optimizer": None}
    yield H.save_run, {"path": str(folder / "run"), "loader_state": {}, **run, "step": 1, "extra": None}
    H.save_run(folder / "saved", loader_state={}, step=1, **run)
    yield H.load_run, {"path": str(folder / "none")}
    yield H.load_run(folder / "saved").restore, {**run, "index": None, "training": True}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_no_wrong_type_is_an_accident(folder: Path) -> None:
    accidents = []
    for call, right in cases(folder):
        for name in right:
            for wrong in WRONG:
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        call(**{**right, name: wrong})
                except (TypeError, ValueError, OSError) as error:
                    if not ACCIDENT.search(str(error)):
                        continue
                    accident = error
                except RuntimeError as error:
                    if "ticket" in str(error):
                        continue
                    accident = error
                except Exception as error:
                    accident = error
                else:
                    continue
                accidents.append(f"{call}({name}={type(wrong).__name__}): {type(accident).__name__}: {accident}")
    assert not accidents, "\n".join(accidents)


def test_every_public_name_is_tried(folder: Path) -> None:
    tried = {getattr(call, "__qualname__", "") for call, _ in cases(folder)} | {"chain", "keep_rows", "over_arrow"}
    public = {
        name
        for name in H.__all__
        if callable(getattr(H, name))
        and not (isinstance(getattr(H, name), type) and issubclass(getattr(H, name), Exception))
    }
    assert public - tried == DATA | OTHERS


SCHEMA = r"schema is a headrace\.Schema \(made in Python, by Schema\.from_dict\(mapping\) or Schema\.from_yaml\(path\)"
BATCH = r"batch is a headrace\.Batch, as a DataLoader .* gives it; .*RowsFrom\(source, schema\).*, not a {}"
INDEX = r"index is a headrace\.DIT, as .*, not a dict"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: H.EmbeddingStage("schema.yaml"), SCHEMA + ".*, not a str"),  # type: ignore[arg-type]
        (lambda: H.EmbeddingStage({"sparse": []}), SCHEMA + ".*, not a dict"),  # type: ignore[arg-type]
        (lambda: H.DataLoader("t.txt", schema={"sparse": []}), SCHEMA + ".*, not a dict"),  # type: ignore[arg-type]
        (lambda: H.CriteoFiles("t.txt", {}), SCHEMA),  # type: ignore[arg-type]
        (lambda: H.index_tables({}), SCHEMA),  # type: ignore[arg-type]
        (lambda: H.RowsFrom([], {}), SCHEMA),  # type: ignore[arg-type]
        (lambda: H.EmbeddingStage(SMALL)({"a": [1]}), BATCH.format("dict")),
        (lambda: H.EmbeddingStage(SMALL)([1, 2]), BATCH.format("list")),
        (lambda: H.EmbeddingStage(SMALL)(torch.zeros(2)), BATCH.format("Tensor")),
        (lambda: H.EmbeddingStage(SMALL).step({}), BATCH.format("dict")),  # type: ignore[arg-type]
        (lambda: H.EmbeddingStage(SMALL).skip({}), BATCH.format("dict")),  # type: ignore[arg-type]
        (lambda: H.DataLoader("t.txt", schema=CRITEO, index={}), INDEX),  # type: ignore[arg-type]
        (lambda: H.Index(rows(), SMALL, {}), INDEX),  # type: ignore[arg-type]
        (lambda: H.RowDatabase(H.EmbeddingStage(SMALL), {}), INDEX),  # type: ignore[arg-type]
        (lambda: H.RowDatabase(small_index(), small_index()), r"stage is a headrace\.EmbeddingStage, not a DIT"),  # type: ignore[arg-type]
        (lambda: H.DataLoader(3, schema=CRITEO), r"dataset is a path .*open_dataset\(name, paths\).*, not a int"),  # type: ignore[arg-type]
        (lambda: H.CriteoFiles(3, CRITEO), "paths are a path, pattern or folder, or a list of such, not a int"),  # type: ignore[arg-type]
        (
            lambda: H.Schema(sparse={"name": "a"}),
            r'each of sparse is a headrace\.Sparse, as Sparse\(name="x"\), not a dict',
        ),  # type: ignore[arg-type]
        (lambda: H.Schema(tables=("a",)), r'each of tables is a headrace\.Table, as Table\(name="x"\), not a str'),  # type: ignore[arg-type]
        (
            lambda: H.clip_grad_norm_(torch.nn.Linear(1, 1).parameters()),
            r"stage is a headrace\.EmbeddingStage; dense par",
        ),  # type: ignore[arg-type]
        (
            lambda: H.EmbeddingStage(SMALL, communicator="gloo"),
            r"communicator is a headrace\.Communicator, as connect\(\)",
        ),  # type: ignore[arg-type]
        (lambda: H.ReadRows("t.txt"), r"reader is a reader of files, as CriteoFiles\(paths, schema\)"),  # type: ignore[arg-type]
    ],
)
def test_it_says_what_is_wanted(folder: Path, call: Callable[[], object], message: str) -> None:
    (folder / "t.txt").write_text("x\n")
    with pytest.raises(TypeError, match=message):
        call()
