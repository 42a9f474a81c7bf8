"""Train a DLRM over ranks, or in one process, from raw Criteo files; without --data, from files that are generated.

    mpirun -n 4 python examples/train_ranks.py --data 'day_*.gz' --eval held_out.txt --out runs/mine
    torchrun --nproc-per-node 4 examples/train_ranks.py --data 'day_*.gz' --eval held_out.txt --out runs/mine
    python examples/train_ranks.py --data 'day_*.gz' --eval held_out.txt --out runs/mine

All three train the same model: --batch-size is that of all ranks together. ``--resume`` goes on from the newest step
that all ranks have saved in OUT, which all of them must see, as they must see the data.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import headrace
from dlrm import DLRM
from evaluation import evaluate

GENERATED_ROWS = 200_000


class Trainer:
    """What this rank holds: its share of the batches and of the rows, and the dense model, alike on all ranks."""

    def __init__(self, options: argparse.Namespace, ranks: headrace.Communicator) -> None:
        self.options, self.ranks = options, ranks
        self.schema = headrace.criteo_schema(dim=options.dim)
        self.loader = self._loader(options.data, shuffle=True, seed=options.seed, window=options.window)
        self.stage = headrace.EmbeddingStage(self.schema, lr=options.lr, seed=options.seed, communicator=ranks)
        torch.manual_seed(options.seed)  # the dense part begins alike on all ranks
        self.model = DLRM(len(self.schema.dense), len(self.schema.sparse), options.dim)
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=options.dense_lr)
        self.step = 0
        self.saved = options.out / "checkpoint" / str(ranks.rank)

    def _loader(self, data: str, **options: Any) -> headrace.DataLoader:
        return headrace.DataLoader(
            data,
            self.options.batch_size // self.ranks.world_size,
            schema=self.schema,
            num_workers=self.options.num_workers,
            node_size=min(self.options.node_size, self.ranks.world_size),
            timeout=self.options.timeout,
            communicator=self.ranks,
            **options,
        )

    def run(self) -> list[dict[str, Any]]:
        """Train the epochs that are left, or up to step --stop-at, which is saved; a record each."""
        epochs: list[dict[str, Any]] = []
        while self.loader.epoch < self.options.epochs and not self.stopped:
            record = self.train_epoch()
            if not record["rows"]:
                break  # resumed behind the last batch of the last epoch
            record["evaluation"] = self.evaluate()
            epochs.append(record)
            self.say(json.dumps(record))
        if epochs:
            self.save()
        return epochs

    @property
    def stopped(self) -> bool:
        return bool(self.options.stop_at) and self.step >= self.options.stop_at

    def train_epoch(self) -> dict[str, Any]:
        """Train to the end of the epoch, or from where a saved run was; loss and rows are those of all ranks."""
        self.stage.train()
        loss_sum, rows = 0.0, 0
        for batch in self.loader:
            if self.loader.epoch >= self.options.epochs:
                break
            loss = self.train_step(batch)
            if batch.num_rows:  # behind the end of the data a rank may have none; the mean over none is NaN
                loss_sum += loss * batch.num_rows
                rows += batch.num_rows
            if self.options.save_every and self.step % self.options.save_every == 0:
                self.save()
            if self.stopped:
                break
        loss_sum, rows = np.sum(self.ranks.all_gather([loss_sum, rows], "the loss of an epoch"), axis=0)
        return {"step": self.step, "rows": int(rows), "loss": float(loss_sum / rows) if rows else None}

    def train_step(self, batch: headrace.Batch) -> float:
        """One step of all ranks: the gradient is that of the mean over the global batch."""
        self.optimizer.zero_grad()
        assert batch.labels is not None
        loss = nn.functional.binary_cross_entropy_with_logits(self.logits(batch), batch.labels)
        loss.backward()
        headrace.average_gradients(self.ranks, self.model.parameters(), batch)
        self.optimizer.step()
        self.stage.step(batch)
        self.step += 1
        return loss.item()

    def logits(self, batch: headrace.Batch) -> Tensor:
        logit: Tensor = self.model(batch.dense, self.stage(batch))
        return logit

    def evaluate(self) -> dict[str, float | int | None]:
        """AUC and log loss over the rows of all ranks."""
        self.stage.eval()
        with self._loader(self.options.eval, index=self.loader.index, train=False) as loader:
            return evaluate(loader, self.logits, self.ranks)

    def save(self) -> None:
        """Each rank saves what it owns. An earlier step is removed when all ranks have saved this one."""
        headrace.save_run(
            self.saved / str(self.step),
            loader_state=self.loader.state_dict(),
            index=self.loader.index,
            stage=self.stage,
            model=self.model,
            optimizer=self.optimizer,
            step=self.step,
        )
        self.ranks.barrier()
        for step in self.saved_steps() - {self.step}:
            shutil.rmtree(self.saved / str(step))

    def saved_steps(self) -> set[int]:
        """Those of this rank; a folder is there once it is whole."""
        return {int(folder.name) for folder in self.saved.glob("[0-9]*")}

    def resume(self) -> None:
        """Go on from the newest step that all ranks have saved."""
        mine = np.array(sorted(self.saved_steps()), np.int64)
        steps = set.intersection(
            *(set(some.tolist()) for some in self.ranks.all_gather(mine, "the steps it has saved"))
        )
        if not steps:
            sys.exit(f"{self.saved.parent} has no step that all of {self.ranks.world_size} ranks have saved")
        run = headrace.load_run(self.saved / str(max(steps)))
        run.restore(index=self.loader.index, stage=self.stage, model=self.model, optimizer=self.optimizer)
        self.loader.load_state_dict(run.loader_state)
        self.step = run.step

    def report(self, epochs: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
        evaluation = epochs[-1]["evaluation"]
        sent = sum(map(sum, self.ranks.bytes_sent().values()))
        mine = [len(self.loader.index), sent]
        index_rows, bytes_sent = np.sum(self.ranks.all_gather(mine, "figures of the report"), axis=0)
        return {
            "ranks": self.ranks.world_size,
            "steps": self.step,
            "loss": epochs[-1]["loss"],
            "auc": evaluation["auc"],
            "logloss": evaluation["logloss"],
            "index_rows": int(index_rows),
            "bytes_sent": int(bytes_sent),
            "seconds": seconds,
            "epochs": epochs,
            "options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(self.options).items()},
        }

    def say(self, text: str) -> None:
        """Of all ranks one speaks."""
        if self.ranks.rank == 0:
            print(text, flush=True)


def generated(options: argparse.Namespace, ranks: headrace.Communicator) -> None:
    """Let rank 0 write files to train and to evaluate on, where none were given; the others wait for them."""
    if options.data is None:
        folder = options.out / "data"
        if ranks.rank == 0:
            rows, eval_rows = GENERATED_ROWS, GENERATED_ROWS // 10
            headrace.generate("criteo-kaggle", folder, rows=rows, eval_rows=eval_rows, files=4)
        ranks.barrier()
        options.data, options.eval = str(folder), str(folder / "eval")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", help="training files: a path, a glob or a directory; plain or .gz")
    add("--eval", help="evaluation files")
    add("--out", type=Path, default=Path("runs/ranks"), help="folder of report.json and of the checkpoint")
    add("--epochs", type=int, default=1, help="passes over the data")
    add("--batch-size", type=int, default=2048, help="rows of a step, of all ranks together")
    add("--dim", type=int, default=16, help="values of an embedding row")
    add("--lr", type=float, default=0.05, help="learning rate of the rows (row-wise Adagrad)")
    add("--dense-lr", type=float, default=0.01, help="learning rate of the dense model (Adagrad)")
    add("--window", type=int, default=32, help="batches planned ahead (L)")
    add("--num-workers", type=int, default=1, help="threads of a rank that decode and index")
    add("--node-size", type=int, default=1, metavar="G", help="G ranks a node: a row crosses to another node once")
    add("--seed", type=int, default=0, help="of everything random")
    add("--timeout", type=float, default=300, help="seconds that a batch, or another rank, may take")
    add("--save-every", type=int, default=0, metavar="N", help="save the run every N steps, too, not only at its end")
    add("--stop-at", type=int, default=0, metavar="N", help="end behind step N, as a job whose time is over")
    add("--resume", action="store_true", help="continue the run saved in OUT")
    options = parser.parse_args(arguments)
    if (options.data is None) != (options.eval is None):
        parser.error("give --data and --eval, or neither")
    return options


def train(options: argparse.Namespace, ranks: headrace.Communicator) -> None:
    if options.batch_size % ranks.world_size:
        sys.exit(f"--batch-size {options.batch_size} is no multiple of {ranks.world_size} ranks")
    begin = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    generated(options, ranks)
    trainer = Trainer(options, ranks)
    with trainer.loader:
        if options.resume:
            trainer.resume()
        epochs = trainer.run()
        if not epochs:
            sys.exit(f"nothing left to train: step {trainer.step}, which was saved, is the last one")
        report = trainer.report(epochs, time.perf_counter() - begin)
    if ranks.rank == 0:
        path = options.out / "report.json"
        path.write_text(json.dumps(report, indent=2) + "\n")
        print(f"report: {path}")


def main() -> None:
    options = parse()
    with headrace.connect(timeout_s=options.timeout) as ranks:
        train(options, ranks)


if __name__ == "__main__":
    main()
