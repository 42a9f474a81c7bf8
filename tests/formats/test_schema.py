"""Schemas: declared, checked, plain data."""

from __future__ import annotations

import json
import re
from dataclasses import replace

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


def derived() -> Schema:
    return Schema(
        dense=(Dense(name="age", transform="standardise", mean=40, std=12.5),),
        sparse=(
            Sparse(name="user", encoding="uint64"),
            Sparse(name="age_bucket", bucket_of="age", boundaries=[18, 30]),
            Sparse(name="both", cross=["user", "age_bucket"], modulo=1000),
            Sparse(name="seen", encoding="uint64", multi_hot=True, max_length=50, keep="first"),
        ),
    )


def test_derived_features_are_in_no_file():
    schema = derived()
    assert schema.column_names == ("age", "user", "seen")
    assert schema.arrow_schema().names == ["age", "user", "seen"]
    assert [t.name for t in schema.tables] == ["user", "age_bucket", "both", "seen"]
    assert schema.groups[0].features == (0, 1, 2, 3)


def test_derived_features_read_back_from_plain_data_and_yaml(tmp_path):
    schema = derived()
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(schema.to_dict()))  # JSON is YAML
    assert Schema.from_yaml(path) == schema
    assert Schema.from_yaml(path).digest == schema.digest


@pytest.mark.parametrize(
    ("kind", "position", "change"),
    [
        ("dense", 0, {"mean": 41}), ("dense", 0, {"std": 12}),
        ("dense", 0, {"transform": "log_plus_3", "mean": 0, "std": 1}),
        ("sparse", 1, {"boundaries": (18, 31)}), ("sparse", 1, {"boundaries": (), "bucketing": "log_square"}),
        ("sparse", 2, {"cross": ("age_bucket", "user")}),
        ("sparse", 2, {"modulo": 1001}), ("sparse", 2, {"modulo": None}),
        ("sparse", 3, {"max_length": 49}), ("sparse", 3, {"keep": "last"}), ("sparse", 3, {"missing": "zero"}),
    ],
)  # fmt: skip
def test_a_changed_transform_is_a_changed_schema(kind, position, change):
    schema = derived()
    items = list(getattr(schema, kind))
    items[position] = replace(items[position], **change)
    changed = replace(schema, **{kind: tuple(items)}, tables=())
    assert changed.digest != schema.digest
    assert Schema.from_dict(changed.to_dict()) == changed


def test_schemas_without_transforms_keep_their_digest():
    # A changed digest would refuse every saved state. Computed before there were transforms.
    assert mixed().digest == "050bc3a320d2f691db3f015e229593b7"


def test_labels_are_binary_unless_declared_otherwise(tmp_path):
    binary, target = Schema(labels=(Label(name="y"),)), Schema(labels=(Label(name="y", binary=False),))
    assert binary.to_dict()["labels"] == [{"name": "y"}]  # as stored before there was the option
    assert binary == Schema(labels=(Label(name="y", binary=True),))
    assert target.digest != binary.digest
    path = tmp_path / "s.yaml"
    path.write_text("labels: [{name: y, binary: false}]")
    assert Schema.from_yaml(path) == target
    assert Schema.from_dict(target.to_dict()) == target
    with pytest.raises(SchemaError, match="label 'y': binary='no' is not a bool"):
        Schema.from_dict({"labels": [{"name": "y", "binary": "no"}]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cross": ["user"]}, "a cross takes two features or more"),
        ({"cross": ["user", "user"]}, "different names"),
        ({"cross": "user"}, "cross='user' is not a list of names"),
        ({"cross": ["user", "later"]}, "cross of 'later', which is no sparse column declared before it"),
        ({"cross": ["user", "seen"]}, "cross of 'seen', which is multi_hot"),
        ({"cross": ["user", "x"]}, "cross of 'x', which is no sparse column"),
        ({"bucket_of": "user", "boundaries": [1]}, "bucket_of='user' is no dense column"),
        ({"bucket_of": "age"}, "goes together with boundaries"),
        ({"boundaries": [1]}, "goes together with boundaries"),
        ({"bucket_of": "age", "boundaries": [2, 1]}, "does not ascend"),
        ({"bucket_of": "age", "boundaries": [float("inf")]}, "not finite"),
        ({"bucket_of": "age", "boundaries": [1], "multi_hot": True}, "one id a row, not multi_hot"),
        ({"bucket_of": "age", "cross": ["user", "item"], "boundaries": [1]}, "not both"),
        ({"bucketing": "log_square"}, "without bucket_of"),
        ({"max_length": 5}, "max_length is for lists"),
        ({"max_length": 0, "multi_hot": True}, "max_length=0 is not an integer from 1"),
        ({"keep": "first", "multi_hot": True}, "without max_length"),
        ({"modulo": 0}, "modulo=0 is not an integer from 1"),
        ({"modulo": True}, "modulo=True is not an integer"),
    ],
)
def test_faulty_transforms_are_refused_by_name(options, message):
    sparse = [
        "user",
        "item",
        {"name": "seen", "multi_hot": True},
        {"name": "c", **options},
        "later",
    ]
    with pytest.raises(SchemaError, match=re.escape(message)):
        Schema.from_dict({"dense": ["age", "price"], "sparse": sparse})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": "standardise", "std": 0}, "std=0.0 is not over 0"),
        ({"transform": "standardise", "std": -1}, "std=-1.0 is not over 0"),
        ({"transform": "log1p", "mean": 1}, "mean and std are for transform='standardise'"),
        ({"transform": "log2"}, "transform='log2' is not one of"),
    ],
)
def test_faulty_dense_transforms_are_refused(options, message):
    with pytest.raises(SchemaError, match=re.escape(message)):
        Schema.from_dict({"dense": [{"name": "a", **options}]})


def test_a_layout_in_words_is_its_first_tables():
    columns = tuple(Sparse(name=name) for name in "abcde")
    schema = Schema(sparse=columns, tables=(Table(name="e", dim=4, optimizer="sgd"),))
    many, one = (schema.layout_in_words(group) for group in schema.groups)
    assert many == "tables 'a', 'b', 'c' and 1 more (dim 16, rowwise_adagrad)"
    assert one == "table 'e' (dim 4, sgd)"
