"""Native part of `pooling.py`: bags of F features x B rows, feature-major; all sums float32, ascending position.

Every function releases the GIL for its real work, shares it out over `threads` if given (results do not depend on
them), and takes read-only inputs. `columns` int64 [F] says where a feature's
values start in an output row (-1: the feature is not pooled), `mean` uint8 [F] whether it is averaged.
"""

from headrace.embed._rows import RowSource
from headrace.embed._threads import Threads
from headrace.embed.arrays import F32, I64, U8, U32

def check_bags(
    query_ids: I64,
    offsets: I64,
    feature_tables: U32,
    unique_tables: U32,
    threads: Threads | None = None,
) -> bool:
    """Whether every bag has exactly one id. IndexError or ValueError unless the kernels of pooling stay inside their
    arrays and each id is a row of its feature's table: `feature_tables` uint32 [F], `unique_tables` uint32 [U]."""

def check_occurrences(positions: I64, position_offsets: I64, nnz: int, threads: Threads | None = None) -> None:
    """IndexError or ValueError unless `segment_sum` over them stays inside `nnz` starts."""

def pool_forward(
    source: RowSource,
    query_ids: I64,
    offsets: I64,
    weights: F32 | None,
    columns: I64,
    mean: U8,
    out: F32,
    threads: Threads | None = None,
    *,
    one_hot: bool = False,
) -> None:
    """Pool the rows of `source` into the columns of the pooled features of out [B, stride].

    Call `check_bags` before, which says whether bags are `one_hot` (False is right for any); `source` must have as many
    rows as the query ids were checked for.
    """

def pool_backward(
    grad: F32,
    query_ids: I64,
    offsets: I64,
    weights: F32 | None,
    columns: I64,
    mean: U8,
    features: I64,
    starts: I64,
    single: int,
    seen: U8,
    out: F32,
    threads: Threads | None = None,
    *,
    one_hot: bool = False,
) -> None:
    """Fill out [U, dim] from grad [B, D]: the sum over the occurrences of each row in `features`. The values of a row
    of `grad` lie side by side, its rows at any distance; else ValueError.

    `features` are listed table after table, table k from starts[k] on; the first `single` tables have one feature.
    `seen` uint8 [U] is scratch, 0 on entry. `check_bags` before, as for `pool_forward`.
    """

def segment_sum(
    grad: F32,
    starts: I64,
    factors: F32 | None,
    divide: bool,
    positions: I64,
    position_offsets: I64,
    out: F32,
    threads: Threads | None = None,
) -> None:
    """out[u] = sum over the positions p of row u of grad[starts[p] : + dim], times (or divided by) factors[p].

    A position with start -1 is left out; a row without any gets 0. Call `check_occurrences` before.
    """
