"""Pretrained rows in, trained rows out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from headrace.embed.row_database import RowDatabase
from headrace.embed.stage import EmbeddingStage
from headrace.embed.table_file import export_table, import_rows, import_table
from headrace.formats.schema import Schema, Sparse, Table
from headrace.indexer.dit import DIT
from headrace.ingest.nodes.index import index_tables

SCHEMA = Schema(
    sparse=(Sparse(name="items"), Sparse(name="users")),
    tables=(Table(name="items", dim=2, optimizer="adagrad"), Table(name="users", dim=2, optimizer="adagrad")),
)
IDS = np.array([7, 2**64 - 1, 0], np.uint64)
VECTORS = np.array([[1, 2], [3, 4], [5, 6]], np.float32)


@pytest.fixture
def index():
    with DIT(index_tables(SCHEMA)) as index:
        yield index


@pytest.fixture(params=["direct", "arena"])
def stage(request):
    return EmbeddingStage(SCHEMA, lr=1.0, mode=request.param)


def pull(stage, index, ids, table="items"):
    database = RowDatabase(stage, index)
    ticket = database.prefetch({table: ids})
    return database.pull(ticket)[table][ticket.query_ids[table]]


def test_rows_are_set_and_their_state_begins_anew(stage, index):
    database = RowDatabase(stage, index)
    ticket = database.prefetch({"items": IDS})
    database.push(ticket, {"items": np.ones((3, 2), np.float32)})
    database.update()
    assert import_rows(stage, index, "items", IDS, VECTORS) == 3
    assert pull(stage, index, IDS).tolist() == VECTORS.tolist()
    group = ticket.rows["items"]
    assert stage.lookup_rows(group.group, *group.keys)[:, 2:].tolist() == [[0, 0]] * 3
    database.push(ticket, {"items": np.ones((3, 2), np.float32)})
    database.update()
    np.testing.assert_allclose(pull(stage, index, IDS), VECTORS - 1)  # Adagrad's first step is lr * sign
    assert not (pull(stage, index, IDS, "users") == VECTORS).any()  # the same ids of another table


def test_rows_in_the_arena_are_set_there(kit, index):
    toy = kit.ToyIndex()
    schema = Schema(sparse=(Sparse(name="items"),), tables=(Table(name="items", dim=2),))
    stage = EmbeddingStage(schema, mode="arena", lr=0.0)
    batches = kit.plan_batches([kit.make_batch(schema, {"items": [[1], [2]]}, toy)] * 3, spare=2)
    stage(batches[0]).sum().backward()
    stage.step(batches[0])
    keys = batches[0].groups[0]

    class Toy:
        """Looks ids up in the toy index."""

        tables = index_tables(schema)

        def claim_writer(self, owner): ...

        def release_writer(self, owner): ...

        def index(self, columns):
            from headrace.indexer.indexed import IndexedGroup, IndexedIds

            order = [keys.unique_ids.tolist().index(i) for i in columns[0].values.tolist()]
            group = IndexedGroup(
                query_ids=np.arange(len(order), dtype=np.uint32),
                unique_ids=keys.unique_ids.numpy()[order],
                missing=np.zeros(len(order), bool),
                locations=keys.locations.numpy()[order],
                is_new=np.zeros(len(order), bool),
                tables=(0,),
                table_offsets=np.array([0, len(order)]),
            )
            return IndexedIds((group,), None)

    import_rows(stage, Toy(), "items", [2, 1], [[3.0, 4.0], [1.0, 2.0]])
    assert stage(batches[1]).tolist() == [[1, 2], [3, 4]]
    stage.eval()
    assert stage(batches[1]).tolist() == [[1, 2], [3, 4]]


def test_export_and_import_are_inverse(stage, index, tmp_path):
    import_rows(stage, index, "users", [1], [[9.0, 9.0]])
    import_rows(
        stage,
        index,
        "items",
        [*IDS.tolist()[:2], 0, 3],
        [*VECTORS.tolist(), [7, 8]],
        missing=[False, False, False, True],
    )
    RowDatabase(stage, index).prefetch({"items": [44]})  # known, never written
    path = tmp_path / "items.parquet"
    assert export_table(stage, index, "items", path) == 5
    table = pq.read_table(path)
    assert table.schema.names == ["id", "missing", "vector"]
    found = {(r["id"], r["missing"]): r["vector"] for r in table.to_pylist()}
    assert found == {
        (7, False): [1, 2],
        (2**64 - 1, False): [3, 4],
        (0, False): [5, 6],
        (0, True): [7, 8],
        (44, False): pull(stage, index, [44])[0].tolist(),
    }
    with DIT(index_tables(SCHEMA)) as fresh:
        other = EmbeddingStage(SCHEMA, seed=5)
        assert import_table(other, fresh, "items", path) == 5
        assert pull(other, fresh, [44, 0, 7]).tolist() == [found[(44, False)], [5, 6], [1, 2]]
        export_table(other, fresh, "items", tmp_path / "again.parquet")
        again = {(r["id"], r["missing"]): r["vector"] for r in pq.read_table(tmp_path / "again.parquet").to_pylist()}
        assert again == found


def test_an_empty_table_makes_a_round_trip(stage, index, tmp_path):
    assert export_table(stage, index, "items", tmp_path / "none.parquet") == 0
    assert import_table(stage, index, "items", tmp_path / "none.parquet") == 0


def test_a_failed_export_leaves_the_former_file(stage, index, tmp_path, monkeypatch):
    path = tmp_path / "items.parquet"
    import_rows(stage, index, "items", IDS, VECTORS)
    export_table(stage, index, "items", path)
    before = path.read_bytes()

    def fail(group, keys):
        raise OSError("no space left on device")

    monkeypatch.setattr(stage, "read_vectors", fail)
    with pytest.raises(OSError, match="no space"):
        export_table(stage, index, "items", path)
    assert [p.name for p in tmp_path.iterdir()] == ["items.parquet"]
    assert path.read_bytes() == before


def test_weights_of_a_module_are_taken_as_they_are(stage, index):
    weight = torch.nn.Parameter(torch.from_numpy(VECTORS.copy()))
    import_rows(stage, index, "items", IDS, weight)
    assert pull(stage, index, IDS).tobytes() == VECTORS.tobytes()
    import_rows(stage, index, "items", IDS, weight.to(torch.bfloat16))
    assert pull(stage, index, IDS).tobytes() == weight.to(torch.bfloat16).float().detach().numpy().tobytes()
    with pytest.raises(TypeError, match="vectors of int64, not floats"):
        import_rows(stage, index, "items", IDS, torch.ones(VECTORS.shape, dtype=torch.int64))


def test_a_file_of_another_table_is_refused_until_its_name_is_taken_off(stage, index, tmp_path):
    import_rows(stage, index, "items", IDS, VECTORS)
    export_table(stage, index, "items", tmp_path / "items.parquet")
    with pytest.raises(ValueError, match=r"rows of table 'items', as its metadata says, not of 'users'"):
        import_table(stage, index, "users", tmp_path / "items.parquet")
    import_table(stage, index, "users", pq.read_table(tmp_path / "items.parquet").replace_schema_metadata())
    assert pull(stage, index, IDS, "users").tobytes() == VECTORS.tobytes()


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats_are_rounded(stage, index, dtype):
    import_rows(stage, index, "items", IDS, VECTORS.astype(dtype) / 3)
    assert pull(stage, index, IDS).tobytes() == (VECTORS.astype(dtype) / 3).astype(np.float32).tobytes()


NAN = [[1, 2], [np.nan, 4], [5, 6]]


@pytest.mark.parametrize(
    ("ids", "vectors", "message"),
    [
        ([7, 8, 7], VECTORS, "table 'items': id 7 comes twice"),
        ([-1, 8, 2**63 - 1], NAN, r"table 'items': the vector of id 8 \(position 1\) is not finite"),
        ([7, 8, 9], [[1, 2], [3, 4], [1e39, 0]], r"id 9 \(position 2\) is not finite in float32"),
        ([7, 8], VECTORS, r"vectors of shape \[3, 2\] for 2 ids of dim 2"),
        ([7, 8, 9], [[1.0], [2.0], [3.0]], r"shape \[3, 1\] for 3 ids of dim 2"),
        (np.array([7.0, 8.0, 9.0]), VECTORS, "ids of float64, not integers"),
        ([7, 8.0, 9], VECTORS, "ids of which one is 8.0, not an integer"),
        ([7, 8, 9], VECTORS.astype(int), "vectors of int64, not floats"),
        (np.array([[7], [8], [9]]), VECTORS, r"ids of shape \[3, 1\]"),
        ([7, 8, 9], [[1.0, 2.0], [3.0], [5.0, 6.0]], "^table 'items': vectors that are no array: "),
    ],
)
def test_bad_rows_are_refused_and_change_nothing(stage, index, ids, vectors, message):
    with pytest.raises((ValueError, TypeError), match=message):
        import_rows(stage, index, "items", ids, vectors)
    assert len(index) == sum(s.num_written for s in stage.stores) == 0


def test_bad_names_and_masks_are_refused(stage, index):
    with pytest.raises(ValueError, match="'zzz' is not in the schema"):
        import_rows(stage, index, "zzz", IDS, VECTORS)
    with pytest.raises(ValueError, match="'zzz' is not in the schema"):
        export_table(stage, index, "zzz", "nowhere")
    with pytest.raises(ValueError, match="the missing value comes twice"):
        import_rows(stage, index, "items", IDS, VECTORS, missing=np.array([True, True, False]))
    with pytest.raises(ValueError, match="not bool"):
        import_rows(stage, index, "items", IDS, VECTORS, missing=np.array([True]))
    with pytest.raises(ValueError, match=r"^table 'items': flags of missing that are no array: "):
        import_rows(stage, index, "items", IDS, VECTORS, missing=[[True], [True, False]])  # type: ignore[arg-type]
    assert len(index) == 0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"id": [1]}, "no column 'vector' among id"),
        ({"id": [1, None], "vector": [[1.0, 2.0]] * 2}, "column 'id' has 1 nulls"),
        ({"id": [1, 2], "vector": [[1.0, 2.0], None]}, "column 'vector' has 1 nulls"),
        ({"id": [1, 2], "vector": [[1.0, 2.0], [1.0, None]]}, "has 1 nulls inside"),
        ({"id": [1, 2], "vector": [[1.0, 2.0], [1.0]]}, r"vectors of 2 and 1 values \(row 1\)"),
        ({"id": [1, 2], "vector": [1.0, 2.0]}, "column 'vector' of double, not lists"),
        ({"id": ["a"], "vector": [[1.0, 2.0]]}, "ids of object, not integers"),
    ],
)
def test_bad_files_are_refused_by_name(stage, index, table, message, tmp_path):
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table(table), path)
    with pytest.raises(ValueError, match=rf"bad\.parquet: .*{message}"):
        import_table(stage, index, "items", path)
    (tmp_path / "no.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"no\.parquet"):
        import_table(stage, index, "items", tmp_path / "no.parquet")
    with pytest.raises(FileNotFoundError):
        import_table(stage, index, "items", tmp_path / "absent.parquet")
    assert len(index) == 0


def refusal(stage, index, path) -> str:
    """What a ValueError says of the file; empty if it is taken."""
    try:
        import_table(stage, index, "items", path)
    except ValueError as error:
        return str(error)
    return ""


def test_a_damaged_file_is_refused_by_name_and_changes_nothing(stage, index, tmp_path):
    path = tmp_path / "rows.parquet"
    import_rows(stage, index, "items", np.arange(300), np.random.default_rng(0).random((300, 2)))
    assert export_table(stage, index, "items", path) == 300
    before, whole = stage.state_arrays()["rows_0"], path.read_bytes()
    rng, refused = np.random.default_rng(1), 0
    for at in rng.integers(0, len(whole), 60).tolist():
        for damaged in (
            whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :],
            whole[:at],
            whole[:at] + whole[at + 9 :],
        ):
            path.write_bytes(damaged)
            refused += refusal(stage, index, path).startswith(str(path))
            np.testing.assert_array_equal(stage.state_arrays()["rows_0"], before)  # a flip in what nobody reads
    assert refused > 150
    with pytest.raises(FileNotFoundError):
        import_table(stage, index, "items", tmp_path / "none")


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float64(), 2)])
def test_lists_of_every_kind_are_vectors(stage, index, kind, tmp_path):  # polars writes large lists
    table = pa.table({"id": pa.array(IDS), "vector": pa.array(VECTORS.tolist(), kind)})
    pq.write_table(table, tmp_path / "rows.parquet")
    assert import_table(stage, index, "items", tmp_path / "rows.parquet") == 3
    assert pull(stage, index, IDS).tolist() == VECTORS.tolist()


def test_a_column_that_comes_twice_is_refused(stage, index):
    vectors = pa.array(VECTORS.tolist())
    table = pa.Table.from_arrays([pa.array(IDS), pa.array(IDS), vectors], names=["id", "id", "vector"])
    with pytest.raises(ValueError, match="column 'id' comes 2 times"):
        import_table(stage, index, "items", table)
