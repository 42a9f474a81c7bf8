"""A loader as a node: the contract of nodes, and torchdata's Loader over it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from torchdata.nodes import Loader, Mapper

from headrace import Node, Prefetch, criteo_schema
from headrace.ingest.engine.conformance import check_node
from tests.support.loaders import BATCH, ROWS, loader_of, row_order

SCHEMA = criteo_schema(dim=4)


def same_rows(left, right):
    """Of the same places in the file, and the same raw ids."""
    pairs = zip(left.groups, right.groups, strict=True)
    return left.source == right.source and all(
        np.array_equal(a.unique_ids[a.query_ids], b.unique_ids[b.query_ids]) for a, b in pairs
    )


def rows(items):
    return [row for batch in items for row in batch.source.arrays()[1].tolist()]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_it_is_a_node(data, num_workers):
    check_node(lambda: loader_of(data, SCHEMA, num_workers=num_workers, batch_size=40).as_node(), equal=same_rows)


def test_a_node_of_ours_behind_it(data):
    class Sizes(Node[int]):
        def _next(self) -> int:
            return self._pull().num_rows

    with loader_of(data, SCHEMA) as loader, Sizes(Prefetch(loader.as_node(), timeout_s=60)) as node:
        assert sum(node) == ROWS
        assert len(node.all_stats()) > 5  # those of the loader's nodes, too


class TestTorchdataLoader:
    @pytest.mark.parametrize("k", [0, 1, 7, -(-ROWS // BATCH)])
    def test_state_and_resume(self, data, k):
        def make(loader):
            return Loader(Mapper(loader.as_node(), lambda batch: batch))

        with loader_of(data, SCHEMA, shuffle=True) as loader:
            theirs = make(loader)
            whole = [rows(theirs) for _ in range(2)]
        assert sorted(whole[0]) == sorted(whole[1]) == list(range(ROWS))
        assert whole[0] != whole[1]
        with loader_of(data, SCHEMA, shuffle=True) as loader:
            theirs = make(loader)
            found = iter(theirs)
            for _ in range(k):
                next(found)
            state = json.loads(json.dumps(theirs.state_dict()))
        with loader_of(data, SCHEMA, shuffle=True) as loader:
            theirs = make(loader)
            theirs.load_state_dict(state)
            rest = whole[0][k * BATCH :]
            assert rows(theirs) == (rest or whole[1])  # torchdata's Loader begins anew behind the end


def test_the_loaders_own_iteration_ends_the_nodes(data):
    with loader_of(data, SCHEMA) as loader:
        node = loader.as_node()
        next(node)
        assert row_order(loader) == list(range(ROWS))
        with pytest.raises(RuntimeError, match="another iterator was started"):
            next(node)
        node.reset()
        assert rows(node) == list(range(ROWS))


def test_batches_are_counted_and_committed(data):
    with loader_of(data, SCHEMA) as loader:
        with loader.as_node() as node:
            first = next(node)
        assert (loader.stats()["batches"], loader.stats()["rows"]) == (1, BATCH)
        assert len(loader.index) == sum(group.num_unique for group in first.groups)
