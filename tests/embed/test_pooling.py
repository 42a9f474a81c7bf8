"""Pooling and its backward: literals, the NumPy twin bit for bit, torch's embedding_bag."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.embed import _pool, pooling
from headrace.embed import _pooling_py as twin
from headrace.embed._threads import Threads
from headrace.embed.as_checked import AsChecked
from headrace.embed.buffers import BufferPool
from headrace.embed.layout import GroupLayout
from headrace.embed.pooling import Bags, PoolWork, bags_of, matrix_source, pool, sequence_backward, sequence_values
from headrace.formats.schema import table_uid

BOTH = pytest.mark.parametrize("kernels", [pooling, twin])
KINDS = ("sum", "mean", "none")


def bags(ids, poolings, *, dim=2, weights=None, unique=None, tables=None, frozen=()) -> Bags:
    """Bags of lists of query ids, [feature][row]."""
    flat = np.array([q for feature in ids for bag in feature for q in bag], np.int64)
    lengths = [len(bag) for feature in ids for bag in feature]
    unique = int(flat.max(initial=-1)) + 1 if unique is None else unique
    width = np.array([0 if p == "none" else dim for p in poolings])
    columns = np.where(width > 0, np.cumsum(width) - width, -1).astype(np.int64)
    counts = np.bincount(flat, minlength=unique) if unique else np.empty(0, np.int64)
    return Bags(
        layout=GroupLayout(
            dim=dim,
            optimizer="sgd",
            features=tuple(f"f{i}" for i in range(len(poolings))),
            columns=columns,
            mean=np.array([p == "mean" for p in poolings], np.uint8),
            trained=np.array([f not in frozen for f in range(len(poolings))], bool),
            feature_tables=np.zeros(len(poolings), np.uint32) if tables is None else np.array(tables, np.uint32),
            tables=("t",),
        ),
        query_ids=flat,
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        weights=None if weights is None else np.array(weights, np.float32),
        positions=np.argsort(flat, kind="stable").astype(np.int64),
        position_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        one_hot=all(length == 1 for length in lengths),
        as_checked=AsChecked({}),
    )


def forward(kernels, one: Bags, rows, num_rows, output_dim):
    out = np.full((num_rows, output_dim), np.nan, np.float32)
    rows = np.array(rows, np.float32)[: one.num_unique]
    kernels.pool_forward(one, matrix_source(rows) if kernels is pooling else rows, out)
    return out


def pool_rows(one: Bags, rows: torch.Tensor, shape) -> torch.Tensor:
    """Differentiable pooling of a matrix of unique rows."""
    return pool([one], [matrix_source(rows.detach().numpy())], [rows], shape, PoolWork())


ROWS = [[1, 10], [2, 20], [4, 40]]
IDS = [[[0, 1, 0], []], [[2, 1], [2]]]


@BOTH
def test_sum_mean_and_empty_bags_by_hand(kernels):
    out = forward(kernels, bags(IDS, ["sum", "mean"]), ROWS, 2, 4)
    assert out.tolist() == [[4, 40, 3, 30], [0, 0, 4, 40]]


@BOTH
def test_gradients_by_hand(kernels):  # P41: duplicates are summed
    grad = np.array([[1, 2, 8, 16], [5, 6, 7, 9]], np.float32)
    grads = kernels.pool_backward(bags(IDS, ["sum", "mean"]), grad)
    assert grads.tolist() == [[2, 4], [1 + 4, 2 + 8], [4 + 7, 8 + 9]]


@BOTH
def test_weights_by_hand(kernels):
    one = bags([[[0, 1], [1]]], ["sum"], weights=[0.5, 3, -1])
    assert forward(kernels, one, ROWS, 2, 2).tolist() == [[6.5, 65], [-2, -20]]
    grads = kernels.pool_backward(one, np.array([[2, 4], [8, 16]], np.float32))
    assert grads.tolist() == [[1, 2], [6 - 8, 12 - 16]]


@BOTH
def test_sequences_take_no_columns_and_get_no_pooled_gradient(kernels):
    one = bags([[[0], [1]], [[2], [0]]], ["none", "sum"])
    assert forward(kernels, one, ROWS, 2, 2).tolist() == [[4, 40], [1, 10]]
    grads = kernels.pool_backward(one, np.array([[1, 2], [3, 4]], np.float32))
    assert grads.tolist() == [[3, 4], [0, 0], [1, 2]]


@BOTH
def test_sums_run_in_ascending_position(kernels):
    rows = [[1e8], [-1e8], [1]]
    one = bags([[[0, 1, 2], [2, 0, 1]]], ["sum"], dim=1)
    assert forward(kernels, one, rows, 2, 1).tolist() == [[1], [0]]  # (1 + 1e8) - 1e8 is 0 in float32
    same_row = bags([[[0], [0], [0]]], ["sum"], dim=1)
    assert kernels.pool_backward(same_row, np.array([[1e8], [-1e8], [1]], np.float32)).tolist() == [[1]]
    assert kernels.pool_backward(same_row, np.array([[1], [1e8], [-1e8]], np.float32)).tolist() == [[0]]


@BOTH
@pytest.mark.parametrize("num_rows", [0, 3])
def test_no_ids_and_no_rows(kernels, num_rows):  # L17, P3
    one = bags([[[]] * num_rows] * 2, ["sum", "mean"])
    assert forward(kernels, one, np.empty((0, 2)), num_rows, 4).tolist() == [[0] * 4] * num_rows
    assert kernels.pool_backward(one, np.ones((num_rows, 4), np.float32)).shape == (0, 2)


@st.composite
def cases(draw):
    num_rows = draw(st.sampled_from([0, 1, 2, 5, 130]))
    poolings = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    dim = draw(st.sampled_from([1, 3, 8, 16, 32, 64, 128, 130]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shortest, longest = draw(st.sampled_from([(1, 1), (0, 3), (0, 20)]))  # one-hot, few ids, many
    tables = draw(st.lists(st.integers(0, 3), min_size=len(poolings), max_size=len(poolings)))
    frozen = draw(st.sets(st.sampled_from(range(len(poolings)))))
    frozen = {f for f, t in enumerate(tables) if t in {tables[g] for g in frozen}}  # tables are frozen, not features
    unique = 24  # 6 rows a table
    ids = [
        [(6 * t + rng.integers(0, 6, rng.integers(shortest, longest + 1))).tolist() for _ in range(num_rows)]
        for t in tables
    ]
    nnz = sum(len(bag) for feature in ids for bag in feature)
    weights = rng.standard_normal(nnz) if draw(st.booleans()) and "mean" not in poolings else None
    return bags(ids, poolings, dim=dim, weights=weights, unique=unique, tables=tables, frozen=frozen), num_rows, rng


@pytest.mark.parametrize("dim", [16, 130])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_long_bags_of_more_rows_than_a_part_takes(dim, num_threads):
    """Bags of many ids are pooled feature after feature, 512 output rows at a time."""
    num_rows, rng = 1100, np.random.default_rng(dim)
    ids = [[(40 * f + rng.integers(0, 40, rng.integers(0, 9))).tolist() for _ in range(num_rows)] for f in range(3)]
    one = bags(ids, ["sum", "none", "mean"], dim=dim, unique=120, tables=[0, 1, 2])
    rows = rng.standard_normal((120, dim)).astype(np.float32)
    out = np.full((num_rows, 2 * dim), np.nan, np.float32)
    pooling.pool_forward(one, matrix_source(rows), out, Threads(num_threads))
    assert out.tobytes() == forward(twin, one, rows, num_rows, 2 * dim).tobytes()
    grad = rng.standard_normal(out.shape).astype(np.float32)
    found = pooling.pool_backward(one, grad, threads=Threads(num_threads))
    assert found.tobytes() == twin.pool_backward(one, grad).tobytes()


@given(cases())
@settings(deadline=None, max_examples=60)
def test_native_equals_twin_bit_for_bit(case):
    one, num_rows, rng = case
    width = one.layout.dim * int((one.layout.columns >= 0).sum())
    rows = rng.standard_normal((one.num_unique, one.layout.dim)).astype(np.float32)
    assert forward(pooling, one, rows, num_rows, width).tobytes() == forward(twin, one, rows, num_rows, width).tobytes()
    grad = rng.standard_normal((num_rows, width)).astype(np.float32)
    grad[rng.random(grad.shape) < 0.2] = -0.0  # a sum starts with its first term, not with +0
    for threads in (None, Threads(3)):
        assert pooling.pool_backward(one, grad, None, threads).tobytes() == twin.pool_backward(one, grad).tobytes()


@pytest.mark.parametrize(
    "view",
    [
        lambda wide: wide[:, 2:-1],  # columns of a wider array: what the backward of torch.cat gives
        lambda wide: wide[::2, 1:5],
        lambda wide: wide[::-1, 1:5],
        lambda wide: wide[:, 5:1:-1],
        lambda wide: np.asfortranarray(wide[:, :4]),
        lambda wide: np.broadcast_to(wide[:1, :4], (len(wide), 4)),
        lambda wide: np.broadcast_to(np.float32(3), (len(wide), 4)),  # the backward of a sum
    ],
)
def test_gradients_of_any_strides(view, rng):
    grad = view(rng.standard_normal((6, 7)).astype(np.float32))
    ids = [[[0, 1], [1], [0], [], [1], [0]][: len(grad)], [[2], [3, 2], [3], [2], [3], []][: len(grad)]]
    one = bags(ids, ["sum", "mean"], tables=[0, 1])
    expected = twin.pool_backward(one, np.ascontiguousarray(grad))
    assert expected.any()
    assert pooling.pool_backward(one, grad).tobytes() == expected.tobytes()


def test_kernel_refuses_gradients_whose_rows_are_not_whole():
    one = bags([[[0], [1]]], ["sum"])
    wide = np.zeros((2, 8), np.float32)
    for grad in (wide[:, ::4], wide[::-1, :2]):
        with pytest.raises(ValueError, match="side by side"):
            pooling._pool.pool_backward(
                grad, one.query_ids, one.offsets, None, one.layout.columns, one.layout.mean, *one.layout.by_table,
                np.zeros(2, np.uint8), np.zeros((2, 2), np.float32),
            )  # fmt: skip


@pytest.mark.parametrize(("mode", "weighted"), [("sum", False), ("sum", True), ("mean", False)])
def test_torch_embedding_bag_agrees(mode, weighted, rng):
    ids = [[rng.integers(0, 9, rng.integers(0, 6)).tolist() for _ in range(40)]]
    nnz = sum(map(len, ids[0]))
    weights = rng.random(nnz).astype(np.float32) if weighted else None
    one = bags(ids, [mode], dim=5, weights=weights, unique=9)
    values = torch.from_numpy(rng.standard_normal((9, 5)).astype(np.float32))
    mine, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    out = pool_rows(one, mine, (40, 5))
    expected = torch.nn.functional.embedding_bag(
        torch.from_numpy(one.query_ids),
        theirs,
        torch.from_numpy(one.offsets[:-1]),
        mode=mode,
        per_sample_weights=None if weights is None else torch.from_numpy(weights),
    )
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    factor = torch.from_numpy(rng.standard_normal((40, 5)).astype(np.float32))
    (out * factor).sum().backward()
    (expected * factor).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-5)


def test_numeric_gradient_of_pool_and_sequences(rng):
    one = bags([[[0, 1, 1], [2]], [[1, 2], [0]], [[0, 2], []]], ["sum", "mean", "none"], dim=3)
    start = rng.standard_normal((3, 3)).astype(np.float32)
    factors = [torch.from_numpy(rng.standard_normal(shape).astype(np.float32)) for shape in ((2, 6), (2, 3))]

    def loss(values):
        return (pool_rows(one, values, (2, 6)) * factors[0]).sum() + (
            sequence_values(one, values.detach().numpy(), values, PoolWork()) * factors[1]
        ).sum()

    rows = torch.from_numpy(start).requires_grad_()
    loss(rows).backward()
    for index in np.ndindex(3, 3):  # the loss is linear, so a large difference is exact
        moved = start.copy()
        moved[index] += 1.0
        slope = loss(torch.from_numpy(moved)) - loss(torch.from_numpy(start))
        assert rows.grad[index] == pytest.approx(slope.item(), abs=1e-4)


def test_sequences_by_hand():
    one = bags([[[2, 0], []], [[1], [1]], [[0], []]], ["none", "sum", "none"])
    rows = torch.tensor(ROWS, dtype=torch.float32)
    values = sequence_values(one, rows.numpy(), rows, PoolWork())
    assert values.tolist() == [ROWS[2], ROWS[0], ROWS[0]]
    grads = sequence_backward(one, np.array([[1, 1], [2, 2], [3, 3]], np.float32))
    assert grads.tolist() == [[5, 5], [0, 0], [1, 1]]


def test_an_expanded_gradient_is_read_right():  # the gradient of sum() has stride 0
    one = bags(IDS, ["sum", "sum"])
    rows = torch.tensor(ROWS, dtype=torch.float32, requires_grad=True)
    pool_rows(one, rows, (2, 4)).sum().backward()
    assert rows.grad.tolist() == [[2, 2], [2, 2], [2, 2]]


def test_read_only_inputs_are_taken():
    one = bags(IDS, ["sum", "mean"])
    for array in (one.query_ids, one.offsets, one.positions, one.position_offsets):
        array.flags.writeable = False
    grad = np.ones((2, 4), np.float32)
    grad.flags.writeable = False
    assert pooling.pool_backward(one, grad).shape == (3, 2)
    assert forward(pooling, one, ROWS, 2, 4).shape == (2, 4)


class TestBagsOf:
    """Batches that do not fit are refused before a kernel runs over them."""

    @pytest.fixture
    def group(self, kit):
        from headrace.formats.schema import Schema, Sparse

        schema = Schema(sparse=(Sparse(name="a"), Sparse(name="b")))
        batch = kit.make_batch(schema, {"a": [[1], [2]], "b": [[3], [3]]}, kit.ToyIndex())
        return batch.groups[0]

    LAYOUT = replace(
        bags([[[0]], [[0]]], ["sum", "sum"]).layout,
        feature_tables=np.array([table_uid("a"), table_uid("b")], np.uint32),
    )

    def test_a_batch_as_it_was_made_is_taken(self, group):
        assert bags_of(group, self.LAYOUT, 2).one_hot

    @pytest.mark.parametrize(
        ("field", "at", "value"),
        [
            ("query_ids", 1, 9),
            ("query_ids", 0, -1),
            ("positions", 0, 4),
            ("positions", 0, -1),
            ("offsets", 4, 5),
            ("offsets", 0, 1),
            ("offsets", 1, 3),
            ("position_offsets", 1, -1),
        ],
    )
    def test_indices_outside_are_refused(self, group, field, at, value):
        changed = getattr(group, field).clone()
        changed[at] = value
        with pytest.raises((IndexError, ValueError)):
            bags_of(replace(group, **{field: changed}), self.LAYOUT, 2)

    def test_occurrences_are_checked_where_a_kernel_goes_by_them(self, group):
        wrong = replace(group, positions=group.positions + 4, position_offsets=group.position_offsets - 1)
        one = bags_of(wrong, self.LAYOUT, 2, by_row=False)
        grad = np.arange(2 * self.LAYOUT.dim * 2, dtype=np.float32).reshape(2, -1)
        right = pooling.pool_backward(bags_of(group, self.LAYOUT, 2), grad)
        np.testing.assert_array_equal(pooling.pool_backward(one, grad), right)

    @pytest.mark.parametrize("tables", [[1, 1, 2], [1, 2, 1], [2, 2, 2]])
    @pytest.mark.parametrize("uids", [[1, 2], [1, 1], [3, 2]])
    def test_ids_are_rows_of_their_features_tables(self, tables, uids):
        """Also where the rows of a table do not stand side by side; all ids of two features of two bags."""
        offsets, of_feature = np.arange(5), np.repeat(uids, 2)
        for ids in itertools.product(range(-1, 4), repeat=4):
            array = np.array(ids, np.int64)
            inside = (array >= 0).all() and (array < 3).all()
            sound = inside and (np.array(tables)[array] == of_feature).all()
            arguments = (array, offsets, np.array(uids, np.uint32), np.array(tables, np.uint32))
            if sound:
                assert _pool.check_bags(*arguments)
            else:
                at = int(np.argmax((array < 0) | (array >= 3) if not inside else np.array(tables)[array] != of_feature))
                with pytest.raises(ValueError if inside else IndexError, match=f"query id {ids[at]} at position {at}"):
                    _pool.check_bags(*arguments)

    def test_counts_must_fit(self, group):
        with pytest.raises(ValueError, match="5 offsets for 2 features of 3 rows"):
            bags_of(group, self.LAYOUT, 3)
        with pytest.raises(ValueError, match="1 features for the layout of f0, f1"):
            bags_of(replace(group, features=(0,)), self.LAYOUT, 2)

    def test_weighted_means_are_refused(self, group):
        layout = replace(self.LAYOUT, mean=np.array([0, 1], np.uint8))
        with pytest.raises(ValueError, match="feature 'f1': per-sample weights need pooling sum"):
            bags_of(replace(group, weights=torch.ones(4)), layout, 2)


def test_an_output_that_is_written_past_the_cache_is_the_same(rng):
    for ids_of_bag in (1, 3):
        ids = [[rng.integers(0, 40, ids_of_bag).tolist() for _ in range(3000)] for _ in range(4)]
        one = bags(ids, ["sum"] * 4, dim=64, unique=40)
        rows = rng.standard_normal((40, 64)).astype(np.float32)
        out = BufferPool().take((3000, 256)).numpy()  # 3 MB that begin with a cache line
        pooling.pool_forward(one, matrix_source(rows), out, Threads(2))
        expected = rows[np.array(ids)]  # [features, rows, ids, dim]
        total = expected[:, :, 0]
        for k in range(1, ids_of_bag):
            total = total + expected[:, :, k]
        assert out.tobytes() == np.concatenate(list(total), axis=1).tobytes()
