"""Checkpoints over ranks: each rank saves the rows that it owns, all at one step, into folders of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headrace.embed.dense_start import compare, not_compared
from headrace.embed.run_folder import CheckpointError
from headrace.indexer.exchange.agreement import agree

if TYPE_CHECKING:
    from headrace.embed.stage import EmbeddingStage

_PLACE_LIMIT = 1 << 16


def part_of(stage: EmbeddingStage) -> list[int]:
    """[rank, world size] of the ranks that the rows of `stage` are spread over; [0, 1] for one process."""
    ranks = stage.communicator
    return [0, 1] if ranks is None else [ranks.rank, ranks.world_size]


def agree_to_save(stage: EmbeddingStage, path: Path, model: torch.nn.Module, step: int) -> None:
    """On all ranks: RankMismatchError unless all save as of the same step, and models that began alike; ValueError
    where two save to one path."""
    ranks = stage.communicator
    if ranks is None or ranks.world_size == 1:
        return
    channel, what = ranks.channel("saves"), "save_run"
    with channel.sole_use(what):
        agree(channel, {"step": step}, what, wrong="save_run is called differently on the ranks")
        # Of nodes, too: the same path may be one folder of a file system that they share, and no node can tell.
        place = os.fsencode(os.path.realpath(path))
        places = channel.all_gather_bytes(place, what, limit=_PLACE_LIMIT)
        same = [rank for rank, other in enumerate(places) if other == place]
        if len(same) > 1:
            raise ValueError(
                f"ranks {', '.join(map(str, same))} save to one folder, {path}: each rank has rows of its own and "
                'needs a folder of its own, as f"{path}/{ranks.rank}"'
            )
        parameters = list(model.parameters())
        compare(ranks, channel, parameters, not_compared(ranks, parameters), what)
        ranks.activity.did(f"save_run as of step {step}")


def check_part(saved: Any, stage: EmbeddingStage, path: Path, step: int) -> None:
    """On all ranks: RankMismatchError unless all restore the same step, CheckpointError for another rank's part, or
    one of another number of ranks. None (of a release that did not say) is taken as it is."""
    mine = part_of(stage)
    words = "its own" if saved in (None, mine) else f"that of rank {saved[0]} of {saved[1]}"
    ranks = stage.communicator
    if ranks is not None and ranks.world_size > 1:
        facts = {"step": step, "part": words}
        agree(ranks.channel("saves"), facts, "restore of a saved run", wrong="the ranks restore what does not fit")
    if saved not in (None, mine):
        raise CheckpointError(
            f"{path} holds the rows of rank {saved[0]} of {saved[1]}, and this is rank {mine[0]} of {mine[1]}: resume "
            f"with {saved[1]}, each from what it saved"
        )
