"""A whole training run as one folder: loader position, index, embedding rows, dense model and its optimizer.

=====================  ===========================================================================================
`meta.json`            version, step, schema, hyper-parameters of the stage, checksums of the files, and as plain data
                       (see `plain_data.py`) the loader's state, the extras, and what is no array of the model's and
                       the optimizer's state
`index.arrow`          the index's own snapshot
`rows_<g>.arrow`       written rows of group g: location uint64, row fixed-size list of float32 (with optimizer state)
`dense.npz`            tensors of the model's state
`dense_optimizer.npz`  tensors of the optimizer's state
`state.npz`            arrays in the loader's state and in the extras
=====================  ===========================================================================================

Rows that were never written are not stored: they are a function of seed and key, so seed and initialiser must agree.
Nothing is pickled. The arena is not stored: a run continues in either mode, with any window and capacity.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from headrace.embed.plain_data import decode, encode
from headrace.embed.run_folder import CheckpointError, read_meta, write_folder
from headrace.embed.stage import EmbeddingStage
from headrace.formats.schema import Schema, SchemaError

VERSION = 1

Array = npt.NDArray[Any]
_PARTS = {"loader_state": "state", "extra": "state", "dense": "dense", "dense_optimizer": "dense_optimizer"}


class WritesSnapshot(Protocol):
    """The part of an index that saving needs."""

    def write_snapshot(self, path: str) -> None: ...


class ReadsSnapshot(Protocol):
    """The part of an index that restoring needs; it must be empty."""

    def read_snapshot(self, path: str) -> None: ...


def save_run(
    path: str | os.PathLike[str],
    *,
    loader_state: Mapping[str, Any],
    index: WritesSnapshot,
    stage: EmbeddingStage,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    step: int,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write the run as of now, after ``stage.step`` of a batch and before the next one, to the folder `path`.

    The folder appears whole or not at all, and replaces an earlier checkpoint of that name. `step` and `extra` are the
    caller's. TypeError for a state that is not plain data, before the old checkpoint is touched.
    """
    arrays: dict[str, list[Array]] = {name: [] for name in sorted(set(_PARTS.values()))}
    values = {
        "loader_state": loader_state,
        "extra": extra or {},
        "dense": dict(model.state_dict()),
        "dense_optimizer": None if optimizer is None else optimizer.state_dict(),
    }
    meta = {
        "version": VERSION,
        "step": step,
        "schema": stage.schema.to_dict(),
        "stage": _hyper_parameters(stage),
        **{part: encode(values[part], arrays[file], part) for part, file in _PARTS.items()},
    }

    def write_files(folder: Path) -> None:
        index.write_snapshot(str(folder / "index.arrow"))
        state = stage.state_arrays()
        for g in range(len(stage.stores)):
            _write_rows(folder / f"rows_{g}.arrow", state[f"locations_{g}"], state[f"rows_{g}"])
        for name, found in arrays.items():
            named: dict[str, Any] = {f"a{i}": array for i, array in enumerate(found)}
            np.savez(folder / f"{name}.npz", **named)

    write_folder(Path(path), meta, write_files)


