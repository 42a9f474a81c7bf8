"""Taobao Display Ad Click as it is published: four CSV files, joined as the samples are read.

| file | rows | joined by |
|---|---|---|
| ``raw_sample.csv`` | 26,557,961 samples ``user,time_stamp,adgroup_id,pid,nonclk,clk`` | - |
| ``ad_feature.csv`` | 846,811 ads ``adgroup_id,cate_id,campaign_id,customer,brand,price`` | ``adgroup_id`` |
| ``user_profile.csv`` | 1,061,768 users, keyed ``userid`` | ``user`` |
| ``behavior_log.csv`` | 723,268,134 actions; sorted once by `headrace convert --history` | ``user``, up to the time |

The keys have different names (``user``, ``userid``), and the last column of the profiles has a blank behind its name.
About 5 % of the users have no profile: their samples stay, with missing values, and are counted (BARS#24).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from typing import Any

from headrace.formats.bad_records import BadRecords
from headrace.formats.delimited_format import TextField, TextFormat
from headrace.formats.delimited_reader import DelimitedFiles
from headrace.formats.files import PathLike
from headrace.formats.history_store import HistoryStore
from headrace.formats.joined_reader import HistoryJoin, Join, JoinedFiles
from headrace.formats.schema import Dense, OptimizerName, Schema, Sparse, Table
from headrace.formats.side_table import SideTable
from headrace.formats.taobao_ad import PIDS, PROFILE, taobao_ad_schema

AD_COLUMNS = ("cate_id", "campaign_id", "customer", "brand")
HISTORY_COLUMNS = {"history_btag": "btag", "history_cate": "cate", "history_brand": "brand"}
_HISTORY_TABLES = {"history_btag": "btag", "history_cate": "cate_id", "history_brand": "brand"}

RAW_SAMPLE = TextFormat(
    name="Taobao Display Ad, raw_sample",
    header=True,
    spare_fields=True,
    fields=(
        TextField(column="userid", sources=("user", "userid")),
        TextField(column="pid", words=PIDS),
    ),
)
AD_FEATURE = TextFormat(
    name="Taobao Display Ad, ad_feature",
    header=True,
    spare_fields=True,
    fields=tuple(TextField(column=name, missing=("NULL",), whole_floats=True) for name in AD_COLUMNS),
)
USER_PROFILE = TextFormat(
    name="Taobao Display Ad, user_profile",
    header=True,
    spare_fields=True,
    fields=tuple(TextField(column=name, missing=("NULL",), whole_floats=True) for name in PROFILE),
)


def taobao_ad_raw_schema(
    *,
    dim: int = 16,
    optimizer: OptimizerName = "rowwise_adagrad",
    labels: bool = True,
    history: bool = False,
    max_length: int = 50,
) -> Schema:
    """``clk``, ``price``, 15 ids; with `history` what the user did before: ``history_btag``, ``_cate``, ``_brand``.

    The histories share the tables of ``cate_id`` and ``brand``.
    """
    joined = taobao_ad_schema(dim=dim, optimizer=optimizer, labels=labels)
    sparse = tuple(s for s in joined.sparse if s.name != "click_sequence")
    if history:
        sparse += tuple(
            Sparse(
                name=name,
                table=_HISTORY_TABLES[name],
                encoding="uint64",
                multi_hot=True,
                pooling="mean",
                missing="drop",
                max_length=max_length,
            )
            for name in HISTORY_COLUMNS
        )
    names = dict.fromkeys(s.table for s in sparse)
    tables = tuple(Table(name=name, dim=dim, optimizer=optimizer) for name in names)
    return Schema(labels=joined.labels, dense=joined.dense, sparse=sparse, tables=tables)


def taobao_ad_raw(
    paths: PathLike | Iterable[PathLike],
    schema: Schema,
    *,
    ad_feature: PathLike | None = None,
    user_profile: PathLike | None = None,
    history: PathLike | HistoryStore | None = None,
    bad_records: BadRecords | str = "raise",
    **options: Any,
) -> JoinedFiles:
    """A reader of ``raw_sample.csv``, joined with the files beside it unless others are given.

    `history` is the folder that `headrace convert --history` made of ``behavior_log.csv`` (``behavior_log`` beside the
    samples when not given); it is needed where the schema has one of the history columns. `bad_records` holds for all
    three files; a quarantine ``bad.csv`` has lines of the samples, ``bad.ad_feature.csv`` and ``bad.user_profile.csv``
    beside it those of the others.
    """
    sample = _first(paths)
    folder = os.path.dirname(os.path.abspath(sample))
    ads = ad_feature or _beside(folder, "ad_feature.csv")
    profiles = user_profile or _beside(folder, "user_profile.csv")
    ad_schema = Schema(
        dense=(Dense(name="price", dtype="float32"),),
        sparse=(_key("adgroup_id"), *(Sparse(name=name, encoding="uint64") for name in AD_COLUMNS)),
    )
    profile_schema = Schema(sparse=(_key("userid"), *(Sparse(name=name, encoding="uint64") for name in PROFILE)))
    policy = BadRecords.of(bad_records)
    joins = [
        Join(name, SideTable(DelimitedFiles(path, side, text, bad_records=policy.of_side(name)), key), key)
        for name, path, side, text, key in (
            ("ad_feature", ads, ad_schema, AD_FEATURE, "adgroup_id"),
            ("user_profile", profiles, profile_schema, USER_PROFILE, "userid"),
        )
    ]
    histories = []
    if any(s.name in HISTORY_COLUMNS for s in schema.sparse):
        store = history if isinstance(history, HistoryStore) else _history(folder, history)
        histories.append(HistoryJoin("behavior_log", store, "userid", "time_stamp", HISTORY_COLUMNS))
    return JoinedFiles(sample, schema, RAW_SAMPLE, joins=joins, histories=histories, bad_records=bad_records, **options)


def _history(folder: str, history: PathLike | None) -> HistoryStore:
    """The sorted log: as given, or beside the samples."""
    log = shlex.quote(_found(folder, "behavior_log.csv") or os.path.join(folder, "behavior_log.csv"))
    return HistoryStore(history or f"{folder}/behavior_log", made_from=f"{log} --dataset taobao-behavior-log")


def _key(name: str) -> Sparse:
    return Sparse(name=name, encoding="uint64", missing="raise")


def _first(paths: PathLike | Iterable[PathLike]) -> str:
    """The one file of samples: as named, or that in a folder."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if len(given) != 1:
        raise ValueError(f"taobao-ad-raw reads one raw_sample.csv, {len(given)} paths were given")
    path = os.fspath(given[0])
    return _beside(path, "raw_sample.csv") if os.path.isdir(path) else path


def _found(folder: str, name: str) -> str | None:
    paths = (os.path.join(folder, name + suffix) for suffix in ("", ".gz", ".zst"))
    return next(filter(os.path.exists, paths), None)


def _beside(folder: str, name: str) -> str:
    """The file, plain or compressed."""
    if path := _found(folder, name):
        return path
    raise FileNotFoundError(f"no {name} (or .gz, .zst) in {folder}; name it")
