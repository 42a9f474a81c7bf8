"""Ali-CCP (Tianchi 408) as one joined CSV with a header, as torch-rechub has it: encoded ids, 0 for unknown ones."""

from __future__ import annotations

from headrace.formats.delimited_format import TextFormat
from headrace.formats.schema import Dense, Label, OptimizerName, Schema, Sparse, Table

FIELDS = (
    "101", "121", "122", "124", "125", "126", "127", "128", "129", "205", "206", "207", "210", "216", "508", "509",
    "702", "853", "301", "109_14", "110_14", "127_14", "150_14",
)  # fmt: skip
_DENSE = ("D109_14", "D110_14", "D127_14", "D150_14", "D508", "D509", "D702", "D853")

ALI_CCP = TextFormat(name="Ali-CCP", header=True)


def ali_ccp_schema(*, dim: int = 16, optimizer: OptimizerName = "rowwise_adagrad", labels: bool = True) -> Schema:
    """``click`` and ``purchase``, 8 dense values, 23 ids."""
    return Schema(
        labels=(Label(name="click"), Label(name="purchase")) if labels else (),
        dense=tuple(Dense(name=name, dtype="float32") for name in _DENSE),
        sparse=tuple(Sparse(name=name, encoding="uint64") for name in FIELDS),
        tables=tuple(Table(name=name, dim=dim, optimizer=optimizer) for name in FIELDS),
    )
