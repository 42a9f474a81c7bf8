"""Train a DLRM (or, with ``--model deepfm``, a DeepFM) from raw Criteo files, with headrace as the DataLoader.

    python examples/train_dlrm.py --data 'day_*.gz' --eval held_out.txt --out runs/mine

With ``--reference`` the same model is trained beside it from the same batches, its embeddings in
`torch.nn.EmbeddingBag`, and all parameters are compared after every epoch. ``--save-every N`` writes the whole run as
of one step into OUT/checkpoint, ``--resume`` continues it (with the learning rates that were saved).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

import headrace
from deepfm import DeepFM
from dlrm import DLRM
from evaluation import evaluate
from headrace.launched import refuse_several
from reference_run import ReferenceRun

REPORT_FROM_STATS = (
    "rows_per_s",
    "unique_share",
    "window",
    "hit_rate",
    "r_rows",
    "r_coverage",
    "r_coverage_unique",
    "bytes_planned",
    "trainer_wait_share",
    "stale_reads",
    "index_rows",
)


DENSE_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
}


MODELS: dict[str, Callable[[int, int, int], nn.Module]] = {"dlrm": DLRM, "deepfm": DeepFM}


class Trainer:
    """One training run: loader, embedding stage, dense model and its optimizer."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        torch.manual_seed(options.seed)
        self.schema = headrace.criteo_schema(dim=options.dim, optimizer=options.optimizer)
        self.loader = headrace.DataLoader(
            options.data,
            options.batch_size,
            shuffle=options.shuffle,
            schema=self.schema,
            window=options.window,
            capacity=options.capacity,
            hot_rows=options.hot_rows,
            num_workers=options.num_workers,
            seed=options.seed,
            bad_records=options.bad_records,
            verify_plan=options.verify_plan,
            timeout=options.timeout,
        )
        self.stage = headrace.EmbeddingStage(
            self.schema, lr=options.lr, eps=options.eps, seed=options.seed, mode=options.mode, overlap=options.overlap
        )
        self.model = MODELS[options.model](len(self.schema.dense), len(self.schema.sparse), options.dim)
        self.optimizer = DENSE_OPTIMIZERS[options.dense_optimizer](self.model.parameters(), lr=options.dense_lr)
        self.reference = self._reference() if options.reference else None
        self.step = 0
        self.epochs: list[dict[str, Any]] = []
        self._plans = hashlib.sha256()

    def _reference(self) -> ReferenceRun:
        return ReferenceRun(self.schema, self.model, self.optimizer, self.stage.initial_rows, eps=self.options.eps)

    def run(self) -> None:
        """Train the epochs that are left, evaluating after each."""
        while self.loader.epoch < self.options.epochs:
            epoch = self.loader.epoch
            trained = self.train_epoch(epoch)
            if not trained["rows"]:
                break  # resumed behind the last batch of the last epoch
            record = {"epoch": self.loader.epoch - 1, **trained}
            if self.reference is not None:
                record["reference"] = self.reference.compare(self.model, self.stage, self.loader.index)
            if self.options.eval:
                record["evaluation"] = self.evaluate(self.logits)
                if self.reference is not None:
                    record["reference"]["evaluation"] = self.evaluate(self.reference.logits)
            print(json.dumps(record), flush=True)
            self.epochs.append(record)

    def train_epoch(self, epoch: int) -> dict[str, Any]:
        """Train to the end of the epoch; its record for the report."""
        self.stage.train()
        before = self.loader.stats()
        loss_sum, rows = 0.0, 0
        bar = tqdm(unit=" rows", desc=f"epoch {epoch}", mininterval=1.0, file=sys.stderr)
        for batch in self.loader:
            if self.loader.epoch >= self.options.epochs:
                break
            if not rows:
                bar.set_description(f"epoch {self.loader.epoch}")
            loss_sum += self.train_step(batch) * batch.num_rows
            rows += batch.num_rows
            bar.update(batch.num_rows)
            waited = self.loader.stats()["trainer_wait_share"] or 0.0
            bar.set_postfix_str(f"loss {loss_sum / rows:.4f}, waited {waited:.1%}", refresh=False)
            if self.options.save_every and self.step % self.options.save_every == 0:
                self.save()
            if self.options.stop_after and self.step >= self.options.stop_after:
                sys.exit(f"stopped after step {self.step}, as asked")
        bar.close()
        stats = self.loader.stats()
        return {
            "rows": rows,
            "loss": loss_sum / rows if rows else None,
            "rows_in": stats["rows_in"] - (before["rows_in"] or 0),
            "rows_skipped": stats["rows_skipped"] - (before["rows_skipped"] or 0),
        }

    def train_step(self, batch: headrace.Batch) -> float:
        """One synchronous step: forward, backward, one update of the dense model and of each touched row."""
        self.optimizer.zero_grad()
        assert batch.labels is not None
        loss = nn.functional.binary_cross_entropy_with_logits(self.logits(batch), batch.labels)
        loss.backward()
        self.optimizer.step()
        self.stage.step(batch)
        if self.reference is not None:
            self.reference.train_step(batch, self.options.lr)
        assert batch.plan is not None
        self._plans.update(batch.plan.digest().encode())
        self.step += 1
        return loss.item()

    def logits(self, batch: headrace.Batch) -> Tensor:
        logit: Tensor = self.model(batch.dense, self.stage(batch))
        return logit

    def evaluate(self, logits_of: Any) -> dict[str, float | int | None]:
        """Over the evaluation set, with the index read only."""
        self.stage.eval()
        with headrace.DataLoader(
            self.options.eval,
            self.options.batch_size,
            schema=self.schema,
            index=self.loader.index,
            train=False,
            bad_records=self.options.bad_records,
            num_workers=self.options.num_workers,
            timeout=self.options.timeout,
        ) as loader:
            return evaluate(loader, logits_of)

    def save(self) -> None:
        """Loader position, index, rows, dense model and its optimizer, all as of this step."""
        headrace.save_run(
            self.options.out / "checkpoint",
            loader_state=self.loader.state_dict(),
            index=self.loader.index,
            stage=self.stage,
            model=self.model,
            optimizer=self.optimizer,
            step=self.step,
        )

    def resume(self) -> None:
        """Continue from OUT/checkpoint."""
        run = headrace.load_run(self.options.out / "checkpoint")
        run.restore(index=self.loader.index, stage=self.stage, model=self.model, optimizer=self.optimizer)
        self.loader.load_state_dict(run.loader_state)
        self.step = run.step

    def report(self, seconds: float) -> dict[str, Any]:
        stats = self.loader.stats()
        last = self.epochs[-1] if self.epochs else {}
        evaluation = last.get("evaluation", {})
        return {
            "rows": sum(e["rows"] for e in self.epochs),
            "epochs": self.epochs,
            "steps": self.step,
            "seconds": seconds,
            **{key: stats[key] for key in REPORT_FROM_STATS},
            "stage": self.stage.stats(),
            "auc": evaluation.get("auc"),
            "auc_of_generator": generator_auc(self.options.eval),
            "logloss": evaluation.get("logloss"),
            "rows_in": sum(e["rows_in"] for e in self.epochs),
            "rows_skipped": sum(e["rows_skipped"] for e in self.epochs),
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "plan_digest": self._plans.hexdigest(),
            "parameters_digest": self.parameters_digest(),
            "options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(self.options).items()},
        }

    def parameters_digest(self) -> str:
        """Digest of every dense parameter and every row with its optimizer state: equal iff all bits are."""
        state = hashlib.sha256()
        for name, tensor in self.model.state_dict().items():
            state.update(name.encode() + tensor.numpy().tobytes())
        keys = self.loader.index.snapshot()
        for array in self.stage.state_arrays(keys.column("location").to_numpy()).values():
            state.update(array.tobytes())
        return state.hexdigest()


