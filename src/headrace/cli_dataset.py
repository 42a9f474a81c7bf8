"""Options of all commands that read a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from headrace.cli_inputs import dataset_paths, read_by
from headrace.cli_report import refuse_given
from headrace.formats.datasets import DATASETS
from headrace.formats.own_text import NAME as OWN_TEXT
from headrace.formats.schema import Schema

_F = TypeVar("_F", bound=Callable[..., Any])


def dataset_options(command: _F) -> _F:
    """``data`` (paths, globs or folders), ``dataset``, ``schema`` (a Schema or None), ``labels`` and ``separator``."""
    return _options(command, required=True)


def optional_dataset_options(command: _F) -> _F:
    """The same, where a command can do without data."""
    return _options(command, required=False)


def _options(command: _F, *, required: bool) -> _F:
    for option in (
        click.option("--labels/--no-labels", default=True, help="Whether the files have a label column."),
        click.option(
            "--separator", metavar="CHAR", callback=_read_separator, help='Of --dataset csv; "tab" is one.  [,]'
        ),
        click.option(
            "--schema",
            metavar="FILE",
            callback=read_by(Schema.from_yaml),
            help="YAML schema, instead of the dataset's own.",
        ),
        click.option("--dataset", type=click.Choice(list(DATASETS)), default="criteo-kaggle", show_default=True),
        click.argument("data", nargs=-1, required=required, callback=dataset_paths),
    ):
        command = option(command)
    return command


def _read_separator(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    return "\t" if text in ("tab", "\\t") else text


def text_options(dataset: str, separator: str | None) -> dict[str, Any]:
    """What the dataset's reader is given of these options; a usage error for one that it does not have."""
    if separator is None:
        return {}
    if dataset != OWN_TEXT:
        raise click.UsageError(f"--separator is for --dataset {OWN_TEXT}, not {dataset}")
    return {"separator": separator}


def refuse_beside_schema(schema: Schema | None) -> None:
    """A usage error for options that a schema of the user's own makes idle."""
    if schema is not None:
        refuse_given(("dim", "labels"), "stands in the schema, which --schema gives")


def one_or_all(data: tuple[str, ...]) -> str | list[str]:
    """A single path stands for what it names (a folder is then what its manifest lists), several for a list."""
    return data[0] if len(data) == 1 else list(data)
