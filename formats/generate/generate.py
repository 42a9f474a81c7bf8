"""Generate a synthetic data set: the same files for the same parameters, whatever the number of threads."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headrace.formats.checks import check_flag, check_integer
from headrace.formats.generate.auc import ScoreHistogram
from headrace.formats.generate.blocks import BlockText, compress, file_ends, in_order
from headrace.formats.generate.features import FeatureStream
from headrace.formats.generate.labels import LabelModel, build_label_model
from headrace.formats.generate.output_folder import (
    FileSet,
    clear,
    holds_exactly,
    manifest_of,
    refuse_others_data,
    refuse_unless_empty,
    refuse_unless_replaceable,
    sole_writer,
)
from headrace.formats.generate.parameters import Parameters
from headrace.formats.generate.presets import Preset, load_preset
from headrace.formats.manifest import Manifest, write_manifest

EVAL_FOLDER = "eval"
RESULTS = ("click_rate", "auc_of_generator")
"""What a manifest of `generate` tells of the rows."""

_MAX_THREADS = 256


@dataclass(frozen=True)
class GenerateReport:
    """What was written (or found, when `reused`).

    files: names relative to the output folder; bytes: on disk
    click_rate: share of rows with label 1; None without labels or rows
    auc_of_generator: area under the ROC curve of the true log odds against the labels drawn, the best that any model
        can reach; None unless both labels occur
    eval: the same of the evaluation part (whose `files` are in the folder ``eval``), or None
    """

    rows: int
    files: tuple[str, ...]
    bytes: int
    click_rate: float | None
    auc_of_generator: float | None
    seconds: float
    parameters: dict[str, Any]
    reused: bool = False
    eval: GenerateReport | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def generate(
    preset: str,
    out_dir: str | os.PathLike[str],
    *,
    rows: int,
    files: int = 1,
    skew: str = "default",
    seed: int = 0,
    drift: float = 0.0,
    drift_rows: int | None = None,
    compression: str | None = None,
    labels: bool = True,
    rows_per_block: int = 65_536,
    max_cardinality: int | None = None,
    eval_rows: int = 0,
    threads: int = 1,
    overwrite: bool = False,
) -> GenerateReport:
    """Write `rows` rows of `preset` as `files` files of nearly equal length into `out_dir`, then a ``manifest.json``.

    preset: see :func:`~headrace.formats.generate.presets.preset_names`; skew: see ``skew_names``
    drift: share of the ids re-ranked every `drift_rows` rows (default: a day of the original); see ``drift.py``
    compression: None or "gzip" (one member a block of rows)
    labels: False leaves out the label field (Criteo: 39 columns)
    rows_per_block: unit of the random stream; another value gives other rows
    max_cardinality: cap on the distinct ids of every column
    eval_rows: rows of an evaluation part in ``out_dir/eval``, which continues the stream at the next block
    threads: blocks made at the same time; changes nothing in the files
    overwrite: replace what an earlier run wrote, as its manifest lists it; other files in the folder stay. Files that
        are named like generated ones but that no such manifest lists are refused, and so is any file in a folder
        without such a manifest

    Nothing is done when the folder holds exactly the files of an earlier run with equal parameters. Raises
    FileExistsError for any other folder that is not empty, or that another run is writing into, ValueError or TypeError
    for a bad argument.
    """
    started = time.perf_counter()
    check_flag("overwrite", overwrite)
    parameters = Parameters(
        preset=preset,
        rows=rows,
        files=files,
        skew=skew,
        seed=seed,
        drift=drift,
        drift_rows=drift_rows,
        compression=compression,
        labels=labels,
        rows_per_block=rows_per_block,
        max_cardinality=max_cardinality,
        eval_rows=eval_rows,
    )
    threads = check_integer("threads", threads, 1, _MAX_THREADS)
    folder = Path(out_dir)
    with sole_writer(folder):
        if not overwrite and _is_complete(folder, parameters):
            return _found(folder, parameters, started)
        if overwrite:
            for part in (folder, folder / EVAL_FOLDER):
                refuse_unless_replaceable(part)
                refuse_others_data(part)
            clear(folder)
            clear(folder / EVAL_FOLDER, remove=True)
        else:
            refuse_unless_empty(folder, subfolder=EVAL_FOLDER)
        return replace(_write(folder, _Writer(parameters, threads)), seconds=time.perf_counter() - started)


def _write(folder: Path, writer: _Writer) -> GenerateReport:
    """The evaluation part first: the manifest of `folder` comes last, and says that all is there."""
    p = writer.parameters
    evaluation = None
    if p.eval_rows:
        evaluation = writer.write(folder / EVAL_FOLDER, "eval", p.eval_rows, 1, p.train_blocks)
    return replace(writer.write(folder, "train" if p.labels else "unlabelled", p.rows, p.files, 0), eval=evaluation)


class _Writer:
    """Makes the blocks of one data set and writes its parts."""

    def __init__(self, parameters: Parameters, threads: int) -> None:
        p = parameters
        self.parameters, self._threads = p, threads
        self._preset: Preset = load_preset(p.preset, skew=p.skew, max_cardinality=p.max_cardinality)
        self._stream = FeatureStream(self._preset, p.seed, p.rows_per_block, p.drift, p.day_rows)
        self._model: LabelModel | None = build_label_model(self._stream) if p.labels else None

    def write(self, folder: Path, use: str, rows: int, files: int, first_block: int) -> GenerateReport:
        """Write one part (a folder of its own) and its manifest."""
        started = time.perf_counter()
        p = self.parameters
        pattern = self._preset.file_names[use]
        assert pattern is not None  # refused by Parameters
        names = [pattern.format(number) + (".gz" if p.compression else "") for number in range(files)]
        make = BlockText(self._stream, self._model, p.compression, first_block, file_ends(rows, files))
        histogram = ScoreHistogram()
        with FileSet(folder, names, empty=compress(b"") if p.compression else b"") as output:
            for block in in_order(make, -(-rows // p.rows_per_block), self._threads):
                for number, piece_rows, data in block.pieces:
                    output.append(number, piece_rows, data)
                if block.log_odds is not None and block.labels is not None:
                    histogram.add(block.log_odds, block.labels)
            results = {
                "auc_of_generator": histogram.auc(),
                "click_rate": histogram.positives / histogram.rows if histogram.rows else None,
            }
            manifest = Manifest(files=output.commit(), parameters=p.to_dict(), results=results)
        write_manifest(folder, manifest)
        return _report(manifest, time.perf_counter() - started)


def _is_complete(folder: Path, parameters: Parameters) -> bool:
    expected, parts = parameters.to_dict(), [EVAL_FOLDER] if parameters.eval_rows else []
    return holds_exactly(folder, expected, subfolders=parts) and all(holds_exactly(folder / p, expected) for p in parts)


def _found(folder: Path, parameters: Parameters, started: float) -> GenerateReport:
    evaluation = _report(_manifest(folder / EVAL_FOLDER), 0.0) if parameters.eval_rows else None
    report = _report(_manifest(folder), time.perf_counter() - started)
    return replace(report, reused=True, eval=evaluation)


def _manifest(folder: Path) -> Manifest:
    manifest = manifest_of(folder)
    if manifest is None:
        raise FileNotFoundError(f"{folder}: its manifest vanished meanwhile")
    return manifest


def _report(manifest: Manifest, seconds: float) -> GenerateReport:
    return GenerateReport(
        rows=sum(entry.rows for entry in manifest.files.values()),
        files=tuple(manifest.files),
        bytes=sum(entry.bytes for entry in manifest.files.values()),
        click_rate=manifest.results.get("click_rate"),
        auc_of_generator=manifest.results.get("auc_of_generator"),
        seconds=seconds,
        parameters=dict(manifest.parameters),
    )
