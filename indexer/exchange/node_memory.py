"""Memory that the ranks of a node write for each other: for each pair and direction as many blocks as are under way."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from typing import Any

import numpy as np

from headrace.indexer.checks import check_integer
from headrace.indexer.exchange.channel import Array, Channel
from headrace.indexer.exchange.shared_block import CAPACITY_LIMIT, Handle, SharedBlock, SharedMemoryError
from headrace.indexer.exchange.transport import U8

BELL_WORDS = 6
"""Of a message about a message: slot, generation, descriptor, capacity of its block; its number in the block; bytes."""

_OFFER_LIMIT = 1 << 16
_SLOT_LIMIT = 1 << 20
_PROBE_BYTES = 4096
_ROUND_BYTES = 1 << 16
_POLL_S = 1e-3

Bell = np.ndarray[Any, np.dtype[np.int64]]


class NodeMemory:
    """Outboxes to, and inboxes from, each of the ranks of a node; positions as in the channel it was agreed on."""

    def __init__(self, prefix: str, pids: list[int], prefixes: list[str]) -> None:
        self.outboxes = [Outbox(f"{prefix}-{to}") for to in range(len(pids))]
        self._here = prefixes.index(prefix)
        self.inboxes = [Inbox(pid, f"{other}-{self._here}") for pid, other in zip(pids, prefixes, strict=True)]

    def wait_until_seen(self, limit_s: float) -> bool:
        """Whether the others have come to hold all blocks that they were told of, so that this process may end."""
        deadline = time.monotonic() + limit_s
        while any(outbox.is_unseen for outbox in self.outboxes):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True


def share(channel: Channel, *, refused: str | None = None) -> tuple[NodeMemory | None, str]:
    """Memory between the ranks of a channel, all of which call it; or why there is none, alike on all of them.

    With `refused` this rank will have none, for that reason. RankTimeoutError and RankLostError as of the channel.
    """
    prefix, probe, trouble = f"headrace-{secrets.token_hex(8)}", None, refused
    if trouble is None:
        try:
            probe = SharedBlock.create(f"{prefix}-probe", _PROBE_BYTES)
            probe.publish(1)
        except SharedMemoryError as error:
            trouble = str(error)
    descriptor = -1 if probe is None or probe.handle is None else probe.handle.descriptor
    offers = _gather(channel, {"pid": os.getpid(), "prefix": prefix, "probe": descriptor, "trouble": trouble})
    trouble = None
    if all(offer["trouble"] is None for offer in offers):
        try:
            for offer in offers:
                _look(offer)
        except SharedMemoryError as error:
            trouble = str(error)
    reports = _gather(channel, {"trouble": trouble})
    for rank, (offer, report) in enumerate(zip(offers, reports, strict=True)):
        why = offer["trouble"] or report["trouble"]
        if why:
            return None, f"rank {channel.members[rank]}: {why}"
    return NodeMemory(prefix, [offer["pid"] for offer in offers], [offer["prefix"] for offer in offers]), ""


def _gather(channel: Channel, facts: dict[str, object]) -> list[dict[str, Any]]:
    told = channel.all_gather_bytes(json.dumps(facts).encode(), "its shared memory", limit=_OFFER_LIMIT)
    return [json.loads(data) for data in told]


def _look(offer: dict[str, Any]) -> None:
    """Whether a rank's memory is seen here."""
    probe = SharedBlock.open(Handle(offer["pid"], offer["probe"], f"{offer['prefix']}-probe", _PROBE_BYTES))
    if probe.published != 1:
        raise SharedMemoryError(f"{offer['prefix']} is not what its owner wrote")


class _Slot:
    """A place for a block: which one lies there now, and the number of the last message that got room in it."""

    def __init__(self, number: int, generation: int, block: SharedBlock) -> None:
        self.number, self.generation, self.block = number, generation, block
        self.message = 0

    @property
    def is_free(self) -> bool:
        return self.block.taken == self.message


class Outbox:
    """Blocks that this process writes for one other. From any thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._slots: list[_Slot] = []
        self._made = 0
        self._lent: dict[int, _Slot] = {}  # by the address of the array
        self._told: set[int] = set()  # generations

    def room(self, nbytes: int) -> U8:
        """An array uint8 [nbytes], nbytes > 0, for one message, which is to be posted. SharedMemoryError where memory
        is short."""
        with self._lock:
            slot = self._free(nbytes)
            slot.message += 1
            array = slot.block.data[:nbytes]
            self._lent[_address(array)] = slot
            return array

    def _free(self, nbytes: int) -> _Slot:
        """The least free one in which there is room; else a new one, in place of a free one that is too small."""
        free = [slot for slot in self._slots if slot.is_free]
        fitting = [slot for slot in free if slot.block.capacity >= nbytes]
        if fitting:
            return min(fitting, key=lambda slot: slot.block.capacity)
        capacity = -(-(nbytes + nbytes // 8) // _ROUND_BYTES) * _ROUND_BYTES
        generation, number = self._made, free[0].number if free else len(self._slots)
        slot = _Slot(number, generation, SharedBlock.create(f"{self._name}-{generation}", capacity))
        self._made += 1
        self._slots[number : number + 1] = [slot]
        return slot

    def publish(self, data: U8) -> Bell:
        """Make a message known of what lies in an array that :meth:`room` gave, or of a copy of another. Its bell."""
        with self._lock:
            slot = self._lent.pop(_address(data), None)
        if slot is None:
            copy = self.room(len(data))
            copy[...] = data
            return self.publish(copy)
        handle = slot.block.handle
        assert handle is not None
        slot.block.publish(slot.message)
        with self._lock:
            self._told.add(slot.generation)
        words = slot.number, slot.generation, handle.descriptor, handle.capacity, slot.message, len(data)
        return np.array(words, np.int64)

    @property
    def is_unseen(self) -> bool:
        """Whether there is a block of which the other was told, and has not taken its first message."""
        with self._lock:
            return any(slot.generation in self._told and slot.block.taken == 0 for slot in self._slots)

    @property
    def num_blocks(self) -> int:
        return len(self._slots)


class Inbox:
    """Blocks that one other process writes for this one, opened as they come. One caller at a time."""

    def __init__(self, pid: int, name: str) -> None:
        self._pid, self._name = pid, name
        self._lock = threading.Lock()
        self._blocks: dict[int, tuple[int, SharedBlock]] = {}

    def take(self, bell: Bell, into: U8) -> None:
        """Copy the message that a bell tells of.

        RuntimeError for one of another size than is expected, ValueError for a bell that cannot be, SharedMemoryError
        for a block that cannot be opened, as after its process has ended.
        """
        slot, generation, descriptor, capacity, message, nbytes = bell.tolist()
        if nbytes != len(into):
            raise RuntimeError(f"a message of {nbytes} bytes in shared memory, {len(into)} expected")
        check_integer("the number of a block", slot, 0, _SLOT_LIMIT)
        check_integer("the size of a block", capacity, nbytes, CAPACITY_LIMIT)
        with self._lock:
            at, block = self._blocks.get(slot, (-1, None))
            if block is None or at != generation:
                block = SharedBlock.open(Handle(self._pid, descriptor, f"{self._name}-{generation}", capacity))
                self._blocks[slot] = generation, block
        if block.published != message:
            raise ValueError(f"message {block.published} lies where message {message} was announced")
        into[...] = block.data[:nbytes]
        block.take(message)


def _address(array: Array) -> int:
    return int(array.ctypes.data)
