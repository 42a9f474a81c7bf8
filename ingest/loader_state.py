"""The state of a DataLoader as plain data, and what is refused when one is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from headrace.ingest.engine.checks import check_int

STATE_VERSION = 1
OPTION_OF_NODE = {
    "Shuffle": "shuffle=True",
    "Map": "transform=",
    "PlanWindow": "train=True",
    "IndexRanks": "communicator=",
    "BatchShare": "shard=True",
}
"""What a DataLoader is given that has a node in its chain; a state fits only loaders with the same nodes."""

STATE_KEYS = ("version", "schema", "epoch", "batches", "pipeline")


def loader_state(schema_digest: str, *, epoch: int, batches: int, pipeline: dict[str, Any] | None) -> dict[str, Any]:
    """`batches` of `epoch` were handed out, and the nodes' state is `pipeline`; None: the epoch has not begun."""
    return {
        "version": STATE_VERSION, "schema": schema_digest, "epoch": epoch, "batches": batches, "pipeline": pipeline,
    }  # fmt: skip


def check_state(state: object, schema_digest: str) -> None:
    """ValueError for what is no state of a loader with this schema."""
    if not isinstance(state, dict):
        raise ValueError(f"not the state of a DataLoader: a {type(state).__name__}")
    missing = [key for key in STATE_KEYS if key not in state]
    if missing:
        raise ValueError(f"not the state of a DataLoader: {missing[0]!r} is missing")
    if state["version"] != STATE_VERSION:
        raise ValueError(f"state of version {state['version']!r}; this release reads version {STATE_VERSION}")
    if state["schema"] != schema_digest:
        raise ValueError("the state belongs to another schema")
    for key in ("epoch", "batches"):
        check_int("state of a DataLoader", key, state[key], minimum=0)
    if state["pipeline"] is not None and not isinstance(state["pipeline"], dict):
        raise ValueError(f"state of a DataLoader: pipeline is a dict or None, got {type(state['pipeline']).__name__}")


def other_options(pipeline: object, nodes: Iterable[str]) -> str | None:
    """How the options of the loader that saved the nodes' state `pipeline` differ from those of a loader of `nodes`
    (names), as far as its nodes tell; None where they do not."""
    saved, here = set(_nodes_in(pipeline)), set(nodes)
    found = [
        f"{'with' if node in saved else 'without'} {option}"
        for node, option in OPTION_OF_NODE.items()
        if (node in saved) != (node in here)
    ]
    if not found:
        return None
    return f"the state was saved by a loader {' and '.join(found)}, unlike this one: give it the same"


def _nodes_in(state: object) -> Iterator[str]:
    if isinstance(state, dict):
        if isinstance(state.get("node"), str):
            yield state["node"]
        for value in state.values():
            yield from _nodes_in(value)


def part_of(state: object, node: str) -> dict[str, Any] | None:
    """The part of the nodes' state that is the one of `node`, wherever nodes of one's own put it; None without one."""
    if not isinstance(state, dict):
        return None
    if state.get("node") == node:
        return state
    return next((part for value in state.values() if (part := part_of(value, node)) is not None), None)


def place_in_data(pipeline: object, batches: int, *, rows_known: bool) -> str:
    """Where the state `pipeline` goes on, in words that ranks which read the same rows compare.

    Rows are counted, whatever blocks they were read in (blocks of growing files differ by rank), and `rows_known` says
    whether those read are those handed out.
    """
    if pipeline is None:
        return "at its beginning"
    rows = f" ({_rows_behind(pipeline)} rows)" if rows_known else ""
    return f"behind {batches} batches{rows}"


def _rows_behind(state: object) -> int:
    """Rows behind the place of a state: the good ones of the blocks that were read, and those used of the next."""
    if not isinstance(state, dict):
        return 0
    own = sum(_count(state, key) for key in ("rows_in", "used_rows", "given_rows")) - _count(state, "rows_skipped")
    return own + sum(map(_rows_behind, state.values()))


def _count(state: dict[str, Any], key: str) -> int:
    value = state.get(key, 0)
    return value if isinstance(value, int) else 0
