"""The simulator against figures that were measured or computed without it: of the design, and of a run of TorchRec."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.ingest.plan.simulation.links import DEFAULT_LINKS, Link, LinkModel, Topology
from headrace.ingest.plan.simulation.pooled import place_tables, row_wise, table_wise
from headrace.ingest.plan.simulation.simulate import Simulation, simulate
from headrace.ingest.plan.simulation.trace import Trace
from headrace.ranks_trace import preset_trace

GBIT = Link(gbit_per_s=1, latency_us=50)
DIM_64 = 256


@pytest.fixture(scope="module")
def kaggle() -> Trace:
    """Batches of 4,096 rows of the generated Kaggle stream."""
    return preset_trace("criteo-kaggle", batch_size=4096, num_batches=96, num_workers=1, seed=0)


def run_of(trace: Trace, nodes: int, per_node: int, steps: int = 4) -> Simulation:
    links = LinkModel(ranks_per_node=per_node, inside=DEFAULT_LINKS.inside, between=GBIT)
    return simulate(trace, ranks=nodes * per_node, window=8, links=links, vector_bytes=DIM_64, steps=steps)


def node_megabytes(run: Simulation, exchange: str) -> float:
    """Bytes that a node sends without R, rows and gradients."""
    return float(run.curves[exchange, "touched"].between[..., 0].mean()) * run.topology.per_node / 1e6


@pytest.mark.parametrize(
    ("nodes", "per_node", "steps", "flat", "two_level"),
    [(4, 1, 8, 8.2, 8.2), (2, 2, 8, 10.9, 9.2), (4, 4, 4, 32.7, 23.4), (4, 8, 1, 65.4, 39.4)],
)
def test_bytes_of_a_node(kaggle, nodes, per_node, steps, flat, two_level) -> None:
    run = run_of(kaggle, nodes, per_node, steps)
    assert node_megabytes(run, "flat") == pytest.approx(flat, rel=0.02)
    assert node_megabytes(run, "two_level") == pytest.approx(two_level, rel=0.02)


@pytest.mark.parametrize(("ranks", "steps", "early", "early_outside"), [(4, 20, 0.52, 0.92), (32, 1, 0.32, 0.67)])
def test_early_rows(kaggle, ranks, steps, early, early_outside) -> None:
    """Shares of a rank's unique rows; outside of R: of about 32k rows."""
    run = run_of(kaggle, ranks, 1, steps)
    curve = run.curves["flat", "touched"]
    at = int(np.argmin(np.abs(run.sizes - 32_000)))
    assert curve.early[..., 0].mean() == pytest.approx(early, abs=0.03)
    assert curve.early[..., at].mean() == pytest.approx(early_outside, abs=0.06)


def test_torchrec_as_measured() -> None:
    """TorchRec 1.8.0 over gloo, 4 nodes of one rank, 4,096 samples, 26 tables of dim 64: 43 MB a step and node
    table-wise, 248 MB row-wise, with some 3 % of TCP and 0.2 MB of the dense gradients in them."""
    links = LinkModel(ranks_per_node=1, inside=GBIT, between=GBIT, reduce_scatter="all_reduce")
    step = (np.full((4, 26), 4096), 4096, tuple(range(26)), DIM_64, links, Topology(4, 1))
    by_table, by_row = table_wise(*step), row_wise(*step)
    assert (by_table.vector_bytes + by_table.request_bytes).mean() / 1e6 == pytest.approx(43, rel=0.04)
    assert (by_row.vector_bytes + by_row.request_bytes).mean() / 1e6 == pytest.approx(248, rel=0.04)


def test_pooled_vectors_by_hand() -> None:
    """Three tables on four ranks of two nodes; 10 samples, vectors of 100 bytes."""
    topology = Topology(4, 2)
    assert place_tables(3, topology).tolist() == [0, 2, 1]
    assert place_tables(6, topology).tolist() == [0, 2, 1, 3, 0, 2]
    links = LinkModel(
        ranks_per_node=2,
        inside=Link(gbit_per_s=8, latency_us=0, message_us=0),
        between=Link(gbit_per_s=8, latency_us=0, message_us=0),
    )
    step = table_wise(np.full((4, 3), 10), 10, (0, 1, 2), 100, links, topology)
    # a rank with one of the tables sends 1,000 bytes to three ranks, takes the gradients, and the vectors of the others
    assert step.vector_bytes.tolist() == [3000 + 2000, 3000 + 2000, 3000 + 2000, 3000]
    assert step.between_bytes.tolist() == [2000 + 1000, 2000 + 1000, 2000 + 2000, 2000]
    assert step.request_bytes.tolist() == [2 * 120, 2 * 120, 2 * 120, 3 * 120]
    # node 0 sends 4,000 bytes to node 1, and each rank 1,000 inside: 5 us; rank 2 takes nothing inside: 4 us; and back
    assert step.seconds.tolist() == pytest.approx([10e-6, 10e-6, 8e-6, 10e-6])
    step = row_wise(np.full((4, 3), 10), 10, (0, 1, 2), 100, links, topology)
    assert step.vector_bytes.tolist() == [2 * 3 * 3000] * 4
    assert step.between_bytes.tolist() == [3 * 3000] * 4
    assert step.seconds.tolist() == pytest.approx([2 * (9e-6 + 4.5e-6)] * 4)


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("per_node", [4, 8])
def test_the_rule_names_a_hot_set_within_a_hundredth_of_the_best(kaggle, overlap, per_node) -> None:
    links = LinkModel(
        ranks_per_node=per_node, inside=DEFAULT_LINKS.inside, between=DEFAULT_LINKS.between, overlap=overlap
    )
    run = simulate(kaggle, ranks=16, window=8, links=links, vector_bytes=DIM_64, steps=4, points=60)
    for key, curve in run.curves.items():
        assert curve.cost[run.by_rule[key]] <= 1.01 * curve.cost.min(), key
    flat, empty = run.by_rule["flat", "touched"], run.curves["flat", "touched"].cost
    assert empty[flat] < 0.95 * empty[0]  # R pays where each rank of a node fetches its own copy
    assert run.by_rule["two_level", "touched"] == 0  # and does not where one copy crosses
