from __future__ import annotations

import math

import pytest

from headrace.ingest.plan.simulation.links import DEFAULT_LINKS, Link, LinkModel, Topology


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
        ("between: {gbit_per_s: 0}", "between: gbit_per_s=0 must be above 0"),
        ("inside: {latency_us: -1}", "inside: latency_us=-1 must be 0 or more"),
        ("inside: {latency_us: .nan}", "not a finite number"),
        ("inside: {gbit_per_s: fast}", "not a finite number"),
        ("inside: {gbit_per_s: true}", "not a finite number"),
        ("ranks_per_node: 0", "ranks_per_node=0"),
        ("ranks_per_node: 2.5", "not an integer"),
        ("overlap: 1.5", "share from 0 to 1"),
        ("overlap: much", "share from 0 to 1"),
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


def test_numbers_are_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        Link(gbit_per_s=math.inf, latency_us=0)