def generator_auc(path: Any) -> float | None:
    """AUC of the hidden model of generated files (from their manifest): the best that a model can reach."""
    manifest = headrace.read_manifest(path) if path and os.path.isdir(path) else None
    value: float | None = manifest.results.get("auc_of_generator") if manifest else None
    return value


class _HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The description as it stands, and the default of each option."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_HelpFormatter)
    add = parser.add_argument
    add("--data", required=True, help="training files: a path, a glob or a directory; plain or .gz")
    add("--eval", help="evaluation files")
    add("--out", type=Path, default=Path("runs/train"), help="folder of report.json and of the checkpoint")
    add("--model", choices=tuple(MODELS), default="dlrm", help="the dense model")
    add("--epochs", type=int, default=1, help="passes over the data")
    add("--batch-size", type=int, default=2048, help="rows of a step")
    add("--dim", type=int, default=16, help="values of an embedding row")
    add("--optimizer", choices=("sgd", "rowwise_adagrad"), default="rowwise_adagrad", help="of the embedding rows")
    add("--lr", type=float, default=0.05, help="learning rate of the rows")
    add("--eps", type=float, default=1e-8, help="of row-wise Adagrad")
    add("--dense-optimizer", choices=tuple(DENSE_OPTIMIZERS), default="sgd", help="of the dense model")
    add("--dense-lr", type=float, default=0.1, help="learning rate of the dense model")
    add("--window", type=int, default=32, help="batches planned ahead (L)")
    add("--capacity", type=int, help="rows of the device arena")
    add("--hot-rows", type=lambda v: v if v == "auto" else int(v), default="auto", help="rows pinned in the R chunk")
    add("--mode", choices=("direct", "arena"), default="arena", help="train in the arena, as planned, or in the chunks")
    add("--no-overlap", dest="overlap", action="store_false", help="move rows in the trainer's own time")
    add("--num-workers", type=int, default=2, help="threads that decode and index")
    add("--shuffle", action="store_true", help="permute rows within windows")
    add("--seed", type=int, default=0, help="of everything random")
    add("--bad-records", choices=("raise", "skip"), default="raise", help="what to do with bad lines")
    add("--timeout", type=float, default=300, help="seconds that a batch may take")
    add("--no-verify-plan", dest="verify_plan", action="store_false", help="do not prove each plan before its step")
    add("--reference", action="store_true", help="train with torch.nn.EmbeddingBag beside it and compare")
    add("--save-every", type=int, default=0, metavar="N", help="save the run every N steps")
    add("--resume", action="store_true", help="continue the run saved in OUT")
    add("--stop-after", type=int, default=0, metavar="N", help="end behind step N, as a crash would (exit code 1)")
    options = parser.parse_args(arguments)
    if options.resume and options.reference:
        parser.error("--reference starts with the run: it is not saved, and cannot be resumed")
    return options


def main() -> None:
    options = parse()
    refuse_several("train_dlrm.py", "examples/train_ranks.py is the program that trains over ranks")
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    trainer = Trainer(options)
    with trainer.loader:
        if options.resume:
            trainer.resume()
        trainer.run()
        if not trainer.epochs:
            sys.exit(f"nothing left to train: the saved run has done its {options.epochs} epochs")
        report = trainer.report(time.perf_counter() - begin)
    path = options.out / "report.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    shown = {k: v for k, v in report.items() if k not in ("epochs", "options")}
    print(json.dumps(shown, indent=2))
    print(f"report: {path}")


if __name__ == "__main__":
    main()
