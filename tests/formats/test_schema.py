"""Schemas: declared, checked, plain data."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.formats.schema import Dense, Label, Schema, SchemaError, Sparse, Table, table_uid


def mixed() -> Schema:
    return Schema(
        labels=(Label(name="click"),),
        dense=(Dense(name="price", dtype="float32"),),
        sparse=(
            Sparse(name="user", encoding="uint64"),
            Sparse(name="item", table="items"),
            Sparse(name="seen", table="items", multi_hot=True, pooling="mean"),
            Sparse(name="site"),
        ),
        tables=(Table(name="items", dim=32), Table(name="user", dim=8, optimizer="sgd")),
    )


def test_groups_follow_the_first_feature_of_each_layout():
    groups = mixed().groups
    assert [(g.dim, g.optimizer, g.features, g.tables) for g in groups] == [
        (8, "sgd", (0,), (0,)),
        (32, "rowwise_adagrad", (1, 2), (1,)),
        (16, "rowwise_adagrad", (3,), (2,)),
    ]
    assert [g.row_bytes for g in groups] == [32, 132, 68]


def test_undeclared_tables_get_the_defaults():
    assert mixed().tables[2] == Table(name="site")


def test_plain_data_reads_back_equal(tmp_path):
    schema = mixed()
    assert Schema.from_dict(schema.to_dict()) == schema
    assert Schema.from_dict(schema.to_dict()).digest == schema.digest


def test_yaml_with_short_forms(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("labels: [y]\ndense: [a]\nsparse:\n  - u\n  - {name: v, table: u, encoding: int64}\n")
    schema = Schema.from_yaml(path)
    assert [s.table for s in schema.sparse] == ["u", "u"]
    assert schema.arrow_schema() == pa.schema(
        [pa.field("y", pa.float32(), nullable=False), ("a", pa.int64()), ("u", pa.uint32()), ("v", pa.int64())]
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"sprase": []}, "unknown key 'sprase'; known keys: labels, dense, sparse, tables"),
        ({"sparse": [{"name": "a", "pool": "sum"}]}, "unknown key 'pool'"),
        ({"sparse": [{"table": "t"}]}, "no name"),
        ({"sparse": "a"}, "sparse is a list"),
        ({"sparse": [{"name": "a", "pooling": "max"}]}, "pooling='max' is not one of 'sum', 'mean', 'none'"),
        ({"sparse": ["a", "a"]}, "column 'a' is declared twice"),
        ({"sparse": ["a"], "dense": ["a"]}, "column 'a' is declared twice"),
        ({"tables": ["t"]}, "table 't' is used by no sparse column"),
        ({"sparse": ["a"], "tables": [{"name": "a", "dim": 0}]}, "dim=0"),
        ({"sparse": ["a"], "tables": [{"name": "a", "dim": True}]}, "dim=True"),
        ({"dense": [{"name": "a", "fill": float("nan")}]}, "not finite"),
        ({"dense": [{"name": "a", "fill": "x"}]}, "dense 'a': fill='x' is not a number"),
        ({"dense": [{"name": "a", "fill": True}]}, "dense 'a': fill=True is not a number"),
        ({"dense": [{"name": "a", "fill": None}]}, "dense 'a': fill=None is not a number"),
        ({"dense": [{"name": "a", "fill": 10**400}]}, "not finite"),
        ({"sparse": [{"name": "a", "multi_hot": "false"}]}, "sparse 'a': multi_hot='false' is not a bool"),
        ({"sparse": [{"name": "a", "multi_hot": 1}]}, "sparse 'a': multi_hot=1 is not a bool"),
        ({"sparse": [{"name": "a", "multi_hot": None}]}, "sparse 'a': multi_hot=None is not a bool"),
        ({"sparse": [{"name": "a", "table": 7}]}, "sparse 'a': table=7 is not the name of a table"),
        ([], "a schema is a mapping"),
    ],
)
def test_faults_are_refused_by_name(data, message):
    with pytest.raises(SchemaError, match=message):
        Schema.from_dict(data)


def test_a_yaml_fault_names_the_file(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("sparse: [{name: a, nope: 1}]")
    with pytest.raises(SchemaError, match=r"bad\.yaml: sparse: unknown key 'nope'"):
        Schema.from_yaml(path)


def test_table_uid_is_pinned():
    # A changed uid would change every initial vector and saved index. By `printf C1 | b2sum -l 32`, little endian.
    assert [table_uid(name) for name in ("C1", "C26")] == [0xF9A2CAAF, 0x8E75B20D]


def test_equal_fills_make_equal_schemas():
    schemas = [Schema(dense=(Dense(name="a", fill=fill),)) for fill in (1, 1.0, np.float32(1))]
    assert [type(schema.dense[0].fill) for schema in schemas] == [float] * 3
    assert len({schema.digest for schema in schemas}) == 1
