"""A run saved and restored: same bits afterwards, other processes, old versions, wrong stages."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.embed import checkpoint, run_folder
from headrace.embed.checkpoint import load_run, save_run
from headrace.embed.initializer import Normal
from headrace.embed.rows_file import write_rows
from headrace.embed.run_folder import CheckpointError
from headrace.embed.stage import EmbeddingStage
from headrace.formats.manifest import file_blake2b
from headrace.formats.schema import Label, Schema, Sparse, Table

SCHEMA = Schema(
    sparse=(Sparse(name="a"), Sparse(name="b", multi_hot=True, pooling="mean")),
    tables=(Table(name="a", dim=4), Table(name="b", dim=2, optimizer="sgd")),
)
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
}
OLD_RUN = Path(__file__).with_name("data") / "run_v1"


class FakeIndex:
    """An index of which only the snapshot counts."""

    def __init__(self, content=""):
        self.content = content

    def write_snapshot(self, path):
        Path(path).write_text(self.content)

    def read_snapshot(self, path):
        self.content = Path(path).read_text()


class Run:
    """Stage, dense model and optimizer on a fixed stream."""

    def __init__(self, *, optimizer="adam", mode="direct", **options):
        torch.manual_seed(3)
        self.stage = EmbeddingStage(SCHEMA, **{"lr": 0.05, "seed": 8, **options}, mode=mode)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())

    def train(self, batches):
        for batch in batches:
            self.optimizer.zero_grad()
            self.model(self.stage(batch)).pow(2).mean().backward()
            self.optimizer.step()
            self.stage.step(batch)

    def bits(self):
        arrays = [*self.model.state_dict().values(), *self.stage.state_arrays().values()]
        return [np.asarray(a).tobytes() for a in arrays]

    def save(self, path, **options):
        defaults = {"loader_state": {"epoch": 1}, "index": FakeIndex("keys"), "step": 5, "extra": {"best": 0.5}}
        parts = {"stage": self.stage, "model": self.model, "optimizer": self.optimizer}
        save_run(path, **{**defaults, **parts, **options})

    def restore(self, path, **options):
        parts = {"index": None, "stage": self.stage, "model": self.model, "optimizer": self.optimizer}
        run = load_run(path)
        run.restore(**{**parts, **options})
        return run


@pytest.fixture
def batches(kit):
    rng, index = np.random.default_rng(2), kit.ToyIndex()
    return [kit.make_batch(SCHEMA, kit.random_ids(SCHEMA, 8, rng), index) for _ in range(10)]


@pytest.mark.parametrize("modes", [("direct", "arena"), ("arena", "direct")])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_a_resumed_run_ends_with_the_same_bits(kit, batches, tmp_path, optimizer, modes):  # P60
    first, rest = kit.plan_batches(batches[:5]), kit.plan_batches(batches[5:], run=2, window=1, spare=3)
    whole = Run(optimizer=optimizer, mode=modes[0])
    whole.train(first)
    whole.stage.lr = 0.02
    whole.save(tmp_path / "run")
    resumed = Run(optimizer=optimizer, mode=modes[1])
    torch.nn.init.zeros_(resumed.model[0].weight)
    index = FakeIndex()
    run = resumed.restore(tmp_path / "run", index=index)
    assert (run.step, run.loader_state, run.extra, index.content) == (5, {"epoch": 1}, {"best": 0.5}, "keys")
    assert resumed.stage.lr == 0.02
    assert resumed.bits() == whole.bits()
    for one in (whole, resumed):
        one.train(rest)
    assert resumed.bits() == whole.bits()


IN_ANOTHER_PROCESS = """
import sys
from headrace.embed.checkpoint import load_run
from headrace.embed.stage import EmbeddingStage
import torch
run = load_run(sys.argv[1])
stage = EmbeddingStage(run.schema, seed=8)
model = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
run.restore(index=None, stage=stage, model=model, optimizer=torch.optim.Adam(model.parameters()))
import hashlib
state = hashlib.sha256()
for array in [*model.state_dict().values(), *stage.state_arrays().values()]:
    state.update(memoryview(array.numpy() if isinstance(array, torch.Tensor) else array).tobytes())
