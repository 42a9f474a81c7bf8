"""What a stage does over ranks: its rows come from their owners, and the gradients of a batch go back to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.embed._rows import RowSource
from headrace.embed.arrays import F32
from headrace.embed.forward_rows import Forward
from headrace.embed.layout import GroupLayout
from headrace.embed.rank_exchange import RankExchange
from headrace.embed.row_gradients import RowGradients, leaf_of
from headrace.embed.row_keys import RowKeys
from headrace.ingest.batch import Batch
from headrace.ingest.nodes.index_ranks import schema_fact
from headrace.ingest.step_plan import StepPlan

if TYPE_CHECKING:
    from headrace.embed.stage import EmbeddingStage


def facts_of(stage: EmbeddingStage, **options: object) -> dict[str, Any]:
    """What must be alike on all ranks, since each updates rows of all: `options`, and what the stage says of itself."""
    return {
        "schema": schema_fact(stage.schema),
        "seed": stage.seed,
        **options,
        "optimizer": _optimizer_by_table(stage),
        "initializer": {
            "of all tables": stage.initializer,
            **{f"of {t}": i for t, i in stage.table_initializers.items()},
        },
        "frozen": sorted(stage.frozen),
    }


def _optimizer_by_table(stage: EmbeddingStage) -> dict[str, dict[str, object]]:
    """The optimizer's options of each table; a difference is then named with the tables that it concerns."""
    groups = stage.optimizer().param_groups
    options = [{k: v for k, v in group.items() if k not in ("params", "tables")} for group in groups]
    return {table: one for group, one in zip(groups, options, strict=True) for table in group["tables"]}


def enter_from_owners(
    exchange: RankExchange | None,
    batch: Batch,
    keys: Sequence[RowKeys],
    plan: StepPlan | None,
    layouts: Sequence[GroupLayout],
) -> tuple[list[RowGradients], list[RowSource]]:
    """Get the rows from their owners. Over ranks a row's place in the batch stands for its location.

    ValueError where only one of loader and stage is over ranks.
    """
    if exchange is None or batch.ranks is None:
        raise ValueError(
            "the loader and the stage are not both over ranks: give DataLoader and EmbeddingStage the same communicator"
        )
    sources = exchange.enter(batch.ranks, plan)
    places = [key._replace(locations=np.arange(len(key.locations), dtype=np.uint64)) for key in keys]
    trained = [plan is not None and bool(layout.trained.any()) for layout in layouts]
    triples = zip(places, layouts, trained, strict=True)
    rows = [RowGradients(k, leaf_of(len(k.locations), layout.dim, trained=t)) for k, layout, t in triples]
    return rows, sources


def whole_gradients(last: Forward, pending: Sequence[RowGradients | None]) -> list[F32 | None]:
    """Gradients float32 [U, dim] of all unique rows of a batch, or None, of each layout."""
    grads: list[F32 | None] = []
    for rows, forward in zip(pending, last.rows, strict=True):
        given = None if rows is None else rows.leaf.grad
        grad = None if given is None else given.contiguous().numpy()
        if rows is not None and grad is not None and len(grad) < len(forward.leaf):
            whole = np.zeros((len(forward.leaf), grad.shape[1]), np.float32)
            whole[rows.keys.locations.astype(np.int64)] = grad
            grad = whole
        grads.append(grad)
    return grads
