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

import copy
import os
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, SupportsIndex

import numpy as np
import torch

from headrace.embed.arguments import check_integer
from headrace.embed.arrays import Array
from headrace.embed.optimizers import check_lr
from headrace.embed.plain_data import decode, encode
from headrace.embed.restore_checks import check_dense_state, check_model, check_optimizer, check_schema
from headrace.embed.rows_file import read_rows, write_rows
from headrace.embed.run_folder import CheckpointError, fingerprint, read_folder, write_folder
from headrace.embed.saved_parts import agree_to_save, check_part, part_of
from headrace.embed.stage import EmbeddingStage
from headrace.embed.stage_optimizer import StageOptimizer
from headrace.formats.checks import check_flag, check_type
from headrace.formats.schema import Schema, SchemaError
from headrace.indexer.dit import DIT

VERSION = 1

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
    step: SupportsIndex,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write the run as of now, after ``stage.step`` of a batch and before the next one, to the folder `path`.

    The folder appears whole or not at all, and replaces an earlier checkpoint of that name; a link at `path` stays a
    link (see :func:`headrace.embed.run_folder.write_folder`). `step` (an integer from 0 on) and `extra` are the
    caller's. TypeError or ValueError for a state that is not plain data, another `step`, or an index that is not the
    stage's (another object, or with fewer rows than the stage has written), and RuntimeError while gradients wait for a
    step (they would be lost; those that are not finite are not missed), before anything is written.

    Over ranks all call it, after the same step, each with a `path` of its own, for the rows that it owns, and a model
    that is the same on all (compared unless ``average_gradients`` did): RankMismatchError and ValueError otherwise.
    """
    number = check_integer("step", step, least=0)
    _check_parts(index, stage, model, optimizer, "write_snapshot")
    check_type("loader_state", loader_state, Mapping, "what loader.state_dict() gives")
    check_type("extra", extra, (Mapping, type(None)), "a mapping of plain data of your own")
    stage.check_nothing_waits("save_run")
    stage.check_index(index, "the index given to save_run")
    _check_index(index, stage)
    agree_to_save(stage, Path(path), model, number)
    arrays: dict[str, list[Array]] = {name: [] for name in sorted(set(_PARTS.values()))}
    values = {
        "loader_state": loader_state,
        "extra": extra or {},
        "dense": _model_state(model, stage),
        "dense_optimizer": None if optimizer is None else optimizer.state_dict(),
    }
    meta = {
        "version": VERSION,
        "step": number,
        "part": part_of(stage),
        "schema": stage.schema.to_dict(),
        "stage": _hyper_parameters(stage),
        **{part: encode(values[part], arrays[file], part) for part, file in _PARTS.items()},
    }

    def write_files(folder: Path) -> None:
        index.write_snapshot(str(folder / "index.arrow"))
        state = stage.state_arrays()
        for g in range(len(stage.stores)):
            write_rows(folder / f"rows_{g}.arrow", state[f"locations_{g}"], state[f"rows_{g}"])
        for name, found in arrays.items():
            named: dict[str, Any] = {f"a{i}": array for i, array in enumerate(found)}
            np.savez(folder / f"{name}.npz", **named)

    write_folder(Path(path), meta, write_files)


@dataclass(frozen=True)
class SavedRun:
    """A verified checkpoint. `loader_state`, `step` and `extra` are as saved; :meth:`restore` does the rest."""

    path: Path
    step: int
    loader_state: dict[str, Any] = field(repr=False)
    extra: dict[str, Any]
    schema: Schema = field(repr=False)
    stage_options: dict[str, Any] = field(repr=False)
    part: list[int] | None
    dense: dict[str, torch.Tensor] = field(repr=False)
    dense_optimizer: dict[str, Any] | None = field(repr=False)
    fingerprint: str = field(repr=False)

    @property
    def index_path(self) -> Path:
        """The snapshot that the index wrote."""
        return self.path / "index.arrow"

    def restore(
        self,
        *,
        index: ReadsSnapshot | None,
        stage: EmbeddingStage,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        training: bool = True,
    ) -> None:
        """Put rows, model, optimizer and the (empty) index into the saved state; the stage takes its `lr`, the other
        hyper-parameters of its optimizer and the number of its steps, and from now on the rows are found by `index`.
        ``index=None`` leaves the index to the caller, who has it read `index_path`; the rows go with that of the next
        batch.

        ``training=False`` is for scoring and serving: the optimizer, and the model, may be left out.

        CheckpointError, before anything changes, if the stage has another schema (labels apart), seed, initialiser or
        eps (in training), the model other names or shapes, the optimizer other groups or options, if an optimizer is
        given and none was saved or the other way round, if rows are damaged, if model or optimizer refuse their state,
        or if a newer checkpoint has taken the place of this one since :func:`load_run`. What the index refuses, and
        MemoryError, is raised with the rest as it was.
        """
        _check_parts(index, stage, model, optimizer, "read_snapshot")
        check_part(self.part, stage, self.path, self.step)
        self._check_stage(stage, training=check_flag("training", training))
        self._check_dense(stage, model, optimizer, training=training)
        with self._unless_replaced():
            rows = self._read_rows(stage)
        also = partial(self._load_rest, stage, index)
        with self._dense_put_back_on_error(stage, model, optimizer), stage.state_to_load(rows, also) as load:
            self._load_dense(model, optimizer)
            if index is not None:
                with self._unless_replaced("; the index given may hold that one's keys: make it anew"):
                    index.read_snapshot(str(self.index_path))
            load()

    def _load_rest(self, stage: EmbeddingStage, index: ReadsSnapshot | None) -> None:
        stage.use_index(index, "the index restored")
        if "optimizer" in self.stage_options:
            stage.optimizer().load_state_dict(self.stage_options["optimizer"])
        else:  # of a release whose stages had one learning rate and no number of steps
            stage.lr = self.stage_options["lr"]

    def _load_dense(self, model: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None) -> None:
        try:
            if model is not None:
                model.load_state_dict(self.dense)
            if optimizer is not None:
                optimizer.load_state_dict(self.dense_optimizer)  # type: ignore[arg-type]
        except Exception as error:  # of whatever kind: the classes are the user's
            raise CheckpointError(
                f"{self.path}: the model or its optimizer does not take its state: {error}"
            ) from error

    @contextmanager
    def _dense_put_back_on_error(
        self, stage: EmbeddingStage, model: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None
    ) -> Iterator[None]:
        """The dense part is small beside the rows: it is loaded first, and a copy of it is kept meanwhile."""
        before = None if model is None else copy.deepcopy(_model_state(model, stage))
        of_optimizer = None if optimizer is None else copy.deepcopy(optimizer.state_dict())
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the first error is the one to tell
                if model is not None and before is not None:
                    model.load_state_dict(before, strict=False)
                if optimizer is not None and of_optimizer is not None:
                    optimizer.load_state_dict(of_optimizer)
            raise

    def _check_stage(self, stage: EmbeddingStage, *, training: bool) -> None:
        check_schema(self.schema, stage.schema, str(self.path))
        for name, value in _hyper_parameters(stage).items():
            saved = self.stage_options.get(name, {} if name == "table_initializers" else None)
            free = ("lr", "optimizer") if training else ("lr", "optimizer", "eps")
            if name not in free and value != saved:
                raise CheckpointError(f"{self.path} was saved with {name}={saved!r}, the stage has {name}={value!r}")
        if "optimizer" in self.stage_options:
            try:
                stage.optimizer().check_state_dict(self.stage_options["optimizer"])
            except (ValueError, TypeError) as error:
                raise CheckpointError(f"{self.path}: the optimizer of the rows: {error}") from error

    def _check_dense(
        self,
        stage: EmbeddingStage,
        model: torch.nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        *,
        training: bool,
    ) -> None:
        where = str(self.path)
        if model is None and (training or optimizer is not None):
            raise CheckpointError(f"{where}: model= is missing; only with training=False rows are restored alone")
        if model is not None:
            with stage.rows_saved_elsewhere():
                check_model(self.dense, model, where)
        if optimizer is None and self.dense_optimizer is not None and training:
            raise CheckpointError(
                f"{where} was saved with an optimizer of the dense model; restore it the same way, or with "
                "training=False to score only"
            )
        if optimizer is not None and self.dense_optimizer is None:
            raise CheckpointError(f"{where} was saved with no optimizer of the dense model; restore it the same way")
        if optimizer is not None and self.dense_optimizer is not None:
            check_optimizer(self.dense_optimizer, optimizer, where)

    def _read_rows(self, stage: EmbeddingStage) -> dict[str, Array]:
        state: dict[str, Array] = {}
        for g in range(len(stage.stores)):
            state[f"locations_{g}"], state[f"rows_{g}"] = read_rows(self.path / f"rows_{g}.arrow")
        try:
            stage.check_state_arrays(state)
        except ValueError as error:
            raise CheckpointError(f"{self.path}: {error}") from error
        return state

    @contextmanager
    def _unless_replaced(self, consequence: str = "") -> Iterator[None]:
        """What is read within it is of this checkpoint: one that lost its name never gets it back."""
        try:
            yield
        except (OSError, ValueError):
            if fingerprint(self.path) == self.fingerprint:
                raise
        if fingerprint(self.path) != self.fingerprint:
            raise CheckpointError(f"{self.path} was replaced by a newer checkpoint; call load_run again{consequence}")


def load_run(path: str | os.PathLike[str]) -> SavedRun:
    """Read and verify what :func:`save_run` wrote; FileNotFoundError, or CheckpointError that names the bad file."""
    return read_folder(Path(path), _load)


def _load(folder: Path, meta: dict[str, Any]) -> SavedRun:
    if meta.get("version") != VERSION:
        raise CheckpointError(f"{folder} has version {meta.get('version')!r}; this release reads version {VERSION}")
    arrays = {name: _read_arrays(folder / f"{name}.npz") for name in sorted(set(_PARTS.values()))}
    try:
        parts = {part: decode(meta[part], arrays[file]) for part, file in _PARTS.items()}
        check_lr(meta["stage"]["lr"])
        number = check_integer("step", meta["step"], least=0)
        description = meta["schema"]
        part = None if "part" not in meta else [check_integer("part", value, least=0) for value in meta["part"]]
        if part is not None and (len(part) != 2 or part[0] >= part[1]):
            raise ValueError(f"part={part!r} is no rank and number of ranks")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{folder}: its description is not one of this release: {error!r}") from error
    check_dense_state(parts["dense"], parts["dense_optimizer"], str(folder))
    try:
        schema = Schema.from_dict(description)
    except (SchemaError, UnicodeEncodeError) as error:
        raise CheckpointError(f"{folder}: its schema is not one of this release: {error}") from error
    return SavedRun(
        path=folder,
        step=number,
        schema=schema,
        stage_options=meta["stage"],
        part=part,
        fingerprint=fingerprint(folder),
        **parts,
    )


def _check_parts(index: object, stage: object, model: object, optimizer: object, method: str) -> None:
    """TypeError for what is of another type; what may be missing is seen elsewhere."""
    check_type("stage", stage, EmbeddingStage, "a headrace.EmbeddingStage")
    if not hasattr(index, method) and (index is not None or method == "write_snapshot"):
        check_type("index", index, DIT, "a headrace.DIT, as loader.index")
    if model is not None or method == "write_snapshot":
        check_type("model", model, torch.nn.Module, "a torch.nn.Module, the dense part of the model")
    if isinstance(optimizer, StageOptimizer):
        raise TypeError("optimizer is that of the dense part, or None: the stage's own is kept with its rows")
    wanted = "a torch.optim.Optimizer (that of the dense part), or None"
    check_type("optimizer", optimizer, (torch.optim.Optimizer, type(None)), wanted)


def _check_index(index: object, stage: EmbeddingStage) -> None:
    """Every written row has a key, and every key is in the index of the stage."""
    if not isinstance(index, Sized):
        return
    stage.flush()
    known, written = len(index), sum(store.num_written for store in stage.stores)
    if known < written:
        raise ValueError(
            f"this index does not belong to the stage: it knows {known} rows, and the stage has written {written}"
        )


def _model_state(model: torch.nn.Module, stage: EmbeddingStage) -> dict[str, Any]:
    with stage.rows_saved_elsewhere():
        return dict(model.state_dict())


def _hyper_parameters(stage: EmbeddingStage) -> dict[str, Any]:
    optimizer = stage.optimizer().state_dict()
    first = (optimizer["param_groups"] or [stage.optimizer().defaults])[0]
    return {
        "lr": first["lr"],
        "eps": first["eps"],
        "seed": stage.seed,
        "initializer": stage.initializer.to_dict(),
        "table_initializers": {name: one.to_dict() for name, one in sorted(stage.table_initializers.items())},
        "optimizer": optimizer,
    }


def _read_arrays(path: Path) -> list[Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return [file[f"a{i}"] for i in range(len(file.files))]
    except MemoryError:
        raise
    except Exception as error:  # the readers of zip files and of arrays raise whatever the bytes lead them to
        if isinstance(error, OSError) and error.errno:  # the system's, not theirs
            raise
        raise CheckpointError(f"{path}: not a file of arrays: {error!r}") from error