print(state.hexdigest())
"""


def test_a_fresh_process_reads_the_same_rows(kit, batches, tmp_path):  # P60
    import hashlib

    run = Run()
    run.train(kit.plan_batches(batches))
    run.save(tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=100,
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")},
    )
    assert done.stdout.split() == [hashlib.sha256(b"".join(run.bits())).hexdigest()], done.stderr


def test_saving_does_not_disturb_the_run(kit, batches, tmp_path):
    planned = kit.plan_batches(batches, window=1, spare=2)
    runs = [Run(mode="arena"), Run(mode="arena")]
    for t, batch in enumerate(planned):
        for run in runs:
            run.train([batch])
        runs[0].save(tmp_path / "run", step=t)
    assert runs[0].bits() == runs[1].bits()
    assert load_run(tmp_path / "run").step == 9
    assert len(repr(load_run(tmp_path / "run"))) < 300  # the place and the step, no tensors


def test_states_with_arrays_and_tuples_come_back(tmp_path):
    state = {"order": np.arange(3), "pair": (1, None), "by_worker": {0: {"at": 2.5}}, "raw": b"\x00\xff"}
    Run().save(tmp_path / "run", loader_state=state, extra=None)
    run = load_run(tmp_path / "run")
    assert run.loader_state.pop("order").tolist() == [0, 1, 2]
    assert run.loader_state == {"pair": (1, None), "by_worker": {0: {"at": 2.5}}, "raw": b"\x00\xff"}
    assert run.extra == {}


def test_what_is_not_plain_data_is_refused_and_leaves_the_old_run(tmp_path):
    run = Run()
    run.save(tmp_path / "run")
    with pytest.raises(TypeError, match=r"extra\['f'\] is a function"):
        run.save(tmp_path / "run", step=9, extra={"f": lambda: 0})
    assert load_run(tmp_path / "run").step == 5


def test_a_run_that_was_never_trained(tmp_path):
    run = Run()
    run.save(tmp_path / "run")
    other = Run()
    other.restore(tmp_path / "run")
    assert other.bits() == run.bits()


def changed_schema():
    return replace(SCHEMA, tables=(Table(name="a", dim=8), SCHEMA.tables[1]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EmbeddingStage(changed_schema(), seed=8), r"another schema: tables: 'a' dim 4 and 8 \(in"),
        (
            lambda: EmbeddingStage(replace(SCHEMA, sparse=SCHEMA.sparse[::-1], tables=SCHEMA.tables[::-1]), seed=8),
            "sparse: in another order; tables: in another order",
        ),
        (lambda: EmbeddingStage(SCHEMA, seed=9), "saved with seed=8, the stage has seed=9"),
        (lambda: EmbeddingStage(SCHEMA, seed=8, eps=1e-10), "saved with eps=1e-08, the stage has eps=1e-10"),
        (lambda: EmbeddingStage(SCHEMA, seed=8, initializer=Normal()), "saved with initializer=.*Uniform.*Normal"),
    ],
)
def test_another_stage_is_refused_and_nothing_changes(kit, batches, tmp_path, make, message):  # P55
    run = Run()
    run.train(kit.plan_batches(batches))
    run.save(tmp_path / "run")
    index, model, stage = FakeIndex(), Run().model, make()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=message):
        load_run(tmp_path / "run").restore(stage=stage, model=model, optimizer=run.optimizer, index=index)
    assert index.content == ""
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert stage.stores[0].num_written == 0


def test_an_optimizer_must_be_on_both_sides(tmp_path):
    run = Run()
    run.save(tmp_path / "run", optimizer=None)
    with pytest.raises(CheckpointError, match="saved with no optimizer"):
        run.restore(tmp_path / "run")
    run.restore(tmp_path / "run", optimizer=None)
    run.save(tmp_path / "run")
    with pytest.raises(CheckpointError, match="saved with an optimizer"):
        run.restore(tmp_path / "run", optimizer=None)


def test_the_optimizer_of_the_rows_is_not_that_of_the_dense_part(tmp_path):
    run = Run()
    rows = run.stage.optimizer()
    with pytest.raises(TypeError, match="that of the dense part, or None"):
        run.save(tmp_path / "run", optimizer=rows)
    assert not (tmp_path / "run").exists()
    run.save(tmp_path / "run")
    with pytest.raises(TypeError, match="that of the dense part, or None"):
        run.restore(tmp_path / "run", optimizer=rows)


def test_a_run_is_restored_for_scoring_without_its_optimizer(kit, batches, tmp_path):
    run = Run()
    run.train(kit.plan_batches(batches))
    run.save(tmp_path / "run")
    saved, index = load_run(tmp_path / "run"), FakeIndex()
    scoring = Run(eps=1e-4)  # which only training asks for
    saved.restore(index=index, stage=scoring.stage, model=scoring.model, training=False)
    assert (index.content, scoring.bits()) == ("keys", run.bits())
    rows = EmbeddingStage(replace(SCHEMA, labels=(Label(name="y"),)), seed=8)  # labels are nothing to the rows
    saved.restore(index=None, stage=rows, training=False)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(rows.state_arrays().values(), run.stage.state_arrays().values(), strict=True)
    )
    with pytest.raises(CheckpointError, match=r"an optimizer of the dense model; .* training=False to score only"):
        saved.restore(index=None, stage=run.stage, model=run.model)
    with pytest.raises(CheckpointError, match="model= is missing; only with training=False"):
        saved.restore(index=None, stage=run.stage)


def test_the_index_cannot_be_left_out_by_accident(tmp_path):
    run = Run()
    run.save(tmp_path / "run")
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'index'"):
        load_run(tmp_path / "run").restore(stage=run.stage, model=run.model, optimizer=run.optimizer)


@pytest.mark.parametrize("mode", ["direct", "arena"])
class TestGradientsThatWait:
    def test_saving_would_lose_them(self, kit, batches, tmp_path, mode):
        run, planned = Run(mode=mode), kit.plan_batches(batches)
        run.stage(planned[0]).sum().backward()
        with pytest.raises(RuntimeError, match=r"save_run while gradients wait .*stage\.step\(batch\).*zero_grad\(\)"):
            run.save(tmp_path / "run")
        run.stage(planned[1])  # they wait behind the next forward too
        with pytest.raises(RuntimeError, match="save_run while gradients wait"):
            run.save(tmp_path / "run")
        assert not (tmp_path / "run").exists()
        run.stage.optimizer().step()
        run.save(tmp_path / "run")
        run.stage(planned[1]).sum().backward()
        run.stage.optimizer().zero_grad()
        run.save(tmp_path / "run", step=6)
        assert load_run(tmp_path / "run").step == 6

    def test_those_that_a_scaler_passed_by_are_not_missed(self, kit, batches, tmp_path, mode):
        run, planned = Run(mode=mode), kit.plan_batches(batches)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(run.stage(planned[0]).sum() * float("inf")).backward()
        scaler.step(run.stage.optimizer())
        scaler.update()
        run.save(tmp_path / "run")
        assert run.stage.num_steps == 0


@pytest.mark.parametrize("name", ["index.arrow", "rows_0.arrow", "rows_1.arrow", "dense.npz", "dense_optimizer.npz"])
def test_a_damaged_file_is_named(kit, batches, tmp_path, name):
    run = Run()
    run.train(kit.plan_batches(batches))
    run.save(tmp_path / "run")
    content = bytearray((tmp_path / "run" / name).read_bytes())
    content[len(content) // 2] ^= 4
    (tmp_path / "run" / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load_run(tmp_path / "run")


def trained(kit, batches, path, **options):
    run = Run()
    run.train(kit.plan_batches(batches))
    run.save(path, **options)
    return run


class Untouched:
    """A fresh run that must not change."""

    def __init__(self, **options):
        self.run, self.index = Run(**options), FakeIndex("empty")
        self.before = self.run.bits(), repr(self.run.optimizer.state_dict()), self.run.stage.lr

    def check(self):
        assert (self.run.bits(), repr(self.run.optimizer.state_dict()), self.run.stage.lr) == self.before
        assert self.index.content == "empty"

    def restore(self, saved, **options):
        parts = {"stage": self.run.stage, "model": self.run.model, "optimizer": self.run.optimizer}
        saved.restore(**{**parts, "index": self.index, **options})


def test_a_checkpoint_that_was_replaced_is_not_restored(kit, batches, tmp_path):
    run = trained(kit, batches[:5], tmp_path / "run")
    saved, fresh = load_run(tmp_path / "run"), Untouched(lr=0.25)
    run.train(kit.plan_batches(batches[5:], run=2))
    run.save(tmp_path / "run", step=9)
    with pytest.raises(CheckpointError, match="was replaced by a newer checkpoint; call load_run again"):
        fresh.restore(saved)
    fresh.check()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(CheckpointError, match="was replaced by a newer checkpoint"):
        fresh.restore(saved)
    fresh.check()


@pytest.mark.parametrize("fails", [False, True])
def test_a_checkpoint_that_is_replaced_while_the_index_is_read(kit, batches, tmp_path, fails):
    run = trained(kit, batches, tmp_path / "run")
    saved, fresh = load_run(tmp_path / "run"), Untouched(lr=0.25)

    class SlowIndex:
        def read_snapshot(self, path):
            run.save(tmp_path / "run", step=9)
            if fails:
                raise FileNotFoundError(path)

    with pytest.raises(CheckpointError, match=r"was replaced .* the index given may hold that one's keys"):
        fresh.restore(saved, index=SlowIndex())
    fresh.check()


def test_loading_while_another_saves_gives_one_checkpoint(kit, batches, tmp_path, monkeypatch):
    run, read = trained(kit, batches, tmp_path / "run"), checkpoint._read_arrays
    steps = iter([6, 7])

    def reading(path):
        arrays = read(path)
        if path.name == "dense.npz" and (step := next(steps, None)):
            run.model[0].bias.data.fill_(step)
            run.save(tmp_path / "run", step=step)
        return arrays

    monkeypatch.setattr(checkpoint, "_read_arrays", reading)
    saved = load_run(tmp_path / "run")
    assert saved.step == 7
    assert saved.dense["0.bias"].tolist() == [7, 7, 7]


def test_a_link_that_was_pointed_elsewhere_does_not_matter(kit, batches, tmp_path):
    run = trained(kit, batches[:5], tmp_path / "one")
    (tmp_path / "latest").symlink_to("one")
    saved, bits = load_run(tmp_path / "latest"), run.bits()
    run.train(kit.plan_batches(batches[5:], run=2))
    run.save(tmp_path / "two")
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to("two")
    other = Run()
    saved.restore(index=None, stage=other.stage, model=other.model, optimizer=other.optimizer)
    assert other.bits() == bits


def test_another_model_or_optimizer_is_refused_and_nothing_changes(kit, batches, tmp_path):
    trained(kit, batches, tmp_path / "run")
    saved = load_run(tmp_path / "run")
    fresh = Untouched(optimizer="sgd", lr=0.25)
    with pytest.raises(CheckpointError, match=r"another optimizer than SGD: only saved .*'amsgrad'.*'momentum'"):
        fresh.restore(saved)
    fresh.check()
    fresh = Untouched(lr=0.25)
    with pytest.raises(CheckpointError, match=r"0\.weight of shape \[3, 6\], the model has \[3, 5\]"):
        fresh.restore(saved, model=torch.nn.Sequential(torch.nn.Linear(5, 3), *fresh.run.model[1:]))
    fresh.check()


def rewrite_meta(path, change):
    """Change a description, with the right checksums of everything."""
    meta = json.loads((path / "meta.json").read_text())
    change(meta)
    meta["files"] = {name: file_blake2b(path / name) for name in meta["files"]}
    del meta["checksum"]
    (path / "meta.json").write_text(json.dumps({**meta, "checksum": run_folder._content_digest(meta)}))


@pytest.mark.parametrize(
    ("locations", "rows", "message"),
    [
        ([1, 1], np.ones((2, 2)), "location 0x1 occurs twice"),
        ([1], np.ones((1, 3)), r"rows of shape \(1, 3\)"),
        ([2**63], np.ones((1, 2)), "tier bits"),
    ],
)
def test_rows_of_the_last_group_that_do_not_fit_change_nothing(kit, batches, tmp_path, locations, rows, message):
    trained(kit, batches, tmp_path / "run")
    write_rows(tmp_path / "run" / "rows_1.arrow", np.array(locations, np.uint64), rows.astype(np.float32))
    rewrite_meta(tmp_path / "run", lambda meta: None)
    saved, fresh = load_run(tmp_path / "run"), Untouched(lr=0.25)
    with pytest.raises(CheckpointError, match=message):
        fresh.restore(saved)
    fresh.check()


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.pop("step"),
        lambda meta: meta.update(step=-1),
        lambda meta: meta.update(step="5"),
        lambda meta: meta.pop("dense"),
        lambda meta: meta.update(stage=[]),
        lambda meta: meta["stage"].update(lr="high"),
        lambda meta: meta.update(extra={"$array": 99}),
    ],
)
def test_forged_descriptions_are_refused(tmp_path, change):
    Run().save(tmp_path / "run")
    rewrite_meta(tmp_path / "run", change)
    with pytest.raises(CheckpointError, match="its description is not one of this release"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.update(dense=5),
        lambda meta: meta.update(dense=None),
        lambda meta: meta.update(dense_optimizer=[1]),
        lambda meta: meta["dense_optimizer"].update(state=None),
        lambda meta: meta["dense_optimizer"].pop("state"),
        lambda meta: meta["dense_optimizer"].update(param_groups=3),
        lambda meta: meta["dense_optimizer"]["param_groups"].append(7),
        lambda meta: meta["dense_optimizer"]["param_groups"][0].update(params=3),
        lambda meta: meta.pop("schema"),
        lambda meta: meta["schema"]["tables"][0].update(name="\ud800"),
        lambda meta: meta["stage"].update(lr=10**400),
        lambda meta: meta.update(extra=_nested(300)),
    ],
)
def test_descriptions_of_another_form_are_refused(tmp_path, change):
    Run().save(tmp_path / "run")
    rewrite_meta(tmp_path / "run", change)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 250)
    try:
        with pytest.raises(CheckpointError, match="run"):
            load_run(tmp_path / "run")
    finally:
        sys.setrecursionlimit(limit)


def _nested(depth):
    tree = []
    for _ in range(depth):
        tree = [tree]
    return tree


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta["dense"].update({"0.weight": "x"}),
        lambda meta: meta["dense_optimizer"]["state"]["$items"][0].__setitem__(1, 5),
        lambda meta: meta["dense_optimizer"]["state"]["$items"][1][1].update(step=[]),
        lambda meta: meta["dense_optimizer"]["param_groups"][0]["params"].__setitem__(0, {"x": 1}),
    ],
)
def test_a_state_that_model_or_optimizer_refuse_changes_nothing(kit, batches, tmp_path, change):
    trained(kit, batches, tmp_path / "run")
    rewrite_meta(tmp_path / "run", change)
    saved, fresh, index = load_run(tmp_path / "run"), Untouched(lr=0.25), FakeIndex()
    with pytest.raises(CheckpointError, match="does not take its state"):
        fresh.restore(saved, index=index)
    fresh.check()
    assert index.content == ""


def test_what_the_index_refuses_leaves_model_and_optimizer_as_they_were(kit, batches, tmp_path):
    class Refuses(FakeIndex):
        def read_snapshot(self, path):
            raise ValueError("not empty")

    trained(kit, batches, tmp_path / "run")
    saved, fresh = load_run(tmp_path / "run"), Untouched(lr=0.25)
    with pytest.raises(ValueError, match="not empty"):
        fresh.restore(saved, index=Refuses())
    fresh.check()


@pytest.mark.parametrize(("field", "value"), [(6, 0x01), (6, 0x20), (6, 0x40), (8, 99)])  # encrypted, .., no method
def test_archives_of_other_kinds_are_refused(tmp_path, field, value):
    Run().save(tmp_path / "run")
    path = tmp_path / "run" / "dense.npz"
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"PK\x03\x04") + field] = raw[raw.index(b"PK\x01\x02") + field + 2] = value
    path.write_bytes(raw)
    rewrite_meta(tmp_path / "run", lambda meta: None)
    with pytest.raises(CheckpointError, match=r"dense\.npz: not a file of arrays"):
        load_run(tmp_path / "run")


def test_forged_arrays_are_refused(tmp_path):
    Run().save(tmp_path / "run")
    (tmp_path / "run" / "dense.npz").write_bytes(b"PK\x03\x04 and no more")
    rewrite_meta(tmp_path / "run", lambda meta: None)
    with pytest.raises(CheckpointError, match=r"dense\.npz: not a file of arrays"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize("step", [np.int64(3), np.uint8(3), 3])
def test_steps_are_integers_of_any_type(tmp_path, step):
    Run().save(tmp_path / "run", step=step)
    assert load_run(tmp_path / "run").step == 3


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (-1, ValueError),
        (np.int64(-1), ValueError),
        (True, TypeError),
        (3.0, TypeError),
        ("3", TypeError),
        (None, TypeError),
    ],
)
def test_other_steps_are_refused_before_anything_is_written(tmp_path, step, error):
    with pytest.raises(error, match="step="):
        Run().save(tmp_path / "run", step=step)
    assert list(tmp_path.iterdir()) == []


class SizedIndex(FakeIndex):
    def __init__(self, size):
        super().__init__("keys")
        self.size = size

    def __len__(self):
        return self.size


@pytest.mark.parametrize("mode", ["direct", "arena"])
def test_an_index_that_does_not_know_the_rows_is_refused(kit, batches, tmp_path, mode):
    run = Run(mode=mode)
    run.save(tmp_path / "run", step=1, index=SizedIndex(0))
    planned = kit.plan_batches(batches, spare=100)  # in the arena most rows are in no chunk yet
    run.train(planned)
    written = sum(len({x for b in batches for x in b.groups[g].locations.tolist()}) for g in (0, 1))
    with pytest.raises(
        ValueError, match=rf"does not belong to the stage: it knows {written - 1} rows.*written {written}"
    ):
        run.save(tmp_path / "run", step=2, index=SizedIndex(written - 1))
    assert load_run(tmp_path / "run").step == 1
    run.save(tmp_path / "run", step=2, index=SizedIndex(written))
    assert load_run(tmp_path / "run").step == 2


def test_a_model_that_contains_the_stage_is_saved_without_a_warning(kit, batches, tmp_path):
    def whole():
        run = Run()
        run.model = torch.nn.ModuleDict({"stage": run.stage, "top": run.model})
        return run

    run, other = whole(), whole()
    run.model["top"][0].bias.data.fill_(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.save(tmp_path / "run")
        other.restore(tmp_path / "run")
    assert other.model["top"][0].bias.tolist() == [2, 2, 2]


def test_versions_to_come_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "VERSION", 2)
    Run().save(tmp_path / "run")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="has version 2; this release reads version 1"):
        load_run(tmp_path / "run")


def test_schemas_to_come_are_refused(tmp_path):
    path = tmp_path / "run"
    Run().save(path)
    meta = json.loads((path / "meta.json").read_text())
    meta["schema"]["tables"][0]["precision"] = "half"
    del meta["checksum"]
    (path / "meta.json").write_text(json.dumps({**meta, "checksum": run_folder._content_digest(meta)}))
    with pytest.raises(CheckpointError, match="unknown key 'precision'"):
        load_run(path)


def test_checkpoints_of_version_1_are_read_for_ever(kit):  # P59: the folder in data/ was written by release 0.1
    run = Run(optimizer="adagrad")
    index = FakeIndex()
    saved = run.restore(OLD_RUN, index=index)
    assert (saved.step, saved.loader_state, saved.extra) == (4, {"epoch": 1, "at": (2, 3)}, {"auc": 0.75})
    assert index.content == "a snapshot\n"
    assert run.stage.lr == 0.25
    state = run.stage.state_arrays()
    assert state["locations_0"].tolist() == [5, (65_536 << 14) + 3]
    assert state["rows_0"].tolist() == [[1, 2, 3, 4, 0.5], [5, 6, 7, 8, 0.25]]
    assert state["locations_1"].tolist() == [9]
    assert state["rows_1"].tolist() == [[-1, -2]]
    assert run.model[0].bias.tolist() == [1, 2, 3]
    assert run.optimizer.state_dict()["state"][0]["step"].item() == 1
