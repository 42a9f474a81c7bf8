import pytest

from headrace.ingest.engine.state import Snapshot, check_header, count_in, freeze, state_in, thaw


def test_frozen_and_thawed_states_share_nothing_with_live_lists() -> None:  # L35
    live = {"rows": [1, 2], "deep": {"more": [3]}}
    frozen = freeze(live)
    thawed = thaw(frozen)
    live["rows"].append(9)
    live["deep"]["more"].append(9)
    thawed["deep"]["more"].clear()
    assert frozen == {"rows": [1, 2], "deep": {"more": [3]}}


def test_snapshots_are_shared_when_frozen_and_copied_when_thawed() -> None:
    inner = freeze({"n": 1})
    outer = freeze({"source": inner})
    assert outer["source"] is inner
    thawed = thaw(outer)
    assert type(thawed["source"]) is dict
    assert not isinstance(thawed, Snapshot)
    assert thawed == {"source": {"n": 1}}


@pytest.mark.parametrize("state", [None, [], {}, 3, {"version": 1}])
def test_what_is_no_state_is_refused(state: object) -> None:
    with pytest.raises(ValueError, match="Map: a state is a dict made by get_state"):
        check_header("Map", 1, state)


def test_states_of_other_nodes_and_versions_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="Map: this state was made by a node 'Shuffle'"):
        check_header("Map", 1, {"node": "Shuffle", "version": 1})
    with pytest.raises(ValueError, match="Map: state of version 2, this node reads version 1"):
        check_header("Map", 1, {"node": "Map", "version": 2})


@pytest.mark.parametrize("value", [-1, True, 1.0, "1", None])
def test_counts_are_checked(value: object) -> None:
    with pytest.raises(ValueError, match="Map: the state's 'n' is a count"):
        count_in("Map", {"n": value}, "n")


def test_nested_states_are_checked() -> None:
    with pytest.raises(ValueError, match="Map: the state's 'source' is a state, got None"):
        state_in("Map", {}, "source")
    assert state_in("Map", {"source": {"a": 1}}, "source") == {"a": 1}
