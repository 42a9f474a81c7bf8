from __future__ import annotations

import numpy as np
import pytest

from headrace.ingest.plan.simulation.links import _BOUNDS, DEFAULT_LINKS, Link, LinkModel, Topology
from headrace.ingest.plan.simulation.seconds import all_reduce_seconds


def test_a_file_fills_in_what_it_says(tmp_path) -> None:
    path = tmp_path / "links.yaml"
    path.write_text("ranks_per_node: 4\nbetween: {gbit_per_s: 1, latency_us: 50}\noverlap: 0.5\n")
    links = LinkModel.from_yaml(path)
    assert links == LinkModel(
        ranks_per_node=4, inside=DEFAULT_LINKS.inside, between=Link(gbit_per_s=1, latency_us=50), overlap=0.5
    )
    assert links.between.bytes_per_s == 125e6
    path.write_text('{"reduce_scatter": "all_reduce"}')  # JSON is YAML
    assert LinkModel.from_yaml(path).reduce_scatter == "all_reduce"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "is a mapping"),
        ("", "is a mapping"),
        ("ranks: 8", "'ranks' is unknown; known: ranks_per_node"),
        ("between: 100", "between is a mapping"),
        ("between: {gbps: 100}", "'gbps' is unknown"),
        ("between: {gbit_per_s: 0}", "between: gbit_per_s=0 is not from 1e-06 to 1e+06"),
        ("between: {gbit_per_s: 1.0e-320}", "between: gbit_per_s=1e-320 is not from 1e-06 to 1e+06"),
        ("between: {gbit_per_s: 1.0e+308}", "between: gbit_per_s=1e+308 is not from 1e-06 to 1e+06"),
        ("inside: {gbit_per_s: .inf}", "inside: gbit_per_s=inf is not from"),
        pytest.param(f"inside: {{gbit_per_s: {'9' * 400}}}", f"gbit_per_s={'9' * 60} ... (400 char", id="long"),
        ("inside: {latency_us: -1}", "inside: latency_us=-1 is not from 0 to 1e+07"),
        ("inside: {latency_us: -1.0e-320}", "inside: latency_us=-1e-320 is not from 0 to 1e+07"),
        ("inside: {message_us: 1.0e+9}", "inside: message_us=1000000000.0 is not from 0 to 1e+07"),
        ("inside: {latency_us: .nan}", "inside: latency_us=nan is not a number"),
        ("inside: {gbit_per_s: fast}", "inside: gbit_per_s='fast' is not a number"),
        ("inside: {gbit_per_s: true}", "inside: gbit_per_s=True is not a number"),
        ("inside: {gbit_per_s: [1]}", "inside: gbit_per_s=[1] is not a number"),
        ("ranks_per_node: 0", "ranks_per_node=0"),
        ("ranks_per_node: 2.5", "not an integer"),
        ("overlap: 1.5", "share from 0 to 1"),
        ("overlap: much", "share from 0 to 1"),
        ("overlap: .nan", "overlap=nan is not a share from 0 to 1"),
        pytest.param(f"overlap: {'9' * 400}", f"overlap={'9' * 60} ...", id="long overlap"),
        pytest.param(f"ranks_per_node: {'9' * 400}", "ranks_per_node", id="long ranks"),
        ("1: 2", "key 1 is unknown"),
        ("? [1, 2]\n: 3", "links.yaml"),
        pytest.param("- " * 30_000, "nested too deep", id="deep list"),
        pytest.param("{a: " * 15_000, "nested too deep", id="deep mapping"),
        pytest.param(f"#{' ' * 65_536}", "longer than 65536 bytes", id="big"),
        ("reduce_scatter: tree", "reduce_scatter='tree'"),
        ("a: [", "links.yaml"),
        ("!!python/object/apply:os.system [ls]", "links.yaml"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, text, message) -> None:
    path = tmp_path / "links.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"links\.yaml") as error:
        LinkModel.from_yaml(path)
    assert message in str(error.value)


def test_ranks_fill_whole_nodes() -> None:
    assert Topology.of(32, DEFAULT_LINKS) == Topology(32, 8)
    assert Topology.of(32, DEFAULT_LINKS).nodes == 4
    assert Topology.of(3, DEFAULT_LINKS) == Topology(3, 3)  # fewer than a node holds
    with pytest.raises(ValueError, match="12 ranks do not fill nodes of 8"):
        Topology.of(12, DEFAULT_LINKS)
    with pytest.raises(ValueError, match="ranks=0"):
        Topology.of(0, DEFAULT_LINKS)


@pytest.mark.parametrize("at", [0, 1])
def test_times_at_the_bounds_are_finite(at: int) -> None:
    bounds = {name: pair[at] for name, pair in _BOUNDS.items()}
    model = LinkModel(ranks_per_node=8, inside=Link(**bounds), between=Link(**bounds))
    topology = Topology.of(512, model)
    seconds = all_reduce_seconds(np.array([0, 8, 1 << 50]), "flat", model, topology)
    assert np.isfinite(seconds).all()
    assert seconds[2] > seconds[1] > 0.0


def test_a_huge_file_is_not_read(tmp_path) -> None:
    path = tmp_path / "links.yaml"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match=r"links\.yaml: longer than 65536 bytes"):
        LinkModel.from_yaml(path)
