"""`headrace lint`: check files against a schema."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import click

from headrace.cli_dataset import dataset_options, one_or_all, refuse_beside_schema, text_options
from headrace.cli_inputs import open_data
from headrace.cli_report import json_option, write_report
from headrace.formats.errors import ManifestError
from headrace.formats.file_reader import FileReader
from headrace.formats.lint import lint as lint_files
from headrace.formats.schema import Schema


@click.command("lint")
@dataset_options
@click.option("--max-problems", type=click.IntRange(0), default=100, show_default=True, help="Problems to list.")
@json_option
@click.pass_context
def lint(
    ctx: click.Context,
    data: tuple[str, ...],
    dataset: str,
    schema: Schema | None,
    labels: bool,
    separator: str | None,
    max_problems: int,
    json_path: str | None,
) -> None:
    """Check files against a schema: lists every bad record; exit code 1 when there is any, or a damaged file."""
    refuse_beside_schema(schema)
    paths = one_or_all(data)
    of_dataset: dict[str, Any] = {"schema": schema, "labels": labels, **text_options(dataset, separator)}

    def open_(paths: Any, **options: Any) -> FileReader[Any]:
        return open_data(dataset, paths, **of_dataset, **options)

    of_all = None
    try:
        whole = open_(paths)
    except ManifestError as error:  # a problem of the folder: its files are read all the same
        of_all = error
        whole = open_(paths, verify_manifest="off")

    def readers() -> Iterator[FileReader[Any]]:
        for file in whole.files:
            try:
                yield open_([file], filesystem=whole.store)
            except ManifestError:  # one that cannot be read, which is listed already
                yield open_([file], filesystem=whole.store, verify_manifest="off")

    report = lint_files(readers(), max_problems=max_problems, of_all=of_all)
    if json_path != "-":
        for problem in report.problems:
            click.echo(f"{problem.kind}: {problem.message}")
    found = dataclasses.asdict(report)
    if json_path is None:
        del found["problems"]
    write_report({**found, "clean": report.clean}, json_path)
    if not report.clean:
        ctx.exit(1)
