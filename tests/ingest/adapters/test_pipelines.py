"""Datapipes and webdataset pipelines as sources."""

from __future__ import annotations

import io
import itertools
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset as wds
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from headrace import CorruptShardError, DataLoader, from_datapipe, from_webdataset
from headrace.ingest.engine.conformance import check_node, equal_blocks


def places(node):
    return [(b.source.files[f], r) for b in node for f, r in zip(*(a.tolist() for a in b.source.arrays()), strict=True)]


def ids(node):
    return [raw for block in node for raw in block.data.column("a").to_pylist()]


class Counting(IterDataPipe):
    """A pipe with a state of its own; says how many rows it made."""

    def __init__(self, rows):
        self.rows, self.at, self.made, self.resume = rows, 0, 0, None

    def __iter__(self):
        self.at, self.resume = self.resume or 0, None
        while self.at < len(self.rows):
            self.at += 1
            self.made += 1
            yield self.rows[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.resume = state["at"]


class TestDatapipes:
    def test_pipes_of_torch(self, schema, rows):
        pipe = IterableWrapper(rows).filter(lambda row: row["h"] is not None)
        assert ids(from_datapipe(pipe, schema)) == [2**64 - 1 - i for i in range(10) if i != 4]
        check_node(lambda: from_datapipe(pipe, schema, block_rows=4), equal=equal_blocks)

    def test_a_pipe_with_a_state_resumes_without_reading_again(self, schema, rows):
        check_node(lambda: from_datapipe(Counting(rows), schema, block_rows=3), equal=equal_blocks)
        node = from_datapipe(Counting(rows), schema, block_rows=3)
        next(node)
        next(node)
        pipe = Counting(rows)
        other = from_datapipe(pipe, schema, block_rows=3)
        other.reset(node.get_state())
        assert ids(other) == [2**64 - 1 - i for i in range(6, 10)]
        assert pipe.made == 4

    def test_errors_keep_their_type(self, schema, rows):
        def fails(row):
            if row["y"] == 1:
                raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")
            return row

        with DataLoader(
            from_datapipe(IterableWrapper(rows).map(fails), schema), 1, schema=schema, timeout=60
        ) as loader:
            found = iter(loader)
            assert next(found).num_rows == 1
            for _ in range(2):
                with pytest.raises(UnicodeDecodeError, match="bad"):
                    next(found)


def tar(path, members):
    with tarfile.open(path, "w") as file:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return str(path)


def ipc(table, *, stream):
    sink = pa.BufferOutputStream()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue().to_pybytes()


def parquet(table):
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def dataset(*paths):
    return wds.WebDataset(list(paths), shardshuffle=False)


class TestWebdataset:
    def test_rows_as_json(self, schema, rows, tmp_path):
        lines = [(f"{i:03}.json", json.dumps(r).encode()) for i, r in enumerate(rows)]
        paths = [tar(tmp_path / "a.tar", lines[:6]), tar(tmp_path / "b.tar", lines[6:])]
        for pipeline in (dataset(*paths), dataset(*paths).decode()):
            node = from_webdataset(pipeline, schema, block_rows=4)
            assert places(node) == [(paths[i > 5], i) for i in range(10)]
        check_node(lambda: from_webdataset(dataset(*paths), schema, block_rows=4), equal=equal_places)

    def test_several_rows_a_sample(self, schema, rows, tmp_path):
        members = [("000.json", json.dumps([dict(r, a=i) for i, r in enumerate(rows)]).encode())]
        assert ids(from_webdataset(dataset(tar(tmp_path / "a.tar", members)), schema)) == list(range(10))

    def test_arrow_and_parquet(self, schema, table, tmp_path):
        members = [
            ("0.arrow", ipc(table[:4], stream=False)),
            ("1.arrows", ipc(table[4:7], stream=True)),
            ("2.parquet", parquet(table[7:])),
        ]
        path = tar(tmp_path / "a.tar", members)
        node = from_webdataset(dataset(path), schema)
        assert places(node) == [(path, i) for i in range(10)]
        node.reset()
        assert ids(node) == [2**64 - 1 - i for i in range(10)]

    def test_entries_named_as_columns(self, schema, rows):
        samples = [{"__key__": str(i), "__url__": "u", **r} for i, r in enumerate(rows)]
        assert places(from_webdataset(samples, schema)) == [("u", i) for i in range(10)]

    def test_decoded_record_batches(self, schema, table):
        samples = [{"__key__": "k", "__url__": "u", "any": batch} for batch in table.to_batches(max_chunksize=3)]
        assert places(from_webdataset(samples, schema)) == [("u", i) for i in range(10)]

    def test_train_and_resume(self, schema, rows, tmp_path):
        path = tar(tmp_path / "a.tar", [(f"{i:03}.json", json.dumps(r).encode()) for i, r in enumerate(rows)])

        def make():
            return DataLoader(from_webdataset(dataset(path), schema), 3, schema=schema, window=1, timeout=60)

        for k in range(5):
            with make() as loader:
                for _batch in itertools.islice(loader, k):
                    pass
                state = json.loads(json.dumps(loader.state_dict()))
            with make() as loader:
                loader.load_state_dict(state)
                found = [row for b in loader for row in b.source.arrays()[1].tolist()]
                assert found == (list(range(3 * k, 10)) or list(range(10)))

    def test_other_samples_at_a_resume_are_refused(self, schema, rows):
        samples = [{"__key__": str(i), **r} for i, r in enumerate(rows)]
        node = from_webdataset(samples, schema, block_rows=4)
        next(node)
        other = from_webdataset([*samples[1:], samples[0]], schema, block_rows=4)
        with pytest.raises(
            ValueError, match=r"sample 4 was '3' when the state was saved, and is '4' now.*shuffle in the loader"
        ):
            other.reset(node.get_state())
        with pytest.raises(ValueError, match="the state says 4 samples, but there are only 3"):
            from_webdataset(samples[:3], schema).reset(node.get_state())

    @pytest.mark.parametrize(
        ("kind", "data"), [("arrow", b"nothing"), ("parquet", b"PAR1"), ("json", b"{"), ("json", b"\xff")]
    )
    def test_damage_names_the_sample(self, schema, tmp_path, kind, data):
        path = tar(tmp_path / "a.tar", [("77." + kind, data)])
        with pytest.raises(CorruptShardError, match=rf"a\.tar: sample 77: its {kind} is damaged"):
            list(from_webdataset(dataset(path), schema))
        with pytest.raises(TypeError, match="sample 77: its json is a int"):
            list(from_webdataset(dataset(tar(tmp_path / "b.tar", [("77.json", b"3")])), schema))

    def test_a_tar_that_is_cut_is_an_error(self, schema, rows, tmp_path):  # L100
        path = tar(tmp_path / "a.tar", [(f"{i:03}.json", json.dumps(r).encode()) for i, r in enumerate(rows)])
        with open(path, "r+b") as file:
            file.truncate(5 * 1024 + 700)
        with pytest.raises(tarfile.ReadError):
            list(from_webdataset(dataset(path), schema, block_rows=1))


def equal_places(left, right):
    """Blocks of the same rows: files are named, since a resumed block lists its own."""
    return places([left]) == places([right]) and left.data.equals(right.data)
