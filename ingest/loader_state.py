"""The state of a DataLoader as plain data, and what is refused when one is loaded."""

from __future__ import annotations

from typing import Any

from headrace.ingest.engine.checks import check_int

STATE_VERSION = 1
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


def part_of(state: object, node: str) -> dict[str, Any] | None:
    """The part of the nodes' state that is the one of `node`, wherever nodes of one's own put it; None without one."""
    if not isinstance(state, dict):
        return None
    if state.get("node") == node:
        return state
    return next((part for value in state.values() if (part := part_of(value, node)) is not None), None)
