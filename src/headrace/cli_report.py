"""What a command found out: as a table for people, as JSON where `--json` asks for it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from headrace.cli_outputs import writable

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
        "--json",
        "json_path",
        metavar="FILE",
        callback=_writable_or_stdout,
        help='Write the result as JSON ("-": stdout).',
    )(command)


def _writable_or_stdout(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    return path if path == "-" else writable(ctx, param, path)


def plot_option(help: str) -> Callable[[_F], _F]:
    """``--plot FILE``: refused at once where nothing could be drawn there."""
    return click.option("--plot", metavar="FILE", callback=_drawable, help=f"{help} (PNG, SVG or PDF, by its suffix).")


def _drawable(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    if path is None:
        return None
    from headrace.bench_plot import require_matplotlib

    require_matplotlib()
    writable(ctx, param, path)
    if os.path.splitext(path)[1].lower() not in (".png", ".svg", ".pdf"):
        raise click.BadParameter(f"{path!r} does not end in .png, .svg or .pdf", ctx, param)
    return path


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
    """``--rounds N``; `write_report` says so where N is too few to tell a figure from noise."""
    return click.option("--rounds", type=click.IntRange(1), default=default, show_default=True, help=help)


def refuse_given(names: Iterable[str], why: str) -> None:
    """A usage error if any of the running command's options `names` was given: it would change nothing."""
    ctx = click.get_current_context()
    options = {param.name: param for param in ctx.command.params}
    given = [n for n in names if ctx.get_parameter_source(n) is click.core.ParameterSource.COMMANDLINE]
    if given:
        raise click.UsageError(f"{', '.join(_as_given(options[n], ctx.params.get(n)) for n in given)}: {why}", ctx)


def _as_given(param: click.Parameter, value: Any) -> str:
    """The option by the name it was given by: of "--peers/--no-peers" either."""
    return param.secondary_opts[0] if value is False and param.secondary_opts else param.opts[0]


def write_report(
    result: dict[str, Any],
    json_path: str | None,
    *,
    hidden: tuple[str, ...] = (),
    table: dict[str, Any] | None = None,
) -> None:
    """A table for people (`table`, or `result`) without the keys `hidden`, and JSON where it was asked for."""
    _note_few_rounds()
    if json_path == "-":
        write_json(result, json_path)
        return
    table = {key: value for key, value in (table or result).items() if key not in hidden}
    shown = [(key, value) for key, value in _flat(table) if "parameters" not in key.split(".")]
    width = max((len(key) for key, _ in shown), default=0)
    for key, value in shown:
        click.echo(f"{key:<{width}}  {_text(value)}")
    if json_path:
        write_json(result, json_path)


def _note_few_rounds() -> None:
    ctx = click.get_current_context(silent=True)
    rounds = ctx.params.get("rounds") if ctx else None
    if rounds in (1, 2):
        note("1 round has no spread" if rounds == 1 else "2 rounds have next to no spread",
             "the figures may be off by as much as the machine is noisy; 5 rounds tell")  # fmt: skip


def note(what: str, why: str) -> None:
    """Beside the report, on standard error."""
    click.echo(f"note: {what}: {why}", err=True)


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
