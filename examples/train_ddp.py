"""A plain DistributedDataParallel loop: the dense model in DDP, the embedding rows in headrace's stage.

    torchrun --nproc-per-node 2 examples/train_ddp.py --data 'train_*.gz'

DDP averages the gradients of dense parameters over the ranks. Rows are not parameters, so it never sees them: each has
one owner among the ranks, and travels by the loader's plan.
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headrace
from dlrm import DLRM


def train(options: argparse.Namespace, ranks: headrace.Communicator) -> dict[str, Any]:
    """One pass over the data; this rank's rows, their mean loss and the rows of its share of the index."""
    torch.manual_seed(0)
    schema = headrace.criteo_schema(dim=options.dim)
    stage = headrace.EmbeddingStage(schema, lr=0.05, communicator=ranks)
    model = DistributedDataParallel(DLRM(len(schema.dense), len(schema.sparse), options.dim))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    rows, loss_sum = 0, 0.0
    with headrace.DataLoader(
        options.data,
        options.batch_size,
        schema=schema,
        num_workers=options.num_workers,
        timeout=300,
        drop_last=ranks.world_size > 1,  # DDP weighs ranks equally, so their batches must be of one size
        communicator=ranks,
    ) as loader:
        for batch in loader:
            assert batch.labels is not None
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch.dense, stage(batch)), batch.labels)
            loss.backward()
            optimizer.step()
            stage.step(batch)
            rows += batch.num_rows
            loss_sum += loss.item() * batch.num_rows
        index_rows = len(loader.index)
    return {"rows": rows, "loss": loss_sum / max(rows, 1), "index_rows": index_rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="training files: a path, a glob or a directory; plain or .gz")
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--num-workers", type=int, default=2)
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error(
            "start it by torchrun, as: torchrun --nproc-per-node 2 examples/train_ddp.py --data FILES; "
            "examples/train_ranks.py runs under mpirun and as one process, too"
        )
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))  # torchrun says which rank of how many this is
    try:
        with headrace.connect("gloo", timeout_s=60) as ranks:
            sys.stdout.write(f"{train(options, ranks)}\n")  # one write: ranks share the stream, lines must stay whole
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
