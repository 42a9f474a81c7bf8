"""`headrace convert`: raw files to Parquet or tar shards."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, get_args

import click

from headrace.cli_dataset import dataset_options, one_or_all, refuse_beside_schema, text_options
from headrace.cli_inputs import open_data
from headrace.cli_report import json_option, refuse_given, write_report
from headrace.formats.convert import DEFAULT_ROW_GROUP_ROWS, OutputForm
from headrace.formats.convert import convert as convert_files
from headrace.formats.histories import LOGS
from headrace.formats.history_build import DEFAULT_RUN_ROWS, build_history
from headrace.formats.parquet_output import COMPRESSIONS
from headrace.formats.tar_output import TAR_COMPRESSIONS

_COMPRESSIONS = tuple(dict.fromkeys((*COMPRESSIONS, *TAR_COMPRESSIONS)))


@click.command("convert")
@dataset_options
@click.option("--out", required=True, metavar="DIR", help="Folder to write to.")
@click.option("--to", type=click.Choice(get_args(OutputForm)), default="parquet", show_default=True)
@click.option("--bad-records", type=click.Choice(["raise", "skip"]), default="raise", show_default=True)
@click.option("--compression", type=click.Choice(_COMPRESSIONS), help="[default: lz4 for Parquet, zstd for tar shards]")
@click.option("--row-group-rows", type=click.IntRange(1), default=DEFAULT_ROW_GROUP_ROWS, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Files converted at a time.")
@click.option("--overwrite", is_flag=True, help="Replace what an earlier conversion wrote there.")
@click.option(
    "--history",
    is_flag=True,
    help="Sort a behaviour log by user and time instead, into a folder that histories are looked up in.",
)
@click.option("--run-rows", type=click.IntRange(1), default=DEFAULT_RUN_ROWS, show_default=True, help="Of --history.")
@json_option
def convert(
    data: tuple[str, ...],
    json_path: str | None,
    dataset: str,
    out: str,
    history: bool,
    run_rows: int,
    separator: str | None,
    **options: Any,
) -> None:
    """Write the files of a dataset as Parquet or tar shards, with a manifest; run it again to go on after a kill."""
    refuse_beside_schema(options["schema"])
    if history:
        refuse_given(
            ("schema", "labels", "separator", "to", "compression", "row_group_rows"),
            "for other files than a sorted log: no --history",
        )
        if dataset not in LOGS:
            raise click.UsageError(f"--history is for {', '.join(LOGS)}, not {dataset}")
        log = LOGS[dataset]
        sorted_log = build_history(
            log.open(one_or_all(data), bad_records=options["bad_records"]),
            out,
            key=log.key,
            time_column=log.time,
            run_rows=run_rows,
            threads=options["threads"],
            overwrite=options["overwrite"],
        )
        write_report(dataclasses.asdict(sorted_log), json_path)
        return
    refuse_given(("run_rows",), "for --history alone")
    text = text_options(dataset, separator)
    if json_path is not None and os.path.isfile(json_path):  # for its files alone, before anything is written
        open_data(dataset, one_or_all(data), schema=options["schema"], labels=options["labels"], **text)
    report = convert_files(dataset, one_or_all(data), out, **options, **text)
    write_report(dataclasses.asdict(report), json_path)
