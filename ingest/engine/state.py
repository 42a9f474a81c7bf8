"""Plain state: what a node needs to go on, as data that can be stored as JSON."""

from __future__ import annotations

import copy
from typing import Any

State = dict[str, Any]

_IMMUTABLE = (str, int, float, bool, bytes, type(None))


class Snapshot(dict[str, Any]):
    """A state that nobody changes any more, so that the states of a chain can share their sources' states."""


def freeze(state: State) -> Snapshot:
    """A snapshot of `state`: detached from it, but for parts that are snapshots already."""
    return Snapshot((key, _detach(value, share=True)) for key, value in state.items())


def thaw(state: State) -> State:
    """A copy of `state` of ordinary dicts and lists, detached at every depth."""
    return {key: _detach(value, share=False) for key, value in state.items()}


def _detach(value: Any, *, share: bool) -> Any:
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is Snapshot:
        return value if share else thaw(value)
    if kind is dict:
        return {key: _detach(item, share=share) for key, item in value.items()}
    if kind is list:
        return [_detach(item, share=share) for item in value]
    return copy.deepcopy(value)  # only sources of other libraries keep such values in their state


def check_header(name: str, version: int, state: object) -> State:
    """`state` itself, if a node of this name and version made it; else ValueError."""
    if not isinstance(state, dict) or "node" not in state:
        raise ValueError(f"{name}: a state is a dict made by get_state(), got {_brief(state)}")
    if state["node"] != name:
        raise ValueError(
            f"{name}: this state was made by a node {state['node']!r}; "
            "a state fits only the same chain of nodes that made it"
        )
    if state.get("version") != version:
        raise ValueError(f"{name}: state of version {state.get('version')!r}, this node reads version {version}")
    return state


def count_in(name: str, state: State, key: str) -> int:
    """The non-negative integer `key` of `state`; else ValueError."""
    value = state.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name}: the state's {key!r} is a count, got {_brief(value)}")
    return value


def state_in(name: str, state: State, key: str) -> State:
    """The nested state `key` of `state`; else ValueError."""
    value = state.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{name}: the state's {key!r} is a state, got {_brief(value)}")
    return value


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
