"""`headrace convert`: raw files to Parquet or tar shards."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import click

from headrace.cli_dataset import dataset_options, one_or_all
from headrace.cli_report import json_option, write_report
from headrace.formats.convert import DEFAULT_ROW_GROUP_ROWS, OutputForm
from headrace.formats.convert import convert as convert_files
from headrace.formats.parquet_output import COMPRESSIONS
from headrace.formats.tar_output import TAR_COMPRESSIONS

_COMPRESSIONS = tuple(dict.fromkeys((*COMPRESSIONS, *TAR_COMPRESSIONS)))


@click.command("convert")
@dataset_options
@click.option("--out", required=True, metavar="DIR", help="Folder to write to.")
@click.option("--to", type=click.Choice(get_args(OutputForm)), default="parquet", show_default=True)
@click.option("--bad-records", type=click.Choice(["raise", "skip"]), default="raise", show_default=True)
@click.option("--compression", type=click.Choice(_COMPRESSIONS), default="zstd", show_default=True)
@click.option("--row-group-rows", type=click.IntRange(1), default=DEFAULT_ROW_GROUP_ROWS, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Files converted at a time.")
@click.option("--overwrite", is_flag=True, help="Replace what an earlier conversion wrote there.")
@json_option
def convert(data: tuple[str, ...], json_path: str | None, dataset: str, out: str, **options: Any) -> None:
    """Write the files of a dataset as Parquet or tar shards, with a manifest; run it again to go on after a kill."""
    report = convert_files(dataset, one_or_all(data), out, **options)
    write_report(dataclasses.asdict(report), json_path)