@dataclass(frozen=True)
class SavedRun:
    """A verified checkpoint. `loader_state`, `step` and `extra` are as saved; :meth:`restore` does the rest."""

    path: Path
    step: int
    loader_state: dict[str, Any]
    extra: dict[str, Any]
    schema: Schema
    stage_options: dict[str, Any]
    dense: dict[str, torch.Tensor]
    dense_optimizer: dict[str, Any] | None

    @property
    def index_path(self) -> Path:
        """The snapshot that the index wrote."""
        return self.path / "index.arrow"

    def restore(
        self,
        *,
        stage: EmbeddingStage,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        index: ReadsSnapshot | None = None,
    ) -> None:
        """Put rows, model, optimizer and, if given, the (empty) index into the saved state; the stage takes its `lr`.

        CheckpointError, before anything changes, if the stage has another schema, seed, initialiser or eps, or if an
        optimizer is given and none was saved or the other way round.
        """
        self._check(stage, optimizer)
        rows = self._read_rows(len(stage.stores))
        if index is not None:
            index.read_snapshot(str(self.index_path))
        stage.load_state_arrays(rows)
        stage.lr = self.stage_options["lr"]
        model.load_state_dict(self.dense)
        if optimizer is not None:
            optimizer.load_state_dict(self.dense_optimizer)  # type: ignore[arg-type]

    def _check(self, stage: EmbeddingStage, optimizer: torch.optim.Optimizer | None) -> None:
        if stage.schema != self.schema:
            what = "; ".join(_differences(self.schema, stage.schema))
            raise CheckpointError(f"{self.path} was saved with another schema: {what}")
        for name, value in _hyper_parameters(stage).items():
            if name != "lr" and value != self.stage_options.get(name):
                saved = self.stage_options.get(name)
                raise CheckpointError(f"{self.path} was saved with {name}={saved!r}, the stage has {name}={value!r}")
        if (optimizer is None) != (self.dense_optimizer is None):
            had = "no optimizer" if self.dense_optimizer is None else "an optimizer"
            raise CheckpointError(f"{self.path} was saved with {had} of the dense model; restore it the same way")

    def _read_rows(self, groups: int) -> dict[str, Array]:
        state: dict[str, Array] = {}
        for g in range(groups):
            state[f"locations_{g}"], state[f"rows_{g}"] = _read_rows(self.path / f"rows_{g}.arrow")
        return state


def load_run(path: str | os.PathLike[str]) -> SavedRun:
    """Read and verify what :func:`save_run` wrote; FileNotFoundError, or CheckpointError that names the bad file."""
    folder = Path(path)
    meta = read_meta(folder)
    if meta.get("version") != VERSION:
        raise CheckpointError(f"{folder} has version {meta.get('version')!r}; this release reads version {VERSION}")
    arrays = {name: _read_arrays(folder / f"{name}.npz") for name in sorted(set(_PARTS.values()))}
    parts = {part: decode(meta[part], arrays[file]) for part, file in _PARTS.items()}
    try:
        schema = Schema.from_dict(meta["schema"])
    except SchemaError as error:
        raise CheckpointError(f"{folder}: its schema is not one of this release: {error}") from error
    return SavedRun(path=folder, step=meta["step"], schema=schema, stage_options=meta["stage"], **parts)


def _differences(saved: Schema, present: Schema) -> list[str]:
    """One phrase for each kind of column or table that differs."""
    found = []
    for kind, before in saved.to_dict().items():
        now = present.to_dict()[kind]
        if before != now:
            lost = [item for item in before if item not in now]
            new = [item for item in now if item not in before]
            found.append(f"{kind} (saved: {lost}, now: {new})" if lost or new else f"the order of {kind}")
    return found


def _hyper_parameters(stage: EmbeddingStage) -> dict[str, Any]:
    return {"lr": stage.lr, "eps": stage.eps, "seed": stage.seed, "initializer": stage.initializer.to_dict()}


def _read_arrays(path: Path) -> list[Array]:
    with np.load(path, allow_pickle=False) as file:
        return [file[f"a{i}"] for i in range(len(file.files))]


def _write_rows(path: Path, locations: Array, rows: Array) -> None:
    width = rows.shape[1]
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), width)
    table = pa.table({"location": pa.array(locations), "row": column})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1 << 16)


def _read_rows(path: Path) -> tuple[Array, Array]:
    with pa.OSFile(str(path), "rb") as source, pa.ipc.open_file(source) as reader:
        table = reader.read_all()
    if table.schema.names != ["location", "row"] or not pa.types.is_fixed_size_list(table.schema.field("row").type):
        raise CheckpointError(f"{path}: columns {table.schema.names} are not those of rows")
    width = table.schema.field("row").type.list_size
    values = table.column("row").combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return table.column("location").to_numpy(), values.reshape(-1, width)
