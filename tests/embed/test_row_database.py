"""Rows by raw id for loops of their own: against the stage's own training, in both modes, with a real index."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.embed.clipping import clip_grad_norm_
from headrace.embed.initializer import Constant
from headrace.embed.row_database import RowDatabase
from headrace.embed.stage import EmbeddingStage
from headrace.embed.table_file import import_rows
from headrace.formats.rows import Source, SourceRange
from headrace.formats.schema import Schema, Sparse, Table
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IdColumn
from headrace.ingest.nodes.index import index_tables

SCHEMA = Schema(
    sparse=(Sparse(name="items"), Sparse(name="users"), Sparse(name="shops")),
    tables=(
        Table(name="items", dim=2, optimizer="sgd"),
        Table(name="users", dim=3, optimizer="adam"),
        Table(name="shops", dim=2, optimizer="sgd"),
    ),
)


@pytest.fixture
def index():
    with DIT(index_tables(SCHEMA)) as index:
        yield index


@pytest.fixture(params=["direct", "arena"])
def stage(request):
    return EmbeddingStage(SCHEMA, lr=1.0, initializer=Constant(value=0.0), mode=request.param)


@pytest.fixture
def database(stage, index):
    return RowDatabase(stage, index)


def ones(ticket, table, dim=2, value=1.0):
    return {table: np.full((len(ticket.unique_ids[table]), dim), value, np.float32)}


def test_query_ids_are_positions_in_the_pulled_rows(database, stage):
    ids = {"users": [5, 9, 5], "items": np.array([7, -1, 7, 0], np.int64), "shops": np.array([2**64 - 1], np.uint64)}
    ticket = database.prefetch(ids)
    assert {n: q.tolist() for n, q in ticket.query_ids.items()} == {
        "users": [0, 1, 0],
        "items": [0, 1, 0, 2],
        "shops": [0],
    }
    assert ticket.unique_ids["items"].tolist() == [7, 2**64 - 1, 0]
    rows = database.pull(ticket)
    assert {n: r.shape for n, r in rows.items()} == {"users": (2, 3), "items": (3, 2), "shops": (1, 2)}
    database.push(ticket, {"items": np.array([[1, 2], [3, 4], [5, 6]], np.float32)})
    database.push(ticket, {"shops": torch.ones(1, 2)})
    assert not any(r.any() for r in database.pull(ticket).values())  # nothing moves before the update
    database.update()
    assert database.pull(ticket)["items"].tolist() == [[-1, -2], [-3, -4], [-5, -6]]
    assert database.pull(ticket)["shops"].tolist() == [[-1, -1]]  # same raw bits as an item, another row
    assert not database.pull(ticket)["users"].any()
    assert stage.num_steps == 1


def test_several_tickets_in_flight_see_each_others_updates(database):  # P85
    first, second = database.prefetch({"items": [1, 2]}), database.prefetch({"items": [2, 3]})
    assert database.in_flight == 2
    database.push(second, ones(second, "items"))
    database.push(first, ones(first, "items", value=10))
    database.release(second)  # what was pushed stays
    database.update()
    third = database.prefetch({"items": [3, 2, 1]})
    assert database.pull(third)["items"][:, 0].tolist() == [-1, -11, -10]
    assert database.pull(first)["items"][:, 0].tolist() == [-10, -11]
    assert database.in_flight == 2


def test_it_trains_as_the_stage_does(kit, rng, index):
    ids = [rng.integers(0, 20, (2, 12)) for _ in range(10)]
    toy, trained = kit.ToyIndex(), EmbeddingStage(SCHEMA, lr=0.1)
    batches = [
        kit.make_batch(
            SCHEMA, {n: [[int(x)] for x in one[i % 2]] for i, n in enumerate(("items", "users", "shops"))}, toy
        )
        for one in ids
    ]
    served = EmbeddingStage(SCHEMA, lr=0.1)
    database = RowDatabase(served, index)
    for one, batch in zip(ids, kit.plan_batches(batches), strict=True):
        factor = rng.standard_normal((12, 7)).astype(np.float32)
        (trained(batch) * torch.from_numpy(factor)).sum().backward()
        trained.step(batch)
        ticket = database.prefetch({"items": one[0], "users": one[1], "shops": one[0]})
        columns = {"items": slice(0, 2), "users": slice(2, 5), "shops": slice(5, 7)}
        grads = {}
        for name, part in columns.items():
            grads[name] = np.zeros((len(ticket.unique_ids[name]), factor[:, part].shape[1]), np.float32)
            for i, q in enumerate(ticket.query_ids[name]):
                grads[name][q] += factor[i, part]
        database.push(ticket, grads)
        database.update()
        database.release(ticket)
    last = database.prefetch({"items": ids[0][0], "users": ids[0][1], "shops": ids[0][0]})
    rows = database.pull(last)
    mine = np.concatenate([rows[n][last.query_ids[n]] for n in ("items", "users", "shops")], axis=1)
    trained.eval()
    assert mine.tobytes() == trained(batches[0]).numpy().tobytes()


def test_missing_values_are_rows_of_their_own(database):
    ticket = database.prefetch({"items": [0, 0, 5]}, missing={"items": [False, True, True]})
    assert ticket.query_ids["items"].tolist() == [0, 1, 1]
    assert ticket.missing["items"].tolist() == [False, True]


def test_unknown_ids_without_insert_read_as_they_would_start(index, database):
    database.push(ticket := database.prefetch({"items": [1]}), ones(ticket, "items"))
    database.update()
    seen = database.prefetch({"items": [1, 99]}, insert=False)
    assert database.pull(seen)["items"].tolist() == [[-1, -1], [0, 0]]
    assert len(index) == 1
    with pytest.raises(ValueError, match=r"gradient of id 99 of table 'items', which has no row.*insert=False"):
        database.push(seen, ones(seen, "items"))
    database.update()
    assert database.pull(seen)["items"].tolist() == [[-1, -1], [0, 0]]


@pytest.mark.parametrize("name", ["index", "commit"])
def test_ctrl_c_behind_a_lookup_leaves_no_row_that_nobody_knows_of(database, index, monkeypatch, name):
    """Rows of a ticket that nobody has would be committed with the next one's."""
    done = getattr(DIT, name)

    def interrupted(self, *args):
        done(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DIT, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            database.prefetch({"users": [1, 2, 3]})
    assert index.num_provisional == 0
    known = len(index)
    assert known == (0 if name == "index" else 3)
    database.prefetch({"users": [7]})
    assert len(index) == known + 1


def test_gradients_may_be_clipped_and_dropped(database, stage):
    ticket = database.prefetch({"items": [1]})
    database.push(ticket, {"items": np.array([[3, 4]], np.float32)})
    assert clip_grad_norm_(stage, max_norm=1.0).item() == 5
    database.update()
    np.testing.assert_allclose(database.pull(ticket)["items"], [[-0.6, -0.8]], rtol=1e-5)
    database.push(ticket, ones(ticket, "items"))
    stage.optimizer().zero_grad()
    database.update()
    assert stage.num_steps == 1


def test_what_was_pushed_is_a_copy(database):
    ticket = database.prefetch({"items": [1]})
    grads = ones(ticket, "items")
    database.push(ticket, grads)
    grads["items"][:] = 99
    database.update()
    assert database.pull(ticket)["items"].tolist() == [[-1, -1]]


def test_empty_requests(database):
    assert database.pull(database.prefetch({})) == {}
    ticket = database.prefetch({"items": []})
    assert database.pull(ticket)["items"].shape == (0, 2)
    database.push(ticket, ones(ticket, "items"))
    database.update()


class TestBlocks:
    def test_a_ticket_is_released_at_the_end_of_its_block(self, database, stage):
        with database.prefetch({"items": [1]}) as ticket:
            assert database.in_flight == 1
            database.push(ticket, ones(ticket, "items"))
        assert database.in_flight == 0
        database.update()  # what was pushed stays
        assert stage.num_steps == 1

    def test_on_an_error_too_which_goes_on(self, database):
        with pytest.raises(ValueError, match="of which"), database.prefetch({"items": [1]}) as ticket:
            database.push(ticket, {"users": np.ones((1, 3), np.float32)})
        assert database.in_flight == 0

    def test_one_that_was_released_within_is_left_alone(self, database):
        with database.prefetch({"items": [1]}) as ticket:
            database.release(ticket)
        with pytest.raises(RuntimeError, match="released"), ticket:
            pytest.fail("no ticket to enter")

    def test_blocks_within_blocks(self, database):
        with database.prefetch({"items": [1]}) as outer, database.prefetch({"items": [2]}) as inner:
            assert database.in_flight == 2
            assert database.pull(outer)["items"].shape == database.pull(inner)["items"].shape
        assert database.in_flight == 0


class TestRefusals:
    @pytest.mark.parametrize(
        "values",
        [
            torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
            torch.tensor([1, 2]).to_sparse(),
            torch.empty(2, dtype=torch.int64, device="meta"),
            np.ma.array([1, 2], mask=[False, True]),
        ],
    )
    def test_what_is_no_plain_array(self, database, stage, index, values):
        with pytest.raises(TypeError, match=r"table 'items': ids (that are|in a masked)"):
            database.prefetch({"items": values})
        with pytest.raises(TypeError, match=r"table 'items': flags of missing (that are|in a masked)"):
            database.prefetch({"items": [1, 2]}, missing={"items": values})
        with pytest.raises(TypeError, match=r"table 'items': ids (that are|in a masked)"):
            import_rows(stage, index, "items", values, np.zeros((2, 2), np.float32))
        if not isinstance(values, torch.Tensor) or values.dtype != torch.bfloat16:
            with pytest.raises(TypeError, match=r"table 'items': vectors (that are|in a masked)"):
                import_rows(stage, index, "items", [1, 2], values)
        assert (len(index), database.in_flight) == (0, 0)

    def test_gradients_under_a_mask(self, database, stage):
        ticket = database.prefetch({"items": [1]})
        with pytest.raises(TypeError, match="table 'items': gradients in a masked array"):
            database.push(ticket, {"items": np.ma.array(np.ones((1, 2), np.float32), mask=True)})
        database.update()
        assert stage.num_steps == 0

    @pytest.mark.parametrize("wrong", [None, {"items": [1]}, 5, "ticket"])
    def test_what_is_no_ticket(self, database, wrong):
        for use in (database.pull, database.release, lambda t: database.push(t, {})):
            with pytest.raises(TypeError, match=r"a ticket is what prefetch\(ids\) gave, not a "):
                use(wrong)

    def test_released_and_foreign_tickets(self, database, stage, index):
        ticket = database.prefetch({"items": [1]})
        database.release(ticket)
        foreign = RowDatabase(stage, index).prefetch({"items": [1]})
        for bad in (ticket, foreign):
            for use in (
                lambda t: database.pull(t),
                lambda t: database.push(t, ones(t, "items")),
                lambda t: database.release(t),
            ):
                with pytest.raises(RuntimeError, match="released"):
                    use(bad)
        database.update()
        assert stage.num_steps == 0

    @pytest.mark.parametrize(
        ("grads", "message"),
        [
            ({"items": np.ones((1, 2), np.float32)}, r"float32 \[1, 2\], not float32 \[2, 2\]"),
            ({"items": np.ones((2, 3), np.float32)}, r"float32 \[2, 3\], not"),
            ({"items": np.ones((2, 2))}, r"float64 \[2, 2\], not"),
            ({"items": [[1.0, 2.0], [3.0]]}, "^table 'items': gradients that are no array: "),
            ({"users": np.ones((2, 3), np.float32)}, "'users', of which the ticket has no ids"),
            ({"items": np.ones((2, 2), np.float32), "zzz": 1}, "'zzz', of which"),
        ],
    )
    def test_gradients_of_another_shape(self, database, stage, grads, message):
        ticket = database.prefetch({"items": [1, 2]})
        with pytest.raises(ValueError, match=message):
            database.push(ticket, grads)
        database.update()
        assert stage.num_steps == 0

    def test_nan_names_table_id_file_and_row(self, database, stage, index):
        source = Source(("day.tsv",), (SourceRange(0, 40, 3),))
        ticket = database.prefetch({"items": [5, 6, 6]}, source=source)
        bad = ones(ticket, "items")
        bad["items"][1, 1] = np.nan
        with pytest.raises(FloatingPointError, match=r"id 6 of table 'items' .* position 1, row 41 of day\.tsv"):
            database.push(ticket, bad)
        with pytest.raises(FloatingPointError, match=r"id 6 of table 'items' is not finite$"):
            database.push(database.prefetch({"items": [5, 6]}), bad)
        database.update()
        assert stage.num_steps == 0
        careless = RowDatabase(stage, index, on_nan="ignore")
        careless.push(ticket := careless.prefetch({"items": [5, 6]}), bad)
        careless.update()
        assert np.isnan(careless.pull(ticket)["items"]).tolist() == [[False, False], [False, True]]

    def test_frozen_tables(self, index):
        database = RowDatabase(EmbeddingStage(SCHEMA, frozen=["items"]), index)
        ticket = database.prefetch({"items": [1]})
        with pytest.raises(ValueError, match="'items', which is frozen"):
            database.push(ticket, ones(ticket, "items"))

    @pytest.mark.parametrize("ids", [[1.5], ["a"], [2**64], [[1]], [None]])
    def test_ids_that_are_none(self, database, index, ids):
        with pytest.raises((TypeError, ValueError), match="table 'items': ids of"):
            database.prefetch({"items": ids})
        assert len(index) == database.in_flight == 0

    def test_what_is_no_mapping_and_no_float32(self, database):
        with pytest.raises(TypeError, match=r"ids is a mapping from table, .*, not a list"):
            database.prefetch([1, 2])
        with pytest.raises(TypeError, match="missing is a mapping"):
            database.prefetch({"items": [1]}, missing=[True])
        ticket = database.prefetch({"items": [1]})
        with pytest.raises(TypeError, match="grads is a mapping"):
            database.push(ticket, np.ones((1, 2), np.float32))
        with pytest.raises(ValueError, match=r"torch.bfloat16, not float32: pass gradients.float"):
            database.push(ticket, {"items": torch.ones(1, 2, dtype=torch.bfloat16)})

    def test_names_and_masks(self, database):
        with pytest.raises(ValueError, match="'zzz' is not a table"):
            database.prefetch({"zzz": [1]})
        with pytest.raises(ValueError, match=r"missing is int64 \[1\], not bool"):
            database.prefetch({"items": [1]}, missing={"items": [0]})
        with pytest.raises(ValueError, match="'users' has no ids"):
            database.prefetch({"items": [1]}, missing={"users": [True]})
        with pytest.raises(ValueError, match="on_nan='skip'"):
            RowDatabase(database.stage, database.index, on_nan="skip")

    def test_beside_a_loader_that_has_read_ahead(self, database, index):
        from headrace.indexer.indexed import IdColumn

        loader = type("Loader", (), {})()
        index.claim_writer(loader)
        index.index([IdColumn(0, np.array([1], np.uint64))])
        with pytest.raises(RuntimeError, match="insert=False"):
            database.prefetch({"items": [2]})
        assert database.pull(database.prefetch({"items": [2]}, insert=False))["items"].shape == (1, 2)


def rows_that_are_taken_out(index, ticket):
    """Their places are free for the next new rows."""
    column = IdColumn(0, np.ascontiguousarray(ticket.unique_ids["items"]))
    index.remove([column])
    return ticket.rows["items"]


def test_gradients_of_forgotten_rows_do_not_reach_the_rows_that_take_their_places(database, stage, index):
    old = database.prefetch({"items": np.arange(2000)})
    kept = database.prefetch({"shops": [1]})
    database.push(old, ones(old, "items"))
    database.push(kept, ones(kept, "shops"))
    rows = rows_that_are_taken_out(index, old)
    stage.forget_rows(rows.group, rows.keys.locations)
    database.update()
    new = database.prefetch({"items": np.arange(5000, 7000), "shops": [1]})
    assert len(np.intersect1d(new.rows["items"].keys.locations, rows.keys.locations)) > 1000
    pulled = database.pull(new)
    assert not pulled["items"].any()
    assert pulled["shops"].tolist() == [[-1, -1]]


def test_no_ticket_outlives_rows_that_were_forgotten_or_loaded(database, stage, index):
    def forget(ticket):
        rows = rows_that_are_taken_out(index, ticket)
        stage.forget_rows(rows.group, rows.keys.locations)

    for change in (forget, lambda ticket: stage.load_state_dict(stage.state_dict())):
        ticket = database.prefetch({"items": [1, 2]})
        change(ticket)
        with pytest.raises(RuntimeError, match="prefetch the ids again"):
            database.pull(ticket)
        with pytest.raises(RuntimeError, match="other rows may be in its places"):
            database.push(ticket, ones(ticket, "items"))
        database.release(ticket)
    assert database.in_flight == 0


def test_a_gradient_without_memory_is_refused(database):
    ticket = database.prefetch({"items": [1]})
    with pytest.raises(ValueError, match="table 'items': gradients that are no plain array"):
        database.push(ticket, {"items": torch.zeros(1, 2, device="meta")})
