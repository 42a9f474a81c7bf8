"""What a stage does over ranks: its rows come from their owners, and the gradients of a batch go back to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from headrace.embed._rows import RowSource
from headrace.embed.arrays import F32
from headrace.embed.finite import key_name, use_of
from headrace.embed.forward_rows import Forward, check_finite_gradients, check_finite_vectors
from headrace.embed.layout import GroupLayout
from headrace.embed.rank_exchange import RankExchange
from headrace.embed.row_gradients import RowGradients, leaf_of
from headrace.embed.row_keys import RowKeys
from headrace.formats.schema import Schema
from headrace.ingest.batch import Batch
from headrace.ingest.nodes.index_ranks import schema_fact
from headrace.ingest.rank_step import RankSteps
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


def check_over_ranks(exchange: RankExchange | None, batch: Batch) -> None:
    """ValueError where only one of loader and stage is over ranks."""
    if (exchange is None) != (batch.ranks is None):
        raise ValueError(
            "the loader and the stage are not both over ranks: give DataLoader and EmbeddingStage the same communicator"
        )


def enter_from_owners(
    exchange: RankExchange,
    steps: RankSteps,
    keys: Sequence[RowKeys],
    plan: StepPlan | None,
    layouts: Sequence[GroupLayout],
) -> tuple[list[RowGradients], list[RowSource]]:
    """Get the rows from their owners. Over ranks a row's place in the batch stands for its location."""
    sources = exchange.enter(steps, plan)
    places = [key._replace(locations=np.arange(len(key.locations), dtype=np.uint64)) for key in keys]
    trained = [plan is not None and bool(layout.trained.any()) for layout in layouts]
    triples = zip(places, layouts, trained, strict=True)
    rows = [RowGradients(k, leaf_of(len(k.locations), layout.dim, trained=t)) for k, layout, t in triples]
    return rows, sources


def check_vectors_alike(
    exchange: RankExchange, forward: Forward, schema: Schema, *, trains: bool, check_finite: bool
) -> None:
    """FloatingPointError where a row is not finite, or was too large for the wire: with `check_finite` on all ranks,
    else on the rank that sent the second."""
    steps = forward.batch.ranks
    if steps is None:
        return
    channel = exchange.finite_channel(steps.now, trains=trains) if check_finite else None
    what = f"the rows of step {steps.now.step}"
    if exchange.wire.is_narrow:  # before those that got them say that they are infinite
        exchange.raise_finding(channel, exchange.vectors_beyond_wire(), what, trains=trains)
    if check_finite:
        exchange.raise_finding(channel, _said(lambda: check_finite_vectors(forward, schema)), what, trains=trains)


def gradients_to_send(
    exchange: RankExchange,
    last: Forward,
    kept: Sequence[RowGradients | None],
    schema: Schema,
    *,
    check_finite: bool,
    to_apply: bool = True,
) -> list[F32 | None]:
    """:func:`whole_gradients` of a batch that went forward, ready to be sent; nothing was.

    FloatingPointError for one that would be infinite at its owner, and with `check_finite`, on all ranks alike, for one
    that is not finite, if they are `to_apply`. What was held for clipping has been sent, and only its sums are checked.
    """
    grads = whole_gradients(last, kept)
    assert last.batch.ranks is not None
    step, found = last.batch.ranks.now, None
    held = exchange.holds(step)
    if check_finite and to_apply:
        found = _said(lambda: check_finite_gradients(kept, last, schema, hint=""))
    if found is None and not held:
        found = _beyond_wire(exchange, last, grads, schema)
    to_tell = check_finite and (to_apply or (exchange.wire.is_narrow and not held))
    channel, what = exchange.finite_channel(step) if to_tell else None, f"the gradients of step {step.step}"
    exchange.raise_finding(channel, found, what)
    if held and to_tell:  # after those that know where it comes from
        exchange.raise_finding(channel, exchange.held_not_finite(step), f"{what}, clipped,")
    if not held and to_apply:
        exchange.collect(step, grads, alike=check_finite)
    return grads


def _beyond_wire(exchange: RankExchange, last: Forward, grads: Sequence[F32 | None], schema: Schema) -> str | None:
    assert last.batch.ranks is not None
    at = exchange.beyond_wire(last.batch.ranks.now, grads)
    if at is None:
        return None
    group, row = at
    keys = last.rows[group].keys
    where = use_of(keys.locations[row : row + 1], last.batch, last.bags[group])
    return exchange.wire.too_large(f"gradient of {key_name(schema, keys, row)}") + where


def _said(check: Callable[[], None]) -> str | None:
    """What a check has found."""
    try:
        check()
    except FloatingPointError as error:
        return str(error)
    return None


def grads_of(kept: Sequence[RowGradients | None]) -> list[Tensor | None]:
    """The gradients of each layout, as they are."""
    return [None if rows is None else rows.leaf.grad for rows in kept]


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
