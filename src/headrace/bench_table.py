"""Tables of `headrace bench`: each contender's median beside its spread, under one name and with the unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def index_table(report: dict[str, Any]) -> dict[str, Any]:
    """Of a report of `bench index`, of one process."""
    rates = {f"index_{n}": rate for n, rate in report["samples_per_s"].items()}
    rates["limit"] = report["limit_samples_per_s"]
    for n, baselines in report["baselines_by_threads"].items():
        rates |= {f"{name}_{n}": rate for name, rate in baselines.items()}
    own = ("limit_samples_per_s", "baseline_sharded_map", "baseline_lock_per_id", "baselines_by_threads", "peers")
    return rates_table(report, "samples_per_s", rates | report["peers"], without=own)


def decode_table(report: dict[str, Any]) -> dict[str, Any]:
    """Of a report of `bench decode`."""
    rates = {f"threads_{n}": rate for n, rate in report["mb_per_s"].items()}
    rates |= {"gz": report["gz_mb_per_s"], "inflate": report["inflate_mb_per_s"], **report["peers"]}
    return rates_table(report, "mb_per_s", rates, without=("gz_mb_per_s", "inflate_mb_per_s", "peers"))


def rates_table(
    report: dict[str, Any], key: str, rates: Mapping[str, float], *, without: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The report with ``median (slowest to fastest)`` of each of `rates`, named as in its `spread`, under `key`.

    The spread and the keys `without` are told by that, and left out.
    """
    table: dict[str, Any] = {}
    for name, value in report.items():
        if name == key:
            table[key] = {each: _in_words(rate, *report["spread"][each]) for each, rate in rates.items()}
        elif name not in ("spread", *without):
            table[name] = value
    return table


def _in_words(rate: float, slowest: float, fastest: float) -> str:
    digits = 0 if rate >= 1000 else 1
    return f"{rate:,.{digits}f} ({slowest:,.{digits}f} to {fastest:,.{digits}f})"
