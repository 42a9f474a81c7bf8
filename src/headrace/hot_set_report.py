"""The hot set of one row layout, measured over a stream of batches: what each size of R costs, what it covers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from headrace.formats.generate.coverage import coverage as laws_coverage
from headrace.formats.generate.coverage import unique_coverage
from headrace.formats.generate.presets import load_preset
from headrace.indexer.access_coverage import CoverageMeter, most_accessed
from headrace.indexer.cost_curve import CostCurve, RowCosts, cost_curve
from headrace.indexer.hotset import PresenceCounter, coverage
from headrace.indexer.indexed import U32, U64

CURVE_POINTS = 100


class HotSetMeter:
    """Counts the rows of the first `batches`; what comes after them is held out, for the coverage alone.

    `sizes` are the numbers of most accessed rows whose coverage is told. The figures below are of what was added until
    one of them was first asked for.
    """

    def __init__(self, costs: RowCosts, *, world_size: int, batches: int, sizes: Sequence[int]) -> None:
        self.costs = costs
        self.world_size = world_size
        self.sizes = tuple(sizes)
        self._counter = PresenceCounter(max_batches=batches)
        self._held_out = 0

    def add(self, locations: U64, query_ids: U32) -> None:
        """One batch: its unique rows uint64 [U], and its query ids uint32 [nnz]."""
        if not self._counter.add(locations, query_ids):
            self._meter.add(locations, query_ids)
            self._held_out += 1

    @cached_property
    def _hot_sets(self) -> list[U64]:
        if not self.sizes:
            return []
        locations, accesses = self._counter.locations(), self._counter.accesses()
        return [most_accessed(locations, accesses, rows) for rows in self.sizes]

    @cached_property
    def _meter(self) -> CoverageMeter:
        return CoverageMeter(self._hot_sets)

    @cached_property
    def curve(self) -> CostCurve:
        return cost_curve(self._counter.presence(), self.costs, world_size=self.world_size)

    def report(self) -> dict[str, Any]:
        """Keys as `headrace stats` writes them. `curve` holds (r, cost) at sizes of R that grow by a factor, and at the
        optimum and the ends of the band within 1 % of it."""
        curve, costs, counter = self.curve, self.costs, self._counter
        hot = np.zeros(len(curve.order), np.bool_)
        hot[curve.order[: curve.optimum]] = True
        covered = coverage(hot, accesses=counter.accesses(), batches=counter.batches())
        last = len(curve.order)
        sizes = {0, last, curve.optimum, curve.band_low, curve.band_high}
        sizes |= {round(r) for r in np.geomspace(1, max(last, 1), CURVE_POINTS)}
        return {
            "batches": counter.num_batches,
            "rows": last,
            "world_size": self.world_size,
            "c_early": costs.c_early,
            "c_late": costs.c_late,
            "c_ar": costs.c_ar,
            "c_step": costs.c_step,
            "r_rows": curve.optimum,
            "cost": float(curve.cost[curve.optimum]),
            "cost_without_r": float(curve.cost[0]),
            "band_low": curve.band_low,
            "band_high": curve.band_high,
            "covered_accesses": covered.accesses,
            "covered_unique_rows": covered.unique_rows,
            "curve": [[r, float(curve.cost[r])] for r in sorted(s for s in sizes if s <= last)],
        }

    def coverage(self, *, preset: str | None, batch_size: int) -> list[dict[str, Any]]:
        """What the `sizes` most accessed rows of the counted batches cover: of those batches (as published figures do),
        of the batches held out (None if there are none), and, for a preset, what its most popular rows cover by its
        laws."""
        locations, accesses, batches = self._counter.locations(), self._counter.accesses(), self._counter.batches()
        laws = list(load_preset(preset).sparse.values()) if preset else []
        found: list[dict[str, Any]] = []
        for rows, hot, outside in zip(self.sizes, self._hot_sets, self._meter.coverage(), strict=True):
            inside = coverage(np.isin(locations, hot), accesses=accesses, batches=batches)
            found.append(
                {
                    "rows": rows,
                    "accesses": inside.accesses,
                    "unique_rows": inside.unique_rows,
                    "held_out_accesses": outside.accesses if self._held_out else None,
                    "held_out_unique_rows": outside.unique_rows if self._held_out else None,
                }
            )
            if laws:
                found[-1] |= {
                    "law_accesses": laws_coverage(laws, rows),
                    "law_unique_rows": unique_coverage(laws, rows, batch_size),
                }
        return found


def draw_curves(curves: Sequence[CostCurve], titles: Sequence[str], path: str) -> None:
    """Cost over the size of R, a panel a curve; needs matplotlib (extra `bench`)."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("--plot needs matplotlib: pip install 'headrace[bench]'") from error
    figure = Figure(figsize=(8, 5 * len(curves)), layout="constrained")
    panels = figure.subplots(len(curves), squeeze=False)[:, 0]
    for axes, curve, title in zip(panels, curves, titles, strict=True):
        sizes = np.unique(np.geomspace(1, len(curve.cost), 500).astype(np.int64) - 1)
        axes.plot(sizes, curve.cost[sizes])
        axes.axvspan(curve.band_low, curve.band_high, alpha=0.2, label="within 1 %")
        axes.axvline(curve.optimum, linestyle=":", label=f"R = {curve.optimum:,}")
        axes.set_xscale("symlog")
        axes.set_xlim(left=0)
        axes.set_xlabel("rows in R")
        axes.set_ylabel("cost a step")
        axes.set_title(title)
        axes.legend()
    figure.savefig(path)
