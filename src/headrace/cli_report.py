"""What a command found out: as a table for people, as JSON where `--json` asks for it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])


class HotRows(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number of rows, or "auto"."""

    name = "rows"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "auto":
            return value
        try:
            return click.IntRange(0).convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f'{value!r} is neither a number of rows nor "auto"', param, ctx)


def json_option(command: _F) -> _F:
    return click.option(
        "--json", "json_path", metavar="FILE", callback=writable, help='Write the result as JSON ("-": stdout).'
    )(command)


def writable(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Refuse at once, not after an hour of work, what cannot be written."""
    if path is not None and os.path.isdir(path):
        raise click.BadParameter(f"{path!r} is a folder", ctx, param)
    if path not in (None, "-") and not os.path.isdir(os.path.dirname(os.path.abspath(str(path)))):
        raise click.BadParameter(f"there is no folder {os.path.dirname(os.path.abspath(str(path)))!r}", ctx, param)
    return path


def write_report(result: dict[str, Any], json_path: str | None) -> None:
    """A table for people, and JSON where it was asked for."""
    if json_path == "-":
        write_json(result, json_path)
        return
    shown = {k: v for k, v in _flat(result) if k != "parameters" and not k.startswith(("parameters.", "eval."))}
    width = max(map(len, shown))
    for key, value in shown.items():
        text = f"{value:,.4f}" if isinstance(value, float) else ", ".join(value) if isinstance(value, tuple) else value
        click.echo(f"{key:<{width}}  {text}")
    if json_path:
        write_json(result, json_path)


def write_json(result: dict[str, Any], path: str) -> None:
    """JSON to a file, or to standard output ("-")."""
    text = json.dumps(result, indent=2)
    if path == "-":
        click.echo(text)
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")


def _flat(result: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """(dotted key, value) of nested results."""
    rows: list[tuple[str, Any]] = []
    for key, value in result.items():
        rows += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return rows
