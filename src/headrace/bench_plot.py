"""The picture of a `headrace bench index` report. matplotlib is imported here, and only when a picture is asked for."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import click


def require_matplotlib() -> None:
    """A usage error that says what to install, unless matplotlib is there."""
    if find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib: pip install 'headrace[bench]'")


def plot_threads(report: dict[str, Any], path: str) -> None:
    """Samples a second against threads: index and locked maps with their spread, the limit and the peers as lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 6), layout="constrained")
    spread, by_threads = report["spread"], report["baselines_by_threads"]
    _curve(axes, "headrace", report["samples_per_s"], spread, "index", "C0")
    for label, name, colour in (
        ("64 maps, a lock a shard and batch", "sharded_map", "C1"),
        ("64 maps, a lock an id", "lock_per_id", "C2"),
    ):
        if by_threads:
            _curve(axes, label, {n: rates[name] for n, rates in by_threads.items()}, spread, name, colour)
    axes.axhline(report["limit_samples_per_s"], color="black", label="physical limit, one thread")
    for number, (name, rate) in enumerate(report["peers"].items()):
        axes.axhline(rate, color=f"C{3 + number}", linestyle=":", label=f"{name}, one thread")
    axes.set(xlabel="threads", ylabel="samples/s", yscale="log", title=_title(report))
    axes.set_xticks(sorted({int(n) for n in [*report["samples_per_s"], *by_threads]}))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _curve(
    axes: Any, label: str, rates: dict[str, float], spread: dict[str, list[float]], name: str, colour: str
) -> None:
    """Medians by threads, with the range of the rounds."""
    threads = sorted(rates, key=int)
    middle = [rates[n] for n in threads]
    ranges = [spread[f"{name}_{n}"] for n in threads]
    below = [max(0.0, m - low) for m, (low, _) in zip(middle, ranges, strict=True)]
    above = [max(0.0, high - m) for m, (_, high) in zip(middle, ranges, strict=True)]
    axes.errorbar(
        [int(n) for n in threads], middle, yerr=[below, above], marker="o", capsize=3, color=colour, label=label
    )


def _title(report: dict[str, Any]) -> str:
    source = report.get("preset", "data")
    new = f", {report['insert_share']:.0%} new ids" if report["insert_share"] else ""
    return f"{source}: {report['rows']:,} rows, batches of {report['batch_size']:,}{new}, {report['cores']} cores"
