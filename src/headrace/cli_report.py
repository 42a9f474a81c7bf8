"""What a command found out: as a table for people, as JSON where `--json` asks for it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

MOST_VALUES = 24
"""Of a list that a table shows; what is longer is summed up in a line."""

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
    if path in (None, "-"):
        return path
    name = os.path.abspath(str(path))
    folder = os.path.dirname(name)
    if os.path.isdir(name):
        raise click.BadParameter(f"{path!r} is a folder", ctx, param)
    if not os.path.isdir(folder):
        raise click.BadParameter(f"there is no folder {folder!r}", ctx, param)
    if not os.access(name if os.path.exists(name) else folder, os.W_OK):
        raise click.BadParameter(f"{path!r} cannot be written: permission denied", ctx, param)
    return path


def plot_option(help: str) -> Callable[[_F], _F]:
    """``--plot FILE``: refused at once where nothing could be drawn there."""
    return click.option("--plot", metavar="FILE", callback=_drawable, help=f"{help} (PNG, SVG or PDF, by its suffix).")


def _drawable(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    if path is None:
        return None
    from headrace.bench_plot import require_matplotlib

    require_matplotlib()
    if os.path.splitext(path)[1].lower() not in (".png", ".svg", ".pdf"):
        raise click.BadParameter(f"{path!r} does not end in .png, .svg or .pdf", ctx, param)
    return writable(ctx, param, path)


def preset_batch_size(default: int) -> Callable[[_F], _F]:
    """``--batch-size`` of a command that cuts a generated stream into batches."""
    return click.option(
        "--batch-size",
        type=click.IntRange(1),
        default=default,
        show_default=True,
        help="Rows of a batch; of a --preset a power of two up to 65536.",
    )


def rounds_option(default: int, help: str = "Interleaved measurements.") -> Callable[[_F], _F]:
    """``--rounds N``; says so, on standard error, where N is too few to tell a figure from noise."""
    return click.option(
        "--rounds", type=click.IntRange(1), default=default, show_default=True, callback=_enough, help=help
    )


def _enough(ctx: click.Context, param: click.Parameter, rounds: int) -> int:
    if rounds < 3:
        what = "1 round has no spread" if rounds == 1 else "2 rounds have next to no spread"
        click.echo(f"note: {what}: the figures may be off by as much as the machine is noisy; 5 rounds tell", err=True)
    return rounds


def refuse_given(names: Iterable[str], why: str) -> None:
    """A usage error if any of the running command's options `names` was given: it would change nothing."""
    ctx = click.get_current_context()
    options = {param.name: param.opts[0] for param in ctx.command.params}
    given = [n for n in names if ctx.get_parameter_source(n) is click.core.ParameterSource.COMMANDLINE]
    if given:
        raise click.UsageError(f"{', '.join(options[name] for name in given)}: {why}", ctx)


def write_report(result: dict[str, Any], json_path: str | None, *, hidden: tuple[str, ...] = ()) -> None:
    """A table for people, without the keys `hidden`, and JSON where it was asked for."""
    if json_path == "-":
        write_json(result, json_path)
        return
    table = {key: value for key, value in result.items() if key not in hidden}
    shown = [(key, value) for key, value in _flat(table) if "parameters" not in key.split(".")]
    width = max((len(key) for key, _ in shown), default=0)
    for key, value in shown:
        click.echo(f"{key:<{width}}  {_text(value)}")
    if json_path:
        write_json(result, json_path)


def _text(value: Any) -> str:
    """ "-" stands for what was not measured, as on the page of the report's keys null does."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4f}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(one)}" for key, one in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        if len(value) > MOST_VALUES:
            ends = f", {_text(value[0])} to {_text(value[-1])}" if isinstance(value[0], (str, int, float)) else ""
            return f"{len(value)} values{ends}: --json lists them"
        return ", ".join(map(_text, value)) or "none"
    return str(value)


def write_json(result: dict[str, Any], path: str) -> None:
    """JSON to a file, or to standard output ("-")."""
    text = json.dumps(result, indent=2)
    if path == "-":
        click.echo(text)
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")


def _flat(result: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """(dotted key, value) of nested results; a line for each of a few records."""
    rows: list[tuple[str, Any]] = []
    for key, value in result.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and 0 < len(value) <= MOST_VALUES and isinstance(value[0], dict):
            rows += [(f"{prefix}{key}.{number}", record) for number, record in enumerate(value, start=1)]
        else:
            rows.append((prefix + key, value))
    return rows
