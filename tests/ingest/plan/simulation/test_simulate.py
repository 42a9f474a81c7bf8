"""The simulator against a count of its own kind: ranks as objects, messages as lists, one row at a time."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ingest.plan.simulation.links import DEFAULT_LINKS, Link, LinkModel
from headrace.ingest.plan.simulation.report import _crossing, by_step_and_rank, crossings, summary
from headrace.ingest.plan.simulation.simulate import Simulation, simulate, steps_in
from headrace.ingest.plan.simulation.trace import Trace

V = 20  # bytes of a vector


def trace_of(batches: list[list[int]], buckets: list[int], batch_size: int = 3) -> Trace:
    rows = tuple(np.array(batch, np.uint32) for batch in batches)
    accesses = np.full((len(batches), 2), batch_size, np.int64)
    return Trace(batch_size, rows, np.array(buckets, np.uint16), accesses, (0, 1))


def links_of(per_node: int, overlap: float = 0.0) -> LinkModel:
    return LinkModel(
        ranks_per_node=per_node,
        inside=Link(gbit_per_s=8, latency_us=2, message_us=1),
        between=Link(gbit_per_s=1, latency_us=10, message_us=3),
        overlap=overlap,
    )


def messages(step: list[list[int]], hot: set[int], owner, ranks: int, g: int, exchange: str) -> Counter:
    """How often (from, to, row) travels in the forward: once, or never."""
    sent: Counter = Counter()
    copies: dict[tuple[int, int], set[int]] = {}
    for w, rows in enumerate(step):
        for row in rows:
            o = owner(row)
            if row in hot or o == w:
                continue
            if exchange == "two_level" and o // g != w // g:
                landing = w // g * g + o % g
                if row not in copies.setdefault((o, landing), set()):
                    copies[o, landing].add(row)
                    sent[o, landing, row] += 1
                if landing != w:
                    sent[landing, w, row] += 1
            else:
                sent[o, w, row] += 1
    return sent


def transfer(sent: Counter, chosen: set[int], w: int, ranks: int, g: int, exchange: str) -> float:
    """Seconds that rank w is busy with the chosen rows of one all-to-all, by the rates of `links_of`."""
    moved = [(a, b) for a, b, row in sent if row in chosen]
    ways = []
    for end in (0, 1):  # what leaves, what arrives
        near = sum(1 for m in moved if m[end] == w and m[0] // g == m[1] // g)
        far = sum(1 for m in moved if m[end] // g == w // g and m[0] // g != m[1] // g)
        ways.append(near * V / 1e9 + far * V / 125e6)
    if not moved:
        return 0.0
    latency = (2e-6 + (g - 2) * 1e-6) if g > 1 else 0.0
    peers = ranks - g if exchange == "flat" else ranks // g - 1
    latency += (10e-6 + (peers - 1) * 3e-6) if peers else 0.0
    return max(ways) + latency


@settings(max_examples=60, deadline=None)
@given(
    st.data(), st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2), (3, 3), (6, 2)]), st.sampled_from(["flat", "two_level"])
)
def test_bytes_equal_an_independent_count(data, shape, exchange) -> None:
    ranks, g = shape
    steps = 2
    one_batch = st.lists(st.integers(0, 9), unique=True, max_size=8)
    batches = [data.draw(one_batch) for _ in range(ranks * (steps + 2))]
    buckets = data.draw(st.lists(st.integers(0, 65_535), min_size=10, max_size=10))
    run = simulate(
        trace_of(batches, buckets),
        ranks=ranks,
        window=1,
        links=links_of(g, 0.25),
        vector_bytes=V,
        steps=steps,
        points=4,
    )
    presence = Counter(row for batch in batches for row in batch)

    def owner(row: int) -> int:
        return buckets[row] * ranks // 65_536

    for j, level in enumerate(run.levels.tolist()):
        hot = {row for row, count in presence.items() if count >= level}
        assert run.sizes[j] == len(hot)
        for s in range(steps):
            step = batches[(s + 1) * ranks : (s + 2) * ranks]
            after = batches[(s + 2) * ranks : (s + 3) * ranks]
            sent = messages(step, hot, owner, ranks, g, exchange)
            touched = {row for rows in step for row in rows} & hot
            before = {row for rows in batches[s * ranks : (s + 1) * ranks] for row in rows}
            early = [row for _, _, row in sent if row not in before]
            share = run.curves[exchange, "touched"].early[s, j]
            assert share == pytest.approx(len(early) / max(len(sent), 1))
            urgent = {row for rows in after for row in rows}
            moved = {row for _, _, row in sent}
            parts = ((moved & before, 1.0), (moved - before, 0.75), (moved & urgent, 1.0), (moved - urgent, 0.75))
            for w in range(ranks):
                expected = sum(share * transfer(sent, rows, w, ranks, g, exchange) for rows, share in parts)
                # nothing is reduced where R is empty, and seconds are those of the exchange alone
                if j == 0:
                    assert run.curves[exchange, "full"].seconds[s, w, 0] == pytest.approx(expected)
            assert run.touched[s, j] == len(touched)
            for reduction, reduced in (("touched", len(touched)), ("full", len(hot))):
                curve = run.curves[exchange, reduction]
                nodes = ranks // g
                for w in range(ranks):
                    out = sum(n for (a, _, _), n in sent.items() if a == w)
                    taken = sum(n for (_, b, _), n in sent.items() if b == w)
                    far = sum(n for (a, b, _), n in sent.items() if w in (a, b) and a // g != b // g)
                    assert curve.all_to_all[s, w, j] == V * (out + taken)  # rows out, gradients back
                    ring = 2 * (ranks - 1) / ranks * V * reduced
                    if exchange == "flat":
                        assert curve.all_reduce[s, j] == pytest.approx(ring)
                        across = ring / g if nodes > 1 else 0.0
                    else:
                        across = 2 * (nodes - 1) / nodes * V * reduced / g
                        assert curve.all_reduce[s, j] == pytest.approx(across + 2 * (g - 1) / g * V * reduced)
                    assert curve.between[s, w, j] == pytest.approx(V * far + across)
                    bits = -(-out // 8)
                    if reduction == "touched":
                        bits += 2 * (ranks - 1) / ranks * -(-len(hot) // 8)
                    assert curve.requests[s, w, j] == pytest.approx(8 * taken + bits)
                    inbox = sum(
                        n
                        for rows in (step, after)
                        for (a, b, _), n in messages(rows, hot, owner, ranks, g, exchange).items()
                        if b == w and (exchange == "flat" or a // g != b // g)
                    )
                    mine = {row for rows in (*step, *after) for row in rows if row not in hot and owner(row) == w}
                    assert run.arena[exchange][s, w, j] == len(hot) + len(mine) + inbox


def tiny(overlap: float, window: int = 1) -> Simulation:
    """Two nodes of one rank. Rank 0 owns row 0, rank 1 rows 1 and 2. At the one step rank 0 needs 0, 1 and 2, rank 1
    needs 2; row 1 was touched a step before, row 2 is touched a step after."""
    batches = [[1], [], [0, 1, 2], [2], [2], []]
    return simulate(
        trace_of(batches, [0, 40_000, 50_000]),
        ranks=2,
        window=window,
        links=links_of(1, overlap),
        vector_bytes=1000,
        steps=1,
    )


def test_seconds_by_hand() -> None:
    """Rank 0 takes 2 rows of 1,000 bytes over 1 Gbit/s (8 us each): late row 1, early row 2; its gradients are deferred
    (row 1) and urgent (row 2). Each of the four transfers costs 10 us of latency."""
    assert tiny(0.0).curves["flat", "touched"].cost[0] == pytest.approx(4 * (8 + 10) * 1e-6)
    assert tiny(1.0).curves["flat", "touched"].cost[0] == pytest.approx(2 * (8 + 10) * 1e-6)
    assert tiny(0.25).curves["flat", "touched"].cost[0] == pytest.approx((2 + 2 * 0.75) * (8 + 10) * 1e-6)
    # without a window nothing is early: two transfers of two rows
    assert tiny(1.0, window=0).curves["flat", "touched"].cost[0] == pytest.approx(2 * (16 + 10) * 1e-6)
    # R = every row: 3 touched rows, twice half of them over the link, two rounds of latency
    run = tiny(0.0)
    assert run.sizes.tolist() == [0, 1, 2, 3]
    assert run.curves["flat", "touched"].cost[-1] == pytest.approx(3 * 8e-6 + 20e-6)
    # R = row 2: row 1 travels late and back deferred, row 2 is reduced
    assert run.curves["flat", "touched"].cost[1] == pytest.approx(2 * 18e-6 + 8e-6 + 20e-6)
    assert run.curves["two_level", "full"].cost.tolist() == pytest.approx(run.curves["flat", "full"].cost.tolist())


def test_a_trace_that_is_too_short_names_what_it_takes() -> None:
    trace = trace_of([[0]] * 7, [0])
    assert steps_in(trace, 2) == 1
    with pytest.raises(ValueError, match="take 8 batches of 3 rows; there are 7"):
        simulate(trace, ranks=2, window=1, links=DEFAULT_LINKS, vector_bytes=4, steps=2)
    with pytest.raises(ValueError, match="12 ranks do not fill"):
        simulate(trace, ranks=12, window=1, links=DEFAULT_LINKS, vector_bytes=4, steps=1)


def test_window_rows_are_those_of_the_steps_ahead() -> None:
    batches = [[9], [0, 1], [1, 2], [3], [4]]
    for window, steps, rows in ((0, 1, 2), (1, 2, 3), (2, 3, 4), (9, 4, 5)):
        run = simulate(trace_of(batches, [0] * 10), ranks=1, window=window, links=links_of(1), vector_bytes=4, steps=3)
        assert (run.window_steps, run.window_rows.tolist()) == (steps, [rows])


def test_the_report_has_stable_keys() -> None:
    run = tiny(0.0)
    report = summary(run)
    assert list(report["strategies"]) == [
        "no_r_flat", "no_r_two_level", "touched_flat", "full_flat", "touched_two_level", "full_two_level",
        "table_wise", "row_wise",
    ]  # fmt: skip
    assert set(report["strategies"]["touched_flat"]) == {
        "r_rows", "r_rows_by_rule", "ms_by_rule", "ms", "all_to_all_bytes", "all_to_all_bytes_max",
        "all_reduce_bytes", "request_bytes", "between_bytes_a_node", "served_imbalance", "early_share",
        "hot_share_of_unique_rows", "arena_rows", "ms_by_step",
    }  # fmt: skip
    assert report["curves"]["r_rows"] == [0, 1, 2, 3]
    assert report["strategies"]["no_r_flat"]["early_share"] == 0.5
    table = by_step_and_rank(run)
    assert table.num_rows == 8 * 1 * 2
    assert table.column_names[:5] == ["ranks", "strategy", "r_rows", "step", "rank"]
    sums = table.group_by("strategy").aggregate([("all_to_all_bytes", "sum")]).to_pydict()
    assert dict(zip(sums["strategy"], sums["all_to_all_bytes_sum"], strict=True))["no_r_flat"] == 4000.0


def test_crossings_by_hand() -> None:
    difference = np.array([2.0, 0.0, 1.0, -1.0, -3.0, 0.0, 3.0])
    assert _crossing(np.array([0, 1, 3, 7, 15, 31, 63]), difference) == [(round(4.657 + 0.0), True), (31, False)]
    assert _crossing(np.array([0, 1]), np.array([1.0, 1.0])) == []
    assert _crossing(np.array([0, 1]), np.zeros(2)) == []
    # one rank a node: flat and two-level are the same, so that they never cross
    assert not any({c["below"], c["above"]} == {"touched_flat", "touched_two_level"} for c in crossings(tiny(0.0)))
