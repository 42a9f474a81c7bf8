"""Train a DCN on Taobao's UserBehavior.csv: will a user buy, put into the cart or mark what he is shown, or only look?

    python examples/train_dcn_taobao.py --data UserBehavior.csv --out runs/taobao

Each row is a sample: label 1 for buy, cart and fav, 0 for pv; user, item, category, hour and weekday; and the items and
categories of what the user did before. For these the file is first sorted by user and time into OUT/history (once, in
bounded memory; a killed run goes on where it was). Rows from --split-time on are the evaluation set.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from dcn import DCN
from torch import Tensor, nn
from tqdm import tqdm

import headrace
from evaluation import evaluate
from headrace.formats.histories import LOGS
from headrace.formats.history_build import build_history
from headrace.formats.history_store import HistoryStore
from headrace.formats.taobao_history import taobao_history_schema
from headrace.launched import refuse_several

SPLIT_TIME = 1_512_144_000  # 2 December 2017, 00:00 in China: two of the nine days
FIRST_TIME, DAY_S = 1_511_539_200, 86_400


class Trainer:
    """One training run: sorted log, loader, embedding stage, DCN."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        torch.manual_seed(options.seed)
        self.schema = schema_of(options)
        log = LOGS["taobao-userbehavior"]
        self.sorted = build_history(
            log.open(options.data, bad_records=options.bad_records),
            options.out / "history",
            key=log.key,
            time_column=log.time,
        )
        self.store = HistoryStore(options.out / "history")
        self.loader = self._loader(headrace.keep_rows(self._is_training), shuffle=True, window=options.window)
        self.stage = headrace.EmbeddingStage(self.schema, lr=options.lr, seed=options.seed)
        self.model = DCN(len(self.schema.sparse) * options.dim, cross_layers=options.cross_layers)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=options.dense_lr)
        self.steps = 0

    def _loader(self, transform: Any, **options: Any) -> headrace.DataLoader:
        reader = headrace.open_dataset(
            "taobao-userbehavior-history",
            self.options.data,
            schema=self.schema,
            history=self.store,
            bad_records=self.options.bad_records,
        )
        return headrace.DataLoader(
            reader,
            self.options.batch_size,
            schema=self.schema,
            num_workers=self.options.num_workers,
            seed=self.options.seed,
            timeout=self.options.timeout,
            transform=transform,
            **options,
        )

    def _is_training(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        return pc.less(batch.column("timestamp"), self.options.split_time)

    def _is_evaluation(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        return pc.greater_equal(batch.column("timestamp"), self.options.split_time)

    def run(self) -> list[dict[str, Any]]:
        """Train, evaluating after each epoch."""
        epochs = []
        for epoch in range(self.options.epochs):
            record = {"epoch": epoch, **self.train_epoch(epoch), "evaluation": self.evaluate()}
            print(json.dumps(record), flush=True)
            epochs.append(record)
        return epochs

    def train_epoch(self, epoch: int) -> dict[str, Any]:
        self.stage.train()
        loss_sum, rows = 0.0, 0
        with tqdm(unit=" rows", desc=f"epoch {epoch}", mininterval=1.0, file=sys.stderr) as bar:
            for batch in self.loader:
                loss_sum += self.train_step(batch) * batch.num_rows
                rows += batch.num_rows
                bar.update(batch.num_rows)
        return {"rows": rows, "loss": loss_sum / rows if rows else None}

    def train_step(self, batch: headrace.Batch) -> float:
        """Forward, backward, one update of the model and of each touched row."""
        self.optimizer.zero_grad()
        assert batch.labels is not None
        loss = nn.functional.binary_cross_entropy_with_logits(self.logits(batch), batch.labels)
        loss.backward()
        self.optimizer.step()
        self.stage.step(batch)
        self.steps += 1
        return loss.item()

    def logits(self, batch: headrace.Batch) -> Tensor:
        logit: Tensor = self.model(self.stage(batch))
        return logit

    def evaluate(self) -> dict[str, float | int | None]:
        """Over the days behind the split, with the index read only: unseen items have the vector of a new row."""
        self.stage.eval()
        transform = headrace.keep_rows(self._is_evaluation)
        with self._loader(transform, index=self.loader.index, train=False) as loader:
            return evaluate(loader, self.logits)

    def parameters_digest(self) -> str:
        """Digest of every parameter of the model and every embedding row: equal iff all bits are."""
        state = hashlib.sha256()
        for name, tensor in self.model.state_dict().items():
            state.update(name.encode() + tensor.numpy().tobytes())
        keys = self.loader.index.snapshot()
        for array in self.stage.state_arrays(keys.column("location").to_numpy()).values():
            state.update(array.tobytes())
        return state.hexdigest()


def schema_of(options: argparse.Namespace) -> headrace.Schema:
    """The dataset's schema, and the timestamp, by which rows are divided (the model does not see it)."""
    schema = taobao_history_schema(dim=options.dim, max_length=options.max_length)
    day = headrace.Dense(name="timestamp", transform="standardise", mean=FIRST_TIME, std=DAY_S)
    return replace(schema, dense=(day,))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", required=True, help="UserBehavior.csv, plain or compressed")
    add("--out", type=Path, default=Path("runs/taobao"), help="folder of report.json and of the sorted log")
    add("--epochs", type=int, default=1)
    add("--batch-size", type=int, default=2048)
    add("--dim", type=int, default=16, help="values of an embedding row")
    add("--lr", type=float, default=0.05, help="learning rate of the rows (row-wise Adagrad)")
    add("--dense-lr", type=float, default=1e-3, help="learning rate of the model (Adam)")
    add("--cross-layers", type=int, default=2)
    add("--max-length", type=int, default=50, help="newest actions of a user's history")
    add("--split-time", type=int, default=SPLIT_TIME, help="UTC seconds from which on rows are for evaluation")
    add("--window", type=int, default=32, help="batches planned ahead (L)")
    add("--num-workers", type=int, default=2, help="threads that decode and index")
    add("--bad-records", choices=("raise", "skip"), default="raise")
    add("--timeout", type=float, default=300, help="seconds that a batch may take")
    add("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    refuse_several("train_dcn_taobao.py", "examples/train_ranks.py is the program that trains over ranks")
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    trainer = Trainer(options)
    with trainer.loader:
        epochs = trainer.run()
        stats = trainer.loader.stats()
        report = {
            "rows": sum(epoch["rows"] for epoch in epochs),
            "log_rows": trainer.sorted.rows_out,
            "users": trainer.store.num_keys,
            "epochs": epochs,
            "steps": trainer.steps,
            "auc": epochs[-1]["evaluation"]["auc"] if epochs else None,
            "logloss": epochs[-1]["evaluation"]["logloss"] if epochs else None,
            "index_rows": stats["index_rows"],
            "unique_share": stats["unique_share"],
            "trainer_wait_share": stats["trainer_wait_share"],
            "parameters_digest": trainer.parameters_digest(),
            "seconds": time.perf_counter() - begin,
        }
    path = options.out / "report.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps({k: v for k, v in report.items() if k != "epochs"}, indent=2))
    print(f"report: {path}")


if __name__ == "__main__":
    main()
