"""`headrace plan --ranks`: many ranks played in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from headrace.cli_dataset import one_or_all
from headrace.cli_inputs import read_by
from headrace.cli_report import write_json
from headrace.formats.atomic_file import write_atomic
from headrace.formats.generate.presets import preset_names
from headrace.ingest.plan.simulation.links import MAX_RANKS, LinkModel

STEPS = 20


class RankCounts(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Numbers of ranks, "8,32,512"."""

    name = "n,n,.."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        numbers = click.IntRange(1, MAX_RANKS)
        convert: Callable[..., int] = numbers.convert
        ranks = tuple(convert(part, param, ctx) for part in str(value).split(","))
        if len(set(ranks)) < len(ranks):
            self.fail(f"{value!r} has a number twice", param, ctx)
        return ranks


def links_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a simulation: ``ranks``, ``links``, ``preset``, ``seed``."""
    for option in (
        click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the generated stream."),
        click.option("--preset", type=click.Choice(preset_names()), help="Ranks: a generated stream, not DATA."),
        click.option(
            "--links",
            metavar="FILE",
            callback=read_by(LinkModel.from_yaml),
            help="Ranks: bandwidth and latency inside a node and between nodes (YAML).  [8 GPUs a node, NVLink inside, "
            "100 Gbit/s between]",
        ),
        click.option("--ranks", type=RankCounts(), help="Play so many ranks, as 8,32,512, over one trace."),
    ):
        command = option(command)
    return command


def plan_ranks(
    data: tuple[str, ...],
    *,
    ranks: tuple[int, ...],
    links: LinkModel | None,
    preset: str | None,
    dataset: str,
    seed: int,
    steps: int,
    window: int,
    batch_size: int,
    dim: int,
    labels: bool,
    num_workers: int,
    out: str | None,
    plot: str | None,
    json_path: str | None,
) -> None:
    """Play each number of ranks over one trace: report, table of steps and ranks (`out`), picture (`plot`)."""
    from headrace.ranks_plot import require_matplotlib

    if bool(data) == bool(preset):
        raise click.UsageError("give DATA or --preset, one of them")
    if plot:
        require_matplotlib()
    from headrace.ranks_plan import planned_ranks, save_table, table_lines

    report, table = planned_ranks(
        one_or_all(data) if data else None,
        preset=preset,
        dataset=dataset,
        ranks=ranks,
        links=links,
        seed=seed,
        steps=steps or STEPS,
        window=window,
        batch_size=batch_size,
        dim=dim,
        labels=labels,
        num_workers=num_workers,
        with_table=out is not None,
    )
    if out and table is not None:
        write_atomic(Path(out), save_table(table))
    if plot:
        from headrace.ranks_plot import plot_ranks

        plot_ranks(report, plot)
    if json_path != "-":
        click.echo("\n".join(table_lines(report)))
    if json_path is not None:
        write_json(report, json_path)
