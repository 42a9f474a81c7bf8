"""Taobao Display Ad Click (Tianchi 56) as one joined CSV with a header, as RecZoo's TaobaoAd_x1 and FuxiCTR have it."""

from __future__ import annotations

from headrace.formats.delimited_format import TextField, TextFormat
from headrace.formats.schema import Dense, Label, OptimizerName, Schema, Sparse, Table

PROFILE = (
    "cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level", "shopping_level", "occupation",
    "new_user_class_level",
)  # fmt: skip
PIDS = {"430548_1007": 0, "430539_1007": 1}
_IDS = ("userid", "adgroup_id", "pid", "cate_id", "campaign_id", "customer", "brand", *PROFILE)

TAOBAO_AD = TextFormat(
    name="Taobao Display Ad",
    header=True,
    spare_fields=True,
    fields=(
        TextField(column="pid", words=PIDS),
        *(TextField(column=name, missing=("NULL",), whole_floats=True) for name in _IDS if name != "pid"),
        TextField(column="click_sequence", list_separator="^"),
    ),
)
"""The two values of ``pid`` are 0 (430548_1007) and 1 (430539_1007); ``NULL`` is a missing value; the history of a user
is joined by ``^``. The published files are four, which `taobao_ad_raw.py` joins."""


TAOBAO_BEHAVIOR_LOG = TextFormat(
    name="Taobao Display Ad, behavior_log",
    header=True,
    spare_fields=True,
    fields=(
        TextField(column="btag", words={"pv": 0, "cart": 1, "fav": 2, "buy": 3}),
        *(TextField(column=name, missing=("NULL",)) for name in ("cate", "brand")),
    ),
)
"""What users did on the days before, 723,268,134 rows: ``user,time_stamp,btag,cate,brand`` (UTC seconds). ``btag`` is 0
``pv``, 1 ``cart``, 2 ``fav``, 3 ``buy``."""


def taobao_ad_schema(*, dim: int = 16, optimizer: OptimizerName = "rowwise_adagrad", labels: bool = True) -> Schema:
    """``clk``, ``price``, 15 ids, and ``click_sequence``: clicked ads, which share the table of ``adgroup_id``."""
    history = Sparse(name="click_sequence", table="adgroup_id", encoding="uint64", multi_hot=True, pooling="mean")
    return Schema(
        labels=(Label(name="clk"),) if labels else (),
        dense=(Dense(name="price", dtype="float32", transform="log1p"),),
        sparse=(*(Sparse(name=name, encoding="uint64") for name in _IDS), history),
        tables=tuple(Table(name=name, dim=dim, optimizer=optimizer) for name in _IDS),
    )
