"""A Lightning loop: headrace's loader as its dataset, the embedding rows in headrace's stage.

    pip install lightning        # or pytorch-lightning; headrace does not need it
    python examples/train_lightning.py --data 'train_*.gz' --eval held_out.txt

Optimization is manual, since the rows have an optimizer of their own, which steps beside that of the dense model.
Lightning's checkpoints hold the dense model; ``headrace.save_run`` saves rows, index and loader with it.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import headrace
from dlrm import DLRM
from evaluation import evaluate
from headrace.launched import refuse_several

try:
    import lightning.pytorch as pl
except ImportError:
    try:
        import pytorch_lightning as pl
    except ImportError:
        sys.exit("train_lightning.py needs Lightning, which headrace does not: pip install lightning")


class ClickModel(pl.LightningModule):  # type: ignore[misc, unused-ignore]
    """DLRM over headrace's rows."""

    def __init__(self, schema: headrace.Schema, dim: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.stage = headrace.EmbeddingStage(schema, lr=0.05, mode="arena")
        self.model = DLRM(len(schema.dense), len(schema.sparse), dim)
        self.rows = 0

    def forward(self, batch: headrace.Batch) -> Tensor:
        logit: Tensor = self.model(batch.dense, self.stage(batch))
        return logit

    def training_step(self, batch: headrace.Batch, batch_idx: int) -> None:
        rows, dense = self.optimizers()
        assert batch.labels is not None
        loss = nn.functional.binary_cross_entropy_with_logits(self(batch), batch.labels)
        self.manual_backward(loss)
        for optimizer in (dense, rows):
            optimizer.step()
            optimizer.zero_grad()
        self.rows += batch.num_rows
        self.log("loss", loss, batch_size=batch.num_rows, prog_bar=True)

    def configure_optimizers(self) -> Any:
        return [self.stage.optimizer(), torch.optim.Adagrad(self.model.parameters(), lr=0.01)]


def train(options: argparse.Namespace) -> dict[str, Any]:
    pl.seed_everything(0)
    schema = headrace.criteo_schema(dim=options.dim)
    model = ClickModel(schema, options.dim)
    trainer = pl.Trainer(
        max_epochs=options.epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=sys.stderr.isatty(),
    )
    common: dict[str, Any] = {"schema": schema, "num_workers": options.num_workers, "timeout": 300}
    with headrace.DataLoader(options.data, options.batch_size, **common) as loader:
        trainer.fit(model, DataLoader(loader.as_iterable_dataset(), batch_size=None))
        report: dict[str, Any] = {"rows": model.rows, "steps": model.stage.num_steps, "index_rows": len(loader.index)}
        if options.eval:
            model.eval()
            with headrace.DataLoader(
                options.eval, options.batch_size, index=loader.index, train=False, **common
            ) as held:
                report["evaluation"] = evaluate(held, model)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="training files: a path, a glob or a directory; plain or .gz")
    parser.add_argument("--eval", help="evaluation files")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--num-workers", type=int, default=2)
    options = parser.parse_args()
    refuse_several("train_lightning.py", "examples/train_ranks.py is the program that trains over ranks")
    print(train(options))


if __name__ == "__main__":
    main()
