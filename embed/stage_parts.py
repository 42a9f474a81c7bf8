"""The parts that a stage is made of, from its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, SupportsIndex

import torch

from headrace.embed._threads import Threads
from headrace.embed.arena_residency import ArenaResidency, arena_limits
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.copy_lane import lane_of
from headrace.embed.initializer import Initializer
from headrace.embed.kernels import Kernels, KernelsName, NativeKernels
from headrace.embed.layout import GroupLayout
from headrace.embed.move_worker import MoveWorker
from headrace.embed.movers import InlineMover
from headrace.embed.residency import DirectResidency, Residency
from headrace.embed.step_times import StepTimes
from headrace.embed.torch_kernels import TorchKernels
from headrace.formats.checks import check_type
from headrace.formats.schema import table_uid

Mode = Literal["direct", "arena"]
Capacity = SupportsIndex | Sequence[SupportsIndex | None] | None


def make_store(
    group: GroupLayout, seed: int, initializer: Initializer, table_initializers: Mapping[str, Initializer]
) -> ChunkStore:
    """Memory of the rows of a row layout."""
    own = {table_uid(name): one for name, one in table_initializers.items() if name in group.tables}
    return ChunkStore(group.dim, group.state_floats, seed=seed, initializer=initializer, table_initializers=own)


def check_device(
    device: torch.device | str | None, kernels: KernelsName | None, mode: Mode
) -> tuple[torch.device, KernelsName]:
    """The device and the kernels that work there; ValueError for what does not go together or is not there."""
    check_type("device", device, (torch.device, str, type(None)), "a torch.device or its name, as 'cuda'")
    check_type("kernels", kernels, (str, type(None)), "the name of kernels: 'native' or 'torch'")
    check_type("mode", mode, str, "the name of a mode: 'direct' or 'arena'")
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r}: {str(error).partition(chr(10))[0]}") from None
    name: KernelsName = kernels or ("native" if found.type == "cpu" else "torch")
    if mode not in ("direct", "arena"):
        raise ValueError(f"mode={mode!r} is neither 'direct' nor 'arena'")
    if name not in ("native", "torch"):
        raise ValueError(f"kernels={kernels!r} is neither 'native' nor 'torch'")
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"device={device!r}: rows are on 'cpu' or on 'cuda'")
    if name == "native" and found.type != "cpu":
        raise ValueError(f"device={device!r}: the native kernels work on the host; leave kernels out, or take 'torch'")
    if found.type == "cuda" and mode != "arena":
        raise ValueError(
            f"device={device!r} takes mode='arena', where plans move rows there; mode={mode!r} is the host's"
        )
    if name == "torch" and mode != "arena":
        raise ValueError(f"mode={mode!r} with rows on {found} for torch's operators: the plans move them, mode='arena'")
    if found.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device={device!r}: this torch ({torch.__version__}) finds no CUDA device")
        found = torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)
    return found, name


def make_parts(
    stores: Sequence[ChunkStore],
    device: torch.device,
    kernels: KernelsName,
    mode: Mode,
    capacity: Capacity,
    threads: Threads,
    times: StepTimes,
) -> tuple[Kernels, Residency]:
    """What the stage computes with, and the place of its rows."""
    lane = lane_of(device)
    work: Kernels = NativeKernels(threads, times) if kernels == "native" else TorchKernels(device, lane, times)
    limits = arena_limits(capacity, len(stores))
    if mode == "direct":
        return work, DirectResidency(stores, threads)
    mover = MoveWorker() if times.moves_beside else InlineMover()
    return work, ArenaResidency(stores, limits, mover, work.make_rows, times, threads)
